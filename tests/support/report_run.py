"""Make a report without Spark: tasks in this process, and their groups put together by Arrow."""

import pickle
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.report.partial_groups import ROWS, count_task, grouped
from rocketstore.pipeline.jobs.report.report_job import Report, plan_report, write_report
from rocketstore.units import MiB

VOID = {"meta", "br", "hr", "img", "input", "link"}


def make_report(
    store: Path,
    out: Path,
    *,
    split_bytes: int = 256 * MiB,
    now_ms: int | None = None,
    **options: Any,
) -> Report:
    """Return a report as ``rocketstore.pipeline.report`` writes it."""
    plan = plan_report(store, out, max_split_bytes=split_bytes, now_ms=now_ms, **options)
    parts = [ROWS.empty_table()]
    for task in plan.tasks:
        parts += map(pa.table, count_task(pickle.loads(pickle.dumps(task))))  # noqa: S301
    with published(str(plan.place)) as name:
        directory = Path(name)
        (directory / "groups").mkdir()
        pq.write_table(grouped(pa.concat_tables(parts)), directory / "groups" / "all.parquet")
        return write_report(plan, directory)


def tables_of(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table, without what follows how the work was cut."""
    return {
        path.stem: [
            {name: row[name] for name in row if name not in ("bytesRead", "resyncs")}
            for row in pq.read_table(path).to_pylist()
        ]
        for path in sorted(report.tables.iterdir())
    }


class PageReader(HTMLParser):
    """A strict reader: every element is closed in its turn, every id is there once."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> out of turn at {self.getpos()}"

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def ids(self) -> list[str]:
        return [values["id"] for _, values in self.elements if values.get("id")]


def read_page(page: Path) -> PageReader:
    """Parse a page, which must be well-formed."""
    reader = PageReader()
    content = page.read_text("utf-8")
    assert content.startswith("<!DOCTYPE html>")
    reader.feed(content)
    reader.close()
    assert not reader.open
    assert len(set(reader.ids())) == len(reader.ids())
    return reader
