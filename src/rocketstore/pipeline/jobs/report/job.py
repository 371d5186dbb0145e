"""The job: plan, count on the workers, put together, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.pipeline.jobs.execution import run_tasks
from rocketstore.pipeline.jobs.report.counts import Counts
from rocketstore.pipeline.jobs.report.output import DEFAULT_NAME, output_places, write_report
from rocketstore.pipeline.jobs.report.page import Findings, drawn, report_page
from rocketstore.pipeline.jobs.report.plan import plan_report
from rocketstore.pipeline.jobs.report.summary import summary_of
from rocketstore.pipeline.jobs.report.tables import plain_rows, report_tables, second_rows
from rocketstore.pipeline.jobs.report.task import SCHEMA, ReportTask, count_task
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.jobs.report.plan import ReportPlan
    from rocketstore.pipeline.jobs.report.replacement import OutputPlaces

WAVE_TASKS: Final = 256
"""Tasks whose counts the driver holds before it puts them together: at most some 100 MB."""


class Report(NamedTuple):
    """A report that was written.

    Attributes
    ----------
    page, tables, json
        The HTML page, the directory of Parquet files, and everything as JSON.
    summary
        The figures that the page begins with: numbers, sizes in bytes, times in ms.
    """

    page: Path
    tables: Path
    json: Path
    summary: dict[str, Any]


def report(  # noqa: PLR0913 - keywords, each with a default
    spark: SparkSession,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str] = DEFAULT_NAME,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Report what a store holds: traffic, sizes, latency, keys, delays, retries, damage.

    Parameters
    ----------
    spark
        A session, classic or Spark Connect.
    store
        A store, or a directory of stores; path or URI. Nothing is written there.
    out
        The page; its tables and JSON go beside it. What an earlier report left is replaced.
    config
        For ``messageDelayLevel`` and ``storePathCommitLog``.
    max_split_bytes
        Most bytes of the log for one task.
    now_ms
        The time that overdue messages are judged by; default: this machine's clock.
    progress
        Told of bytes of the log that were counted.

    Raises
    ------
    NotAStoreError
        There is no store.
    ConfigError
        `out` is no place for a page.
    StoreError
        Something cannot be read or written.
    """
    plan = plan_report(str(store), config, max_split_bytes=max_split_bytes, now_ms=now_ms)
    return run_report(spark, plan, places_of(plan, out), progress)


def places_of(plan: ReportPlan, out: str | os.PathLike[str]) -> OutputPlaces:
    """Return where a planned report goes; see ``output_places``."""
    return output_places(out, [place.location for place, _ in plan.stores])


def run_report(
    spark: SparkSession,
    plan: ReportPlan,
    places: OutputPlaces,
    progress: Progress | None = None,
) -> Report:
    """Count what was planned and write the report."""

    def done(tasks: Sequence[ReportTask]) -> None:
        if progress is not None:
            progress(sum(task.byte_count for task in tasks), plan.byte_count)

    counts = Counts()
    for begin in range(0, len(plan.tasks), WAVE_TASKS):
        wave = plan.tasks[begin : begin + WAVE_TASKS]
        watched = None if progress is None else done
        counts.take_in(run_tasks(spark, wave, count_task, SCHEMA, done=watched))
    return conclude(counts, plan, places)


def conclude(counts: Counts, plan: ReportPlan, places: OutputPlaces) -> Report:
    """Make tables and page of what was counted, and write them."""
    tables = report_tables(counts, plan)
    summary = summary_of(counts, plan, tables)
    findings = Findings(
        summary,
        {name: plain_rows(table) for name, table in tables.items()},
        second_rows(counts),
        sorted(counts.rows("cells"), key=lambda row: (row["brokerName"], row["file"], row["cell"])),
    )
    page = report_page(findings, tables_name=places.tables.name, json_name=places.json.name)
    write_report(places, page, tables, summary, drawn=drawn(findings))
    return Report(*places, summary)
