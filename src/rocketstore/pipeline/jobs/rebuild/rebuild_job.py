"""Rebuild the queues and the index of a store from its CommitLog, spread over Spark's workers.

`log_scan` turns the log into rows, which Spark keeps (`log_rows`); the driver decides from their
facts what is log (`log_verdict`); Spark shuffles blocks to one task per queue or index file
(`rebuilt_files`); the driver checks what was written and puts it in the place of the old
(`rebuild_commit`), or publishes it in a new one. See ``docs/guide/spark-rebuild.md``.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError, StoreError
from rocketstore.format.markers import (
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import (
    ObjectStore,
    files_at,
    is_remote,
    joined,
    last_name,
    local_path,
)
from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.rebuild import rebuild_commit
from rocketstore.pipeline.jobs.rebuild.log_rows import KeptPieces, LogRows
from rocketstore.pipeline.jobs.rebuild.log_scan import QUEUE_TARGET, ScanTask
from rocketstore.pipeline.jobs.rebuild.log_verdict import CLOCK_MARGIN_MS, judge
from rocketstore.pipeline.jobs.rebuild.rebuilt_files import (
    ATTEMPTS,
    WRITTEN_SCHEMA,
    FileWriting,
    LogRanges,
    index_names,
)
from rocketstore.pipeline.jobs.rebuild.settings import learn_settings
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES, parse_options
from rocketstore.pipeline.planning import plan_log
from rocketstore.pipeline.stores import (
    REBUILD_DIRECTORY,
    StorePlace,
    configured_log,
    list_segments,
    log_option,
    store_with_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.rebuild.log_scan import Broken
    from rocketstore.pipeline.jobs.rebuild.log_verdict import Verdict
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings


class RebuildReport(NamedTuple):
    """What a rebuild found and made.

    Attributes
    ----------
    target
        Where the new queues and index are: the store, unless another place was asked for.
    refused_count
        Records without an entry because another one has the place, or because topic, queue id or
        queue offset cannot be true.
    damage
        Damaged ranges inside the log; records are missing there.
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
    damage: list[Broken]
    kept_places: dict[str, int]
    gone_queues: list[str]
    kept: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "store": self.store,
            "target": self.target,
            "recordCount": self.record_count,
            "entryCount": self.entry_count,
            "refusedCount": self.refused_count,
            "queueCount": self.queue_count,
            "indexItemCount": self.index_item_count,
            "logEnd": self.log_end,
            "damage": [msgspec.structs.asdict(one) for one in self.damage],
            "keptPlaces": self.kept_places,
            "goneQueues": self.gone_queues,
            "kept": self.kept,
            "seconds": round(self.seconds, 3),
        }


def rebuild(
    spark: SparkSession,
    store: str | Path,
    *,
    target: str | Path | None = None,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
) -> RebuildReport:
    """Make the queues and the index of a store again from its CommitLog.

    Parameters
    ----------
    spark
        The session, classic or Connect; its workers see the store under the same path.
    store
        Directory of a store that nobody has open; or URI of one on an object store.
    target
        A place where there is nothing yet: ``consumequeue`` and ``index`` are made there, and the
        store stays as it is. None puts them in the place of the old ones, which are kept in
        ``repair/``; an object store has no step that could do that.
    config
        Settings that the files do not tell: delay levels, ``enableMultiDispatch``, directories of
        the log.
    max_split_bytes
        Most bytes of the log that one task reads.

    Returns
    -------
    RebuildReport
        What was found and made.

    Raises
    ------
    StoreLockedError
        A writer has the store, here or elsewhere.
    NotAStoreError
        There is no CommitLog.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10); or what was written is not
        what was to be written.
    ConfigError
        The store is on an object store, and no target is given.
    """
    began, now_ms = time.perf_counter(), time.time_ns() // 1_000_000
    config = config or StoreConfig()
    place = _place(str(store), config)
    if target is not None:
        with _closed(place), published(str(target)) as directory:
            report = _build(spark, place, directory, config, max_split_bytes, now_ms)
        return report._replace(target=str(target), seconds=time.perf_counter() - began)
    if is_remote(place.location):
        raise ConfigError(
            f"{place.location} is on an object store, where nothing can be replaced in one step",
            key="target",
            hint="name a prefix where there is nothing yet: target=…, --to …",
        )
    root = Path(place.location)
    with _closed(place):
        staging = root / REBUILD_DIRECTORY / uuid.uuid4().hex
        try:
            staging.mkdir(parents=True)
            report = _build(spark, place, str(staging), config, max_split_bytes, now_ms)
            made = (CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY)
            names = [name for name in made if (staging / name).is_dir()]
            kept = rebuild_commit.commit(root, staging, names, now_ms=now_ms)
        except Exception:
            rebuild_commit.finish_interrupted(root)
            raise
    return report._replace(kept=kept, seconds=time.perf_counter() - began)


def make_queues(spark: SparkSession, store: str, config: StoreConfig) -> RebuildReport:
    """Make queues and index of a store that has a log only, and that nobody has seen yet.

    On a disk as on an object store they are written where they belong.
    """
    now_ms = time.time_ns() // 1_000_000
    return _build(spark, _place(store, config), store, config, DEFAULT_SPLIT_BYTES, now_ms)


def _place(store: str, config: StoreConfig) -> StorePlace:
    """Return a store, and where its log lies."""
    directories = configured_log(store, config)
    if directories:
        return store_with_log(store, directories)
    location = store if is_remote(store) else local_path(store)
    files, root = files_at(location)
    is_there = Path(root, COMMIT_LOG_DIRECTORY).is_dir() if not is_remote(store) else False
    if not is_there and not files.list(f"{root}/{COMMIT_LOG_DIRECTORY}"):
        raise NotAStoreError(
            f"{store} is no store: it has no commitlog directory",
            hint="give the directory that holds commitlog, consumequeue and index; for a log that "
            "lies elsewhere set storePathCommitLog",
        )
    return StorePlace(location, last_name(location), is_open=False)


@contextmanager
def _closed(place: StorePlace) -> Iterator[None]:
    """Keep writers away while the log is read; an object store has no lock, and is only read."""
    if is_remote(place.location):
        yield
        return
    root = Path(place.location)
    with rebuild_commit.locked(root):
        rebuild_commit.finish_interrupted(root)
        yield


def _build(
    spark: SparkSession,
    place: StorePlace,
    directory: str,
    config: StoreConfig,
    max_split_bytes: int,
    now_ms: int,
) -> RebuildReport:
    """Make new queues and index below a directory; nothing else is written."""
    settings = learn_settings(place.location, config)
    old, segments = _queue_names(place.location), list_segments(place)
    if old and not segments:
        raise StoreDamagedError(
            f"{place.location} has no CommitLog file, but its queues have entries",
            hint="bring the files back, or move consumequeue away to begin an empty store",
        )
    tasks = [
        ScanTask(splits, settings, now_ms + CLOCK_MARGIN_MS)
        for splits in _splits(place, max_split_bytes)
    ]
    rows = LogRows(spark, tasks)
    try:
        verdict = judge(place.location, segments, rows.facts(), rows.runs, now_ms=now_ms)
        kept = _kept_pieces(verdict, settings)
        log = LogRanges(
            segments[0].base if segments else 0,
            verdict.end,
            [(one.start, one.stop) for one in verdict.damage],
            verdict.leftovers,
        )
        writing = FileWriting(place.location, directory, settings, log)
        _make_directories(directory, settings)
        others = [QUEUE_TARGET + os.fsencode(name) for name in sorted(old)]
        written = rows.write(kept, others, writing.write, WRITTEN_SCHEMA).to_pylist()
    finally:
        rows.close()
    _check_counts(written, verdict)
    _take_over(directory, written, settings)
    queues = {_queue_of(row): row for row in written if row["target"].startswith(QUEUE_TARGET)}
    return RebuildReport(
        place.location,
        place.location,
        sum(one.record_count for one in verdict.kept),
        sum(row["entries"] for row in written),
        sum(row["refused"] for row in written) + sum(one.refused_count for one in verdict.kept),
        sum(1 for row in queues.values() if row["files"]),
        sum(row["items"] for row in written),
        verdict.end,
        verdict.damage,
        {name: row["kept"] for name, row in sorted(queues.items()) if row["kept"]},
        sorted(name for name in old if not queues[name]["files"]),
        None,
        0.0,
    )


def _splits(place: StorePlace, max_split_bytes: int) -> list[tuple[Any, ...]]:
    options = parse_options(
        {
            "paths": json.dumps([place.location]),
            "table": "commitlog",
            "maxSplitBytes": str(max_split_bytes),
            "failOnDataLoss": "false",
        }
        | log_option(place.log_directories)
    )
    return list(plan_log(options))


def _queue_names(location: str) -> set[str]:
    """Return the queues that have files, as topic and queue id."""
    files, root = files_at(location)
    return {
        f"{topic.name}/{queue.name}"
        for topic in files.list(f"{root}/{CONSUME_QUEUE_DIRECTORY}")
        if topic.is_directory
        for queue in files.list(topic.path)
        if queue.is_directory and files.list(queue.path)
    }


def _kept_pieces(verdict: Verdict, settings: RebuildSettings) -> KeptPieces:
    counts = [one.item_count for one in verdict.kept]
    before = [0, *itertools.accumulate(counts)][: len(counts)]
    size = ENTRY_SIZE_BYTES * (sum(counts) + sum(one.entry_count for one in verdict.kept))
    starts = [one.start for one in verdict.kept]
    return KeptPieces(starts, before, size, settings.items_per_file)


# --- what was written ---------------------------------------------------------------------------


def _make_directories(directory: str, settings: RebuildSettings) -> None:
    if is_remote(directory):
        return
    names = [CONSUME_QUEUE_DIRECTORY, ATTEMPTS, *([INDEX_DIRECTORY] if settings.has_index else [])]
    for name in names:
        Path(directory, name).mkdir()


def _queue_of(row: Mapping[str, Any]) -> str:
    return os.fsdecode(row["target"][len(QUEUE_TARGET) :])


def _check_counts(written: list[dict[str, Any]], verdict: Verdict) -> None:
    """Compare what writers had with what the scan had found."""
    entries = sum(row["entries"] + row["refused"] for row in written)
    items = sum(row["items"] for row in written)
    wanted = (
        sum(one.entry_count for one in verdict.kept),
        sum(one.item_count for one in verdict.kept),
    )
    if (entries, items) != wanted:
        raise StoreDamagedError(
            f"Spark's shuffle brought {entries} entries and {items} index items to the writers: "
            f"expected {wanted[0]} and {wanted[1]}",
            hint="nothing was replaced; check the executors' disks, and run the rebuild again",
        )


def _take_over(directory: str, written: list[dict[str, Any]], settings: RebuildSettings) -> None:
    """Check the files of every target, give index files their names, and put all in its place.

    Raises
    ------
    StoreError
        A file is missing or not whole.
    """
    index = sorted((row for row in written if row["items"]), key=lambda row: int(row["target"][1:]))
    names = index_names(row["first_ms"] for row in index)
    numbers = [row["target"][1:].decode() for row in index]
    if is_remote(directory):
        _take_over_objects(directory, written, settings, dict(zip(numbers, names, strict=True)))
        return
    root = Path(directory)
    for row in written:
        attempt = root / ATTEMPTS / row["attempt"]
        is_queue = row["target"].startswith(QUEUE_TARGET)
        name = f"{CONSUME_QUEUE_DIRECTORY}/{_queue_of(row)}" if is_queue else INDEX_DIRECTORY
        sizes = {one.name: one.stat().st_size for one in attempt.iterdir()}
        _check_files(f"{attempt}, for {name},", sizes, row["files"], settings, is_queue=is_queue)
        if is_queue and sizes:
            (root / name).parent.mkdir(exist_ok=True)
            attempt.rename(root / name)
    for row, number, name in zip(index, numbers, names, strict=True):
        (root / ATTEMPTS / row["attempt"] / number).rename(root / INDEX_DIRECTORY / name)
    shutil.rmtree(root / ATTEMPTS)


def _take_over_objects(
    directory: str, written: list[dict[str, Any]], settings: RebuildSettings, names: dict[str, str]
) -> None:
    objects = ObjectStore(directory)
    numbered = f"{objects.root}/{ATTEMPTS}"
    for place, is_queue in ((CONSUME_QUEUE_DIRECTORY, True), (ATTEMPTS, False)):
        rows = [row for row in written if row["target"].startswith(QUEUE_TARGET) == is_queue]
        sizes = objects.sizes(f"{objects.root}/{place}")
        count = sum(row["files"] for row in rows)
        _check_files(joined(directory, place), sizes, count, settings, is_queue=is_queue)
    index = f"{objects.root}/{INDEX_DIRECTORY}"
    objects.copy_all((f"{numbered}/{one}", f"{index}/{name}") for one, name in names.items())
    objects.remove_tree(numbered)


def _check_files(
    place: str, sizes: Mapping[str, int], count: int, settings: RebuildSettings, *, is_queue: bool
) -> None:
    expected = settings.queue_file_bytes if is_queue else settings.layout.size_bytes
    if len(sizes) != count:
        raise StoreError(
            f"{place} has {len(sizes)} files: expected {count}",
            hint="nothing was replaced; see to it that nobody else writes there, and run it again",
        )
    for name, size in sizes.items():
        if size != expected:
            raise StoreError(
                f"{place} has {name} with {size} bytes: expected {expected}",
                hint="a write was cut off; nothing was replaced: run the rebuild again",
            )
