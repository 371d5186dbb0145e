"""The job: tasks count in groups, Spark puts them together, and tables and a page are made of them.

One aggregation and one write to Parquet are all that Spark does, however many tables there are.
What it wrote is read back by DuckDB (`report_tables`) in streams: an executor that is lost later
loses nothing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rocketstore.arguments import checked
from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.errors import FormatError, StoreError
from rocketstore.format.metadata_json import DELAY_OFFSETS_FILE, DelayOffsets
from rocketstore.pipeline.jobs.execution import aggregated, map_tasks, plain_failure
from rocketstore.pipeline.jobs.publishing import (
    local_place,
    published,
    refuse_inside_store,
    write_parquet,
)
from rocketstore.pipeline.jobs.report import partial_groups
from rocketstore.pipeline.jobs.report.key_sketch import add_packed, most_frequent, new_sketch
from rocketstore.pipeline.jobs.report.partial_groups import ReportPlan
from rocketstore.pipeline.jobs.report.report_page import findings_of, report_page
from rocketstore.pipeline.jobs.report.report_tables import TABLES, VIEWS
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.pipeline.planning import plan_log
from rocketstore.pipeline.queues import job_options, named_stores
from rocketstore.pipeline.waiting_tables import plan_transactions
from rocketstore.places.files import sync_all
from rocketstore.places.log_files import Segment, segments_of_job, store_timestamp_ms
from rocketstore.places.small_files import read_metadata
from rocketstore.units import MiB, system_clock_ms

if TYPE_CHECKING:
    import os

    from pyspark.sql import SparkSession

    from rocketstore.places.stores import StorePlace

TASKS_OF_PARTITION, MOST_PARTITIONS = 256, 64
"""Of the groups: some thousand rows of each task, which writes a file for each partition. Spark's
200 would cost more than the counting."""

SHORT_MS: Final = 600_000  # a store of a shorter time is counted, and drawn, by the second
KEPT_BYTES = 16 * MiB  # of groups: these are read once, and larger ones by each table
ENGINE: Final[dict[str, Any]] = {"memory_limit": "64MB", "threads": "1"}
"""Of DuckDB: what does not fit goes to the disk of the report, for no more CPU than with 1 GB. Of
100,000 topics two threads do not find enough in it."""

BATCH_ROWS: Final = 4  # of groups, of which each may be a sketch of 1 MiB


class Report(NamedTuple):
    """A report that was written: the HTML page, the directory of Parquet tables, and all as JSON.

    `summary` has the figures that the page begins with: numbers, sizes in bytes, times in ms.
    """

    page: Path
    tables: Path
    json: Path
    summary: dict[str, Any]


@checked
def report(
    spark: SparkSession, store: str | os.PathLike[str], out: str | os.PathLike[str], *,
    config: StoreConfig | None = None, max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> Report:  # fmt: skip
    """Report what a store holds: traffic, sizes, latency, keys, delays, retries, damage.

    Parameters
    ----------
    out
        A directory that does not exist yet, on a disk that Spark's workers share: it gets
        ``index.html``, ``report.json`` and ``tables``. Nothing is written to the store.

    Raises
    ------
    NotAStoreError
        There is no store.
    ConfigError
        `out` lies inside the store, or not on a disk.
    StoreError
        Something cannot be read or written, or is at `out` already.
    """
    return run_report(spark, plan_report(store, out, config, max_split_bytes, now_ms))


def run_report(spark: SparkSession, plan: ReportPlan) -> Report:
    """Count what was planned and write the report."""
    with published(str(plan.place)) as directory:
        with plain_failure():
            counted = map_tasks(spark, plan.tasks, partial_groups.count_task, partial_groups.SCHEMA)
            keys, joins = partial_groups.KEYS, partial_groups.MEASURES.items()
            joined = {name: f"{function}({name})" for name, function in joins}
            count = min(MOST_PARTITIONS, 1 + len(plan.tasks) // TASKS_OF_PARTITION)
            groups = aggregated(counted.repartition(count, *keys), keys, **joined)
            join, schema = partial_groups.join_sketches, partial_groups.SCHEMA
            write_parquet(groups, join, schema, Path(directory, "groups"))
        return write_report(plan, Path(directory))


def plan_report(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> ReportPlan:
    """Check the place of a report, and return what it has to read; see `report`."""
    options = job_options(str(store), config, max_split_bytes)
    places = named_stores(options)
    out = local_place(str(out))
    refuse_inside_store(str(out), "out")
    stores = [(place, segments_of_job(place)) for place in places]
    now_ms = system_clock_ms() if now_ms is None else now_ms
    delays_ms = parse_delay_levels(StoreConfig.of(config).message_delay_level)
    delivered = {place.broker_name: _delivered(place) for place in places}
    width_ms = _width_ms(stores)
    common = partial_groups.ReportTask((), width_ms, now_ms, delays_ms, delivered)
    tasks = [common._replace(splits=splits) for splits in plan_log(options)]
    skipping = replace(options, damage="skip")
    with contextlib.suppress(FormatError):  # a table that an audit names
        found = plan_transactions(skipping)
        tasks += [common._replace(halves=(halves, skipping)) for halves in found]
    return ReportPlan(out, stores, tasks, common)


def _delivered(place: StorePlace) -> dict[int, int] | None:
    """Return the offset of each level's next message to deliver, None if it is not known."""
    try:
        table = read_metadata(place, DELAY_OFFSETS_FILE, DelayOffsets)
    except FormatError:
        return None
    return table.offset_table if table is not None else None


def _width_ms(stores: list[tuple[StorePlace, list[Segment]]]) -> int:
    """Return the width of the buckets of time, by the first records of the outermost files."""
    outermost = ((place, one) for place, ones in stores for one in (*ones[:1], *ones[-1:]))
    times = (store_timestamp_ms(place.location, segment) for place, segment in outermost)
    known = [time for time in times if time is not None]
    return 1_000 if not known or max(known) - min(known) <= SHORT_MS else 60_000


# --- tables and the page ------------------------------------------------------------------------


def write_report(plan: ReportPlan, directory: Path) -> Report:
    """Make tables, page and JSON from the ``groups`` in a directory, and delete these."""
    known = pa.concat_tables([known_groups(plan), _frequent_keys(directory / "groups")])
    pq.write_table(known, directory / "groups" / "known.parquet")
    (directory / "tables").mkdir()
    try:
        spill = {"temp_directory": str(directory / "groups" / "spill")}
        with duckdb.connect(config=ENGINE | spill) as engine:
            engine.execute("SET default_null_order = 'nulls_first'; SET TimeZone = 'UTC'")
            counted = directory / "groups"
            size = sum(one.stat().st_size for one in counted.glob("*.parquet"))
            kind = "TABLE" if size <= KEPT_BYTES else "VIEW"
            source = _quoted(f"{escape(str(counted))}/*.parquet")
            rows = f"FROM read_parquet({source}) SELECT * EXCLUDE (sketch) WHERE sketch IS NULL"
            engine.execute(f"CREATE {kind} groups AS {rows}; {VIEWS}")
            for name, statement in TABLES.items():
                path = _quoted(str(directory / "tables" / f"{name}.parquet"))
                made = f"CREATE TABLE {name} AS {statement};"  # a file would be opened by each use
                engine.execute(f"{made} COPY {name} TO {path} (FORMAT parquet)")
            findings = findings_of(plan, engine)
    except duckdb.Error as error:
        what = f"the tables of the report cannot be made in {directory}: {error}"
        raise StoreError(what, hint="free disk space or name another place") from error
    shutil.rmtree(directory / "groups")
    (directory / "report.json").write_text(json.dumps(findings, ensure_ascii=True))
    # Halves of surrogate pairs, which no topic of a sane store has, are not UTF-8.
    page = directory / "index.html"
    page.write_text(report_page(findings), encoding="utf-8", errors="backslashreplace")
    sync_all(directory.rglob("*"))
    place, summary = plan.place, findings["summary"]
    return Report(place / "index.html", place / "tables", place / "report.json", summary)


def _frequent_keys(counted: Path) -> pa.Table:
    """Return the groups of keys, of the sketches among the counted ones."""
    whole = new_sketch()
    for path in sorted(counted.glob("*.parquet")):
        for rows in pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=["sketch"]):
            add_packed(whole, rows)
    found, missed = most_frequent(whole)
    found.append({"part": "notes", "name": "keysMissedAtMost", "messages": missed})
    return pa.Table.from_pylist(found, schema=partial_groups.ROWS)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def known_groups(plan: ReportPlan) -> Any:
    """Return the groups that need no counting: every file, and the damage of missing ones.

    For a file, ``least`` is its size and ``bodyBytes`` the one that it should have.
    """
    rows: list[dict[str, Any]] = []
    for place, segments in plan.stores:
        for one in segments:
            of_file = {"brokerName": place.broker_name, "name": one.path, "number": one.base}
            lost = {"damagedRanges": int(one.is_missing), "damagedBytes": one.size * one.is_missing}
            known = {"least": one.size, "bodyBytes": one.file_size, "detail": one.state.value}
            known |= dict.fromkeys(("messages", "bytes", "most", "waiting", "overdue"), 0)
            rows.append({"part": "files"} | of_file | known | lost)
            if one.is_missing:
                reason = {"topic": "missing file", "detail": "its neighbours are there, it is not"}
                rows.append({"part": "damage", "least": 0} | of_file | lost | reason)
    return pa.Table.from_pylist(rows, schema=partial_groups.ROWS)
