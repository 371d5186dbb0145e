"""The demo's second half: the imported flights through every job of the pipeline, on Spark."""

import filecmp
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocketstore import pipeline
from rocketstore.errors import StoreError

PLANES: Final = """
SELECT tags, topic, count(*) AS flights, sum(octet_length(body)) / 1e6 AS megabytes
FROM read_parquet($files, hive_partitioning = true)
GROUP BY ALL ORDER BY flights DESC LIMIT 3
"""
"""For DuckDB over the archive: which carriers leave most often from which airport."""

HOURS: Final = (6, 9, 12, 15, 18, 21)

DELAYS: Final = """
SELECT * FROM (
    SELECT tags AS carrier, flight.hour AS hour, flight.dep_delay AS delay,
           count(*) OVER (PARTITION BY tags) AS flights
    FROM (SELECT tags, from_json(CAST(body AS STRING), 'hour INT, dep_delay INT') AS flight
          FROM flights)
) PIVOT (round(avg(delay), 1) FOR hour IN (6, 9, 12, 15, 18, 21))
ORDER BY flights DESC LIMIT 8
"""
"""Mean departure delay in minutes of the carriers with the most flights, at each of `HOURS`."""


def run_pipeline(store: Path, scratch: Path) -> int:
    """Start Spark and run every job; return the exit code."""
    began = time.perf_counter()
    spark = pipeline.session(quiet=True)
    print(f"\nThe same store on Spark (session started in {time.perf_counter() - began:.1f} s):\n")
    try:
        return run_jobs(spark, store, scratch)
    finally:
        spark.stop()


def run_jobs(spark: Any, store: Path, scratch: Path) -> int:
    """Audit, archive, restore, rebuild, query and report, below `scratch`; return the exit code."""
    status = _audit(spark, store, scratch)
    _archive_and_restore(spark, store, scratch)
    _rebuild(spark, store, scratch)
    _show_lag(spark, store)
    _ask(spark, store)
    _report(spark, store, scratch)
    return status


def _audit(spark: Any, store: Path, scratch: Path) -> int:
    with _timed("audited") as say:
        report = pipeline.audit(spark, store, scratch / "audit")
        counts = report.counts
        found = f"{len(report.findings)} findings" if report.findings else "nothing to find"
        say(
            f"{counts.message_count:,} records, {counts.entry_count:,} queue entries and "
            f"{counts.index_item_count:,} index items against each other: {found}",
            scratch / "audit",
        )
    return report.exit_code


def _archive_and_restore(spark: Any, store: Path, scratch: Path) -> None:
    archive, restored = scratch / "archive", scratch / "restored"
    with _timed("archived") as say:
        kept = pipeline.archive(spark, store, archive)
        size = sum(path.stat().st_size for path in archive.rglob("*") if path.is_file())
        say(
            f"{kept.records:,} records ({kept.record_bytes / 1e6:.0f} MB) as a Delta table "
            f"by day: {size / 1e6:.0f} MB",
            archive,
        )
    _ask_duckdb(archive)
    with _timed("restored") as say:
        pipeline.restore(spark, archive, restored)
        count = _compare(store, restored, "commitlog")
        queues = _compare(store, restored, "consumequeue")
        say(
            f"the {count} files of the CommitLog, and {queues} queue files made from it: identical "
            "byte for byte",
            restored,
        )


def _ask_duckdb(archive: Path) -> None:
    import duckdb
    from deltalake import DeltaTable

    with _timed("asked") as say:
        files = DeltaTable(str(archive / "messages")).file_uris()
        rows = duckdb.execute(PLANES, {"files": files}).fetchall()
        say("DuckDB, which knows nothing of this package, about the archive:", None)
    for carrier, airport, flights, megabytes in rows:
        print(
            f"           {carrier} from {airport}: {flights:,} flights, {megabytes:.1f} MB of JSON"
        )


def _rebuild(spark: Any, store: Path, scratch: Path) -> None:
    restored = scratch / "restored"
    with _timed("rebuilt") as say:
        made = pipeline.rebuild(spark, restored)
        count = _compare(store, restored, "consumequeue")
        say(
            f"{made.entry_count:,} entries and {made.index_item_count:,} index items from the "
            f"restored log alone; the {count} queue files are identical to the first store's",
            restored,
        )


def _show_lag(spark: Any, store: Path) -> None:
    with _timed("lag") as say:
        frame = spark.read.format("rocketstore").option("table", "consumers").load(str(store))
        rows = frame.groupBy("group", "topic").sum("maxOffset", "lag").collect()
        say("how far each consumer group is behind, from the broker's own offsets:", None)
    for group, topic, count, lag in rows:
        print(f"           {group} has {lag:,} of {count:,} messages of {topic} still to read")


def _ask(spark: Any, store: Path) -> None:
    with _timed("asked") as say:
        frame = spark.read.format("rocketstore").option("columns", "tags,body").load(str(store))
        frame.createOrReplaceTempView("flights")
        rows = spark.sql(DELAYS).collect()
        say("in SQL: by how many minutes does each carrier leave late, by hour of the day?", None)
    hours = "".join(f"{f'{hour}:00':>8}" for hour in HOURS)
    print(f"           {'carrier':<8}{'flights':>9}{hours}")
    for row in rows:
        delays = (row[str(hour)] for hour in HOURS)
        cells = "".join(f"{'-' if one is None else f'{one:.1f}':>8}" for one in delays)
        print(f"           {row.carrier:<8}{row.flights:>9,}{cells}")


def _report(spark: Any, store: Path, scratch: Path) -> None:
    with _timed("reported") as say:
        report = pipeline.report(spark, store, scratch / "report")
        say("traffic, sizes, latency, keys and damage as one page", report.page)


@contextmanager
def _timed(what: str) -> Iterator[Callable[[str, Path | None], None]]:
    """Print what was done in a block, how long it took and where it lies."""
    began = time.perf_counter()
    said: list[tuple[str, Path | None]] = []
    yield lambda text, where: said.append((text, where))
    seconds = time.perf_counter() - began
    for text, where in said:
        print(f"{what:<10} {text} ({seconds:.1f} s)")
        if where is not None:
            print(f"           {where}")


def _compare(first: Path, second: Path, part: str) -> int:
    """Return how many files of two stores are the same; raise where one is not."""
    roots = first / part, second / part
    found = ((root, path) for root in roots for path in root.rglob("*") if path.is_file())
    names = {path.relative_to(root) for root, path in found}
    _, different, absent = filecmp.cmpfiles(*roots, names, shallow=False)
    if different or absent:
        name = min(map(str, different + absent))
        raise StoreError(f"{roots[1] / name} is not what {roots[0] / name} is")
    return len(names)
