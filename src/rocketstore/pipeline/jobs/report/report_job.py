"""The job: tasks count in groups, Spark puts them together and writes tables, a page shows them."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline.files import is_remote, local_path, sync_path
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure
from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.report.partial_groups import KEYS, MEASURES, SCHEMA, count_task
from rocketstore.pipeline.jobs.report.report_page import findings_of, report_page, summary_of
from rocketstore.pipeline.jobs.report.report_plan import plan_report
from rocketstore.pipeline.jobs.report.report_tables import TABLES
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.report.report_plan import ReportPlan

TASKS_OF_PARTITION: Final = 256
MOST_PARTITIONS: Final = 64
"""Of the groups: some thousand rows of each task. Every task writes a file for each of them, so
Spark's 200 would cost more than the counting."""

_TIMES: Final = "spark.sql.parquet.outputTimestampType"


class Report(NamedTuple):
    """A report that was written.

    Attributes
    ----------
    page, tables, json
        The HTML page, the directory of Parquet tables, and what the page shows as JSON.
    summary
        The figures that the page begins with: numbers, sizes in bytes, times in ms.
    """

    page: Path
    tables: Path
    json: Path
    summary: dict[str, Any]


def report(
    spark: SparkSession,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> Report:
    """Report what a store holds: traffic, sizes, latency, keys, delays, retries, damage.

    Parameters
    ----------
    spark
        A session, classic or Spark Connect.
    store
        A store, or a directory of stores; path or URI. Nothing is written there.
    out
        A directory that does not exist yet, on a disk that Spark's workers share: it gets
        ``index.html``, ``report.json`` and ``tables``.
    config
        For ``messageDelayLevel`` and ``storePathCommitLog``.
    max_split_bytes
        Most bytes of the log for one task.
    now_ms
        The time that overdue messages are judged by; default: this machine's clock.

    Raises
    ------
    NotAStoreError
        There is no store.
    ConfigError
        `out` lies inside the store, or not on a disk.
    StoreError
        Something cannot be read or written, or is at `out` already.
    """
    plan = plan_report(str(store), config, max_split_bytes=max_split_bytes, now_ms=now_ms)
    return run_report(spark, plan, out)


def run_report(spark: SparkSession, plan: ReportPlan, out: str | os.PathLike[str]) -> Report:
    """Count what was planned and write the report."""
    place = checked_place(out, plan)
    with published(str(place)) as directory, plain_failure():
        counted = map_tasks(spark, plan.tasks, count_task, SCHEMA)
        known = spark.createDataFrame(plan.known_groups(), SCHEMA)
        count = min(MOST_PARTITIONS, 1 + len(plan.tasks) // TASKS_OF_PARTITION)
        # Counted once: statements over a view do not find what is persisted (Spark 4.3).
        groups = _aggregated(counted.unionByName(known), count).localCheckpoint()

        def ask(sql: str, **values: Any) -> list[dict[str, Any]]:
            rows = spark.sql(sql, groups=groups, **values).collect()
            return [row.asDict() for row in rows]

        summary = summary_of(plan, ask)
        with _readable_times(spark):
            for name, table in TABLES.items():
                rows = _ordered(spark.sql(table.sql, groups=groups), table.order)
                rows.write.parquet(f"file://{directory}/tables/{name}.parquet")
        findings = findings_of(plan, summary, Path(directory, "tables"), ask)
        write_page(Path(directory), findings)
    return Report(place / "index.html", place / "tables", place / "report.json", summary)


def checked_place(out: str | os.PathLike[str], plan: ReportPlan) -> Path:
    """Return the directory that a report goes to, and check that it can be one.

    Raises
    ------
    ConfigError
        It lies inside the store, or on no disk.
    """
    if is_remote(str(out)):
        raise ConfigError(
            f"{out} is not on a disk",
            key="out",
            hint="write the report to a directory, and copy that",
        )
    place = Path(local_path(str(out)))
    for store, _ in plan.stores:
        root = "" if is_remote(store.location) else local_path(store.location)
        if root and place.resolve().is_relative_to(Path(root).resolve()):
            raise ConfigError(
                f"{place} lies inside the store {store.location}, which a report leaves as it is",
                key="out",
                value=str(out),
                hint="name a directory elsewhere",
            )
    return place


def write_page(directory: Path, findings: dict[str, Any]) -> None:
    """Write page and JSON beside the tables, and sync them all."""
    text = json.dumps(findings, ensure_ascii=True)
    (directory / "report.json").write_text(text, encoding="utf-8")
    # Halves of surrogate pairs, which no topic of a sane store has, are not UTF-8.
    page = directory / "index.html"
    page.write_text(report_page(findings), encoding="utf-8", errors="backslashreplace")
    for root, _, names in os.walk(directory):
        for name in names:
            sync_path(Path(root, name))


def _aggregated(rows: DataFrame, partition_count: int) -> DataFrame:
    """Return one row for each combination of keys."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - needs PySpark

    joined = [getattr(f, function)(name).alias(name) for name, function in MEASURES.items()]
    return rows.repartition(partition_count, *KEYS).groupBy(*KEYS).agg(*joined)


def _ordered(rows: DataFrame, order: tuple[str, ...]) -> DataFrame:
    """Return rows in one file's worth, in order."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    columns = [f.desc(one[1:]) if one.startswith("-") else f.asc(one) for one in order]
    return rows.coalesce(1).sortWithinPartitions(*columns)


@contextmanager
def _readable_times(spark: SparkSession) -> Iterator[None]:
    """Let times in Parquet be what other readers take for UTC; Spark's own way is older."""
    before = spark.conf.get(_TIMES)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMES, str(before))
