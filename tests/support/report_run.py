"""Make a report without Spark: tasks in this process, and the job's statements in DuckDB."""

# ruff: noqa: S608 - statements of the report itself
from __future__ import annotations

import pickle
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.report.partial_groups import KEYS, MEASURES, count_task
from rocketstore.pipeline.jobs.report.report_job import Report, checked_place, write_page
from rocketstore.pipeline.jobs.report.report_page import findings_of, summary_of
from rocketstore.pipeline.jobs.report.report_plan import plan_report
from rocketstore.pipeline.jobs.report.report_tables import TABLES
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
    place = checked_place(out, plan)
    parts = [plan.known_groups()]
    for task in plan.tasks:
        parts += map(pa.table, count_task(pickle.loads(pickle.dumps(task))))  # noqa: S301
    rows = pa.concat_tables(parts)
    with published(str(place)) as directory, duckdb.connect() as engine:
        engine.execute("SET default_null_order = 'nulls_first'; SET TimeZone = 'UTC'")
        engine.execute("CREATE MACRO timestamp_millis(ms) AS make_timestamp_ms(ms)::TIMESTAMPTZ")
        engine.register("rows", rows)
        joined = ", ".join(f"{function}({name}) AS {name}" for name, function in MEASURES.items())
        keys = ", ".join(KEYS)
        engine.execute(f"CREATE TABLE groups AS SELECT {keys}, {joined} FROM rows GROUP BY {keys}")
        tables = type(place)(directory, "tables")
        tables.mkdir()
        for name, table in TABLES.items():
            order = ", ".join(f"{one[1:]} DESC" if one[0] == "-" else one for one in table.order)
            statement = f"SELECT * FROM ({table.sql}) ORDER BY {order}".format(groups="groups")
            pq.write_table(_as_spark(engine.sql(statement)), tables / f"{name}.parquet")

        def ask(sql: str, **values: float) -> list[dict[str, Any]]:
            return _as_spark(engine.sql(sql.format(groups="groups", **values))).to_pylist()

        findings = findings_of(plan, summary_of(plan, ask), tables, ask)
        write_page(type(place)(directory), findings)
    names = ("index.html", "tables", "report.json")
    return Report(*(place / name for name in names), findings["summary"])


def _as_spark(found: duckdb.DuckDBPyRelation) -> pa.Table:
    """Return rows with the types that Spark gives them: sums are numbers of 64 bits."""
    rows = found.to_arrow_table()
    fields = [
        field.with_type(pa.int64())
        if pa.types.is_decimal(field.type) or pa.types.is_integer(field.type)
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def tables_of(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table."""
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
