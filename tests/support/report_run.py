"""Make a report without Spark: plan, pickle tasks as Spark does, count, conclude."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rocketstore.pipeline.jobs.report.counts import Counts
from rocketstore.pipeline.jobs.report.job import Report, conclude, places_of
from rocketstore.pipeline.jobs.report.plan import plan_report
from rocketstore.pipeline.jobs.report.task import count_task
from rocketstore.units import MiB

if TYPE_CHECKING:
    from pathlib import Path

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
    plan = plan_report(str(store), max_split_bytes=split_bytes, now_ms=now_ms, **options)
    places = places_of(plan, out)
    counts = Counts()
    for task in plan.tasks:
        batches = list(count_task(pickle.loads(pickle.dumps(task))))  # noqa: S301
        counts.take_in(pa.Table.from_batches(batches))
    return conclude(counts, plan, places)


def tables_of(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every Parquet file."""
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted(report.tables.iterdir())}


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
