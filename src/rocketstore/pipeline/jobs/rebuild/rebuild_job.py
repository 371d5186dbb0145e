"""Rebuild the queues and the index of a store from its CommitLog, spread over Spark's workers.

`log_blocks` turns the log into rows, which Spark keeps on the executors' disks, so the log is read
once. The driver decides from their facts what is log; Spark shuffles blocks to one
task per queue or index file (`rebuilt_files`); the driver checks what was written and puts it in
the place of the old (`storage.recovery.replacement`), or publishes it in a new one. See
``docs/guide/spark-rebuild.md``.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from rocketstore.arguments import checked
from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError, StoreDamagedError
from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.audit.audit_plan import log_cuts
from rocketstore.pipeline.jobs.execution import (
    aggregated,
    arrow_frame,
    map_batches,
    map_tasks,
    plain_failure,
)
from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.rebuild import log_blocks, rebuilt_files
from rocketstore.pipeline.jobs.rebuild.log_blocks import FACTS_TARGET, INDEX_TARGET, QUEUE_TARGET
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.pipeline.planning import MOST_TASKS
from rocketstore.places.location import is_remote
from rocketstore.places.log_files import known_log_end
from rocketstore.places.log_verdict import judged_log
from rocketstore.places.store_listing import StoreListing, batch_topics_of, list_store
from rocketstore.rules import runs
from rocketstore.rules.files import FileProblem, lost_log
from rocketstore.rules.findings import Reported
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.rules.log_rules import Damaged, LogView
from rocketstore.storage.recovery import replacement
from rocketstore.units import MiB, system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from rocketstore.pipeline.jobs.rebuild.log_blocks import Piece, ScanFacts, ScanTask
    from rocketstore.pipeline.jobs.rebuild.rebuilt_files import FileWriting

_PARTITION_BYTES: Final = 32 * MiB
PART_ENTRIES: Final = 1 << 24
"""Of a queue that several writers make: 320 MiB. A shorter queue has one writer."""

_PARTITIONS_MIN: Final = 8
"""Of the shuffle: how many writers there are, each with some of the targets."""

EMPTY_BLOCK: Final = {"piece": -1, "ordinal": 0, "first": 0, "count": 0, "crc": 0}
"""Values of the empty block that comes first for a target."""


class RebuildReport(Reported, frozen=True):
    """Outcome of a rebuild.

    Attributes
    ----------
    damage
        Bytes before the log's end that are no record, missing files included.
    refused_count
        Records without an entry because another one has the place, or because topic, queue id or
        queue offset cannot be true.
    kept_places
        Places of each queue whose records are gone, by topic and queue id: numbers that were given
        out, and are not given again.
    gone_queues
        Queues that had entries before and have no record left in the log.
    kept
        Where the old queues and index are, relative to the store; None when nothing was replaced.
    """

    store: str
    target: str
    record_count: int
    entry_count: int
    refused_count: int
    queue_count: int
    index_item_count: int
    log_end: int
    damage: list[Damaged]
    kept_places: dict[str, int]
    gone_queues: list[str]
    kept: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        damage = [msgspec.structs.asdict(one) for one in self.damage]
        return super().to_dict() | {"damage": damage, "seconds": round(self.seconds, 3)}


@checked
def rebuild(
    spark: SparkSession, store: str | Path, *, target: str | Path | None = None,
    config: StoreConfig | None = None, max_split_bytes: int = DEFAULT_SPLIT_BYTES,
) -> RebuildReport:  # fmt: skip
    """Make the queues and the index of a store again from its CommitLog.

    Parameters
    ----------
    target
        A place where there is nothing yet: ``consumequeue`` and ``index`` are made there, and the
        store stays as it is. None puts them in the place of the old ones, which are kept in
        ``repair/``; an object store has no operation for that.

    Raises
    ------
    StoreLockedError
        A writer has the store, here or elsewhere.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10); or the files written are
        not those expected.
    ConfigError
        The store is on an object store, and no target is given.
    """
    began, now_ms = time.perf_counter(), system_clock_ms()
    config, kept = StoreConfig.of(config), None
    location = list_store(str(store), config).location  # only a store gets a lock
    if target is None and is_remote(location):
        raise ConfigError(
            f"{location} is on an object store, where nothing can be replaced in one step",
            key="target",
            hint="name a prefix where there is nothing yet: target=…, --to …",
        )
    build = partial(_build, spark, str(store), config, max_split_bytes, now_ms)
    with ExitStack() as stack:
        if not is_remote(location):  # an object store has no lock, and is only read
            lock = replacement.locked(Path(location), config, only_reads=target is not None)
            stack.enter_context(lock)
        if target is not None:
            report = build(stack.enter_context(published(str(target))))
        else:
            staging = stack.enter_context(replacement.staged(Path(location)))
            report = build(str(staging))
            kept = replacement.commit(Path(location), staging, now_ms=now_ms)
    return msgspec.structs.replace(
        report,
        target=location if target is None else str(target),
        kept=kept,
        seconds=time.perf_counter() - began,
    )


def make_queues(spark: SparkSession, store: str, config: StoreConfig) -> RebuildReport:
    """Make queues and index of a new store that has only a log, in their place."""
    now_ms = system_clock_ms()
    return _build(spark, store, config, DEFAULT_SPLIT_BYTES, now_ms, store)


def _build(
    spark: SparkSession,
    store: str,
    config: StoreConfig,
    max_split_bytes: int,
    now_ms: int,
    directory: str,
) -> RebuildReport:
    """Make new queues and index below a directory; nothing else is written."""
    places = list_store(store, config)
    old = sorted(str(key) for key, row in places.queues.items() if row.files)
    _refuse_log(places, had_log=bool(old or known_log_end(places.location)))
    common = config, batch_topics_of(places), now_ms + CLOCK_TOLERANCE_MS
    tasks = [log_blocks.ScanTask(*common, cuts) for cuts in log_cuts(places, max_split_bytes)]
    with closing(LogRows(spark, tasks)) as rows:
        facts = rows.facts()
        stretches = (stretch for found, _ in facts for stretch in found)
        view, left = judged_log(places, stretches, rows.runs, now_ms)
        pieces = [one for _, found in facts for one in found if not runs.holds(left, one.start)]
        pieces.sort(key=lambda one: one.start)
        whole_files = max(1, PART_ENTRIES // places.sizes.entries_per_file)
        writing = rebuilt_files.FileWriting(
            places.location,
            directory,
            places.sizes,
            view.bounds(),
            whole_files * places.sizes.entries_per_file,
        )
        if not is_remote(directory):
            made = [rebuilt_files.ATTEMPTS, CONSUME_QUEUE_DIRECTORY]
            for name in [*made, INDEX_DIRECTORY] if config.message_index_enable else made:
                Path(directory, name).mkdir()
        written = rows.write(pieces, old, writing).to_pylist()
    _check_counts(written, pieces)
    rebuilt_files.take_over(directory, written, places.sizes)
    return _report(places.location, old, written, pieces, view)


def _refuse_log(places: StoreListing, *, had_log: bool) -> None:
    """Raise where queues made from the files of the log would lose messages that are there."""
    if had_log and not places.log.files:
        raise lost_log(places.location, StoreDamagedError)
    for one in places.log.problems:
        if one.problem in {FileProblem.DUPLICATE, FileProblem.MISPLACED}:
            raise StoreDamagedError(
                f"{one.path} is {one.problem.kind}: expected {one.expected}, found {one.found}",
                hint="keep the file that belongs to the log, and move the other one away",
            )


def _check_counts(written: list[dict[str, Any]], pieces: Sequence[Piece]) -> None:
    """Raise where writers got other entries than the scan had found."""
    found = [0, 0]
    for row in written:
        found[row["target"].startswith(INDEX_TARGET)] += row["count"] + row["refused"]
    expected = [sum(one.entry_count for one in pieces), sum(one.item_count for one in pieces)]
    if found != expected:
        raise StoreDamagedError(
            f"Spark's shuffle brought {found[0]} entries and {found[1]} index items to the "
            f"writers: expected {expected[0]} and {expected[1]}",
            hint="nothing of this run counts; check the executors' disks, and run it again",
        )


def _report(
    location: str,
    old: Sequence[str],
    written: list[dict[str, Any]],
    pieces: Sequence[Piece],
    view: LogView,
) -> RebuildReport:
    of_queues = [row for row in written if row["target"].startswith(QUEUE_TARGET)]
    made, kept = (
        {rebuilt_files.queue_of(row["target"]): row[what] for row in of_queues if row[what]}
        for what in ("files", "kept")
    )
    damage = [one for one in view.damage if one.start < view.end]
    for start, stop in view.holes:
        if start < view.end:
            evidence = f"no file for physical offsets [{start}, {stop})"
            damage.append(Damaged(start, stop, "missing file", evidence))
    return RebuildReport(
        location,
        location,
        sum(one.record_count for one in view.kept),
        sum(row["count"] for row in of_queues),
        sum(row["refused"] for row in written) + sum(one.refused_count for one in pieces),
        len(made),
        sum(one.item_count for one in pieces),
        view.end,
        sorted(damage, key=lambda one: one.start),
        dict(sorted(kept.items())),
        [name for name in old if name not in made],
        None,
        0.0,
    )


# --- Spark --------------------------------------------------------------------------------------


class LogRows:
    """The rows of a log, held by Spark; a failed executor's are made again from the log."""

    def __init__(self, spark: SparkSession, tasks: Sequence[ScanTask]) -> None:
        from pyspark import StorageLevel  # noqa: PLC0415 - needs PySpark

        self._spark = spark
        rows = map_tasks(spark, tasks, log_blocks.scan_log, log_blocks.ROW_SCHEMA)
        self._rows = rows.persist(StorageLevel.DISK_ONLY)

    def close(self) -> None:
        """Let go of them."""
        with suppress(Exception):  # where Spark was stopped, they are gone
            self._rows.unpersist()

    def facts(self) -> list[ScanFacts]:
        """Return the facts of each task; the log is read during this call."""
        rows = self._rows.where(f"target = X'{FACTS_TARGET.hex()}'").select("data")
        return [
            msgspec.msgpack.decode(one.as_buffer(), type=log_blocks.ScanFacts)
            for one in _collected(rows).column("data")
        ]

    def runs(self, start: int, stop: int) -> pa.Table:
        """Return target, piece, first and count of entries of pieces that begin in a range."""
        is_entry = f"startswith(target, X'{QUEUE_TARGET.hex()}')"
        rows = self._rows.where(f"{is_entry} AND piece >= {start} AND piece < {stop}")
        rows = rows.sort("piece", "ordinal")
        return _collected(rows.select("target", "piece", "first", "count"))

    def write(self, pieces: Sequence[Piece], old: Sequence[str], writing: FileWriting) -> pa.Table:
        """Let `writing` have the blocks of each target, in the order of the log; return its rows.

        Each of the `old` queues gets an empty block first, whether or not it has any other.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415 - needs PySpark

        is_item = f"target = X'{INDEX_TARGET.hex()}'"
        kept = self._rows.where(f"target <> X'{FACTS_TARGET.hex()}' AND count >= 0")
        numbered = arrow_frame(self._spark, numbered_pieces(pieces))
        kept = kept.join(f.broadcast(numbered), "piece")
        names = pa.array([QUEUE_TARGET + os.fsencode(name) for name in old], pa.binary())
        whole = arrow_frame(self._spark, pa.table({"target": names}))
        count, size = sum(one.entry_count + one.item_count for one in pieces), writing.part_entries
        if count > size:
            long = f.broadcast(_long_queues(kept, size))
            kept, whole = kept.join(long, "target", "left"), whole.join(long, "target", "left_anti")
        else:
            kept = kept.withColumn("past", f.lit(None))
        # A block at the edge of two files of the index, or of two parts, goes to both.
        number = f"IF({is_item}, before + first, first)"
        room = f"IF({is_item}, {rebuilt_files.items_per_file(writing.sizes)}, {size})"
        places = f"sequence(first div {room}, (first + count - 1) div {room})"
        in_place = "concat(target, X'00', encode(string(at), 'UTF-8'), X'00', IF("
        in_place += f"(at + 1) * {size} < past, X'', encode('last', 'UTF-8')))"
        blocks = (
            kept.withColumn("first", f.expr(number))
            .withColumn("at", f.expr(f"explode(IF({is_item} OR past > 0, {places}, array(0L)))"))
            .selectExpr(
                f"CASE WHEN {is_item} THEN concat(target, encode(string(at), 'UTF-8')) "
                f"WHEN past > 0 THEN {in_place} ELSE target END AS target",
                *("first", "piece", "ordinal", "count", "data", "crc"),
            )
        )
        empty = [f"{number}L AS {name}" for name, number in EMPTY_BLOCK.items()]
        blocks = blocks.unionByName(whole.selectExpr("target", *empty, "X'' AS data"))
        partitions = max(_PARTITIONS_MIN, count * ENTRY_SIZE_BYTES // _PARTITION_BYTES)
        ordered = blocks.repartition(min(MOST_TASKS, partitions), "target")
        ordered = ordered.sortWithinPartitions("target", "piece", "ordinal")
        return _collected(map_batches(ordered, writing.write, rebuilt_files.WRITTEN_SCHEMA))


def _long_queues(kept: DataFrame, part_entries: int) -> DataFrame:
    """Return target, and one past the last number, of queues of more than one part.

    In these each record states one number more than the one before it.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - needs PySpark

    entries = kept.where(f"startswith(target, X'{QUEUE_TARGET.hex()}')")
    sums = aggregated(entries, ["target"], sum="sum(count)")
    before = "lag(first + count) OVER (PARTITION BY target ORDER BY piece, ordinal)"
    numbers = entries.join(f.broadcast(sums.where(f"sum > {part_entries}")), "target").selectExpr(
        "target", "first + count AS past", f"coalesce({before}, first) = first AS is_next"
    )
    ends = aggregated(numbers, ["target"], past="max(past)", goes_on="bool_and(is_next)")
    return ends.where("goes_on").drop("goes_on")


def numbered_pieces(pieces: Sequence[Piece]) -> pa.Table:
    """Return where each kept piece begins, and how many index items are before it."""
    before = [0, *itertools.accumulate(one.item_count for one in pieces)][: len(pieces)]
    starts = [one.start for one in pieces]
    return pa.table({"piece": pa.array(starts, pa.int64()), "before": pa.array(before, pa.int64())})


def _collected(frame: DataFrame) -> pa.Table:
    with plain_failure():
        return frame.toArrow()
