"""Compare batch queues with the records of the log, and build wrong ones again.

Law: a check writes nothing; a repair moves what is wrong to ``repair/`` before anything is made in
its place. Cost: two passes over the log, one with checksums, and 46 bytes of memory per record of a
batch topic.

How derived: BatchConsumeQueue of 5.3.1 (spec F9): one entry per record, in the order of the log.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from rocketstore.batch_queue.topics import BatchTopics, file_size
from rocketstore.storage.audit.store_audit import ReadLogFile, find_places
from rocketstore.storage.audit.verify import standing_groups
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import StoreLock, may_have_writer
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.queues.queue_search import batch_topics_in, listed_queues
from rocketstore.storage.recovery.evidence import Evidence
from rocketstore.storage.recovery.log_survey import chain_records, survey_log
from rocketstore.storage.store import BaseStore
from rocketstore.topic_file import TopicFile
from rocketstore.units import QueueKey
from rocketstore.verification.batch_entries import (
    entries_called_for,
    queue_bounds,
    queue_finding,
    stored_entries,
)
from rocketstore.verification.findings import file_finding
from rocketstore.verification.queue_numbers import QueueNumbers
from rocketstore.verification.small_files import standing_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.verification.batch_entries import BatchEntryArray
    from rocketstore.verification.findings import Finding


def check_batch_queues(
    root: Path, config: StoreConfig, *, now_ms: int, with_groups: bool = True
) -> list[Finding]:
    """Return what is wrong with the batch queues of a store, and with where groups stand in them.

    What a live writer has not dispatched yet is no fault. `StoreDamagedError`: a topic has queues
    of the other kind.
    """
    layout, sizes = find_places(root, config)
    names = batch_topics_in(layout)
    if not names:
        return []
    is_live = may_have_writer(layout.lock)
    # What consumers had by then, the queues have; and a writer adds records before their entries.
    groups = standing_groups(layout) if with_groups else []
    standing = [one for one in groups if one.topic in names]
    stored = dict(_stored(layout))
    log = PreadFiles(layout.log_directories, file_size=sizes.commit_log_file_bytes)
    called = _called_for(log, names, now_ms)
    findings = [finding for _, wrong in stored.values() for finding in wrong]
    log_min, none = max(log.min_offset, 0), stored_entries(b"")
    entries = {key: stored.get(key, (none, []))[0] for key in sorted({*stored, *called})}
    for key, array in entries.items():
        found = queue_finding(key, array, stored_entries(called[key]), log_min, is_live=is_live)
        findings += [] if found is None else [found]
    bounds = {key: queue_bounds(array, log_min) for key, (array, _) in stored.items()}
    return [*findings, *standing_findings(standing, bounds)]


def _stored(
    layout: StoreLayout,
) -> Iterator[tuple[QueueKey, tuple[BatchEntryArray, list[Finding]]]]:
    """Yield each queue's entries as they stand there, and what is wrong with its files."""
    for key in listed_queues(layout.batch_consume_queue):
        directory = layout.batch_consume_queue / key.topic / str(key.queue_id)
        files = PreadFiles((directory,))
        wrong = [
            file_finding(
                "queue", one.problem.kind, str(one.path.relative_to(layout.root)), one.expected,
                one.found, **key._asdict(),
            )
            for one in files.findings
        ]  # fmt: skip
        data = b"".join(files.read(one.base, one.size) or b"" for one in files.files)
        yield key, (stored_entries(data), wrong)


def _called_for(log: PreadFiles, names: frozenset[str], now_ms: int) -> dict[QueueKey, bytearray]:
    """Return the entries that the records of a log call for, those of leftovers excepted."""
    files = [ReadLogFile(file, log.file_size) for file in log.files]
    survey = survey_log(files, now_ms=now_ms, data_stop=ReadLogFile.data_stop)
    numbers, entries = QueueNumbers(names), defaultdict[QueueKey, bytearray](bytearray)
    for chain in survey.kept:
        (file,) = (one for one in files if one.holds(chain.start))
        for columns in chain_records(file, chain.start, chain.stop):
            for key, entry in entries_called_for(columns, numbers):
                entries[key] += entry
    return entries


def repair_batch_queues(
    root: Path, config: StoreConfig, *, now_ms: int, dry_run: bool = False, disk: Disk | None = None
) -> tuple[list[Finding], list[str]]:
    """Build the queues of topics again in which something is wrong; return what, and what was done.

    Of the store itself nothing else may be wrong any more: `repair_store` comes first.
    """
    # Where a group stands is left to the group.
    findings = check_batch_queues(root, config, now_ms=now_ms, with_groups=False)
    topics = sorted({one.topic for one in findings if one.topic is not None})
    actions = [f"batch queues of {topic}: build them again from the log" for topic in topics]
    if topics and not dry_run:
        layout, sizes = find_places(root, config)
        size = file_size(layout, config, sizes)
        config = msgspec.structs.replace(config, mapped_file_size_batch_queue=size)
        disk = disk or Disk()
        evidence = Evidence(layout, disk, now_ms)
        lock = StoreLock.acquire(layout.lock)
        try:
            for topic in topics:
                _set_aside(layout.batch_consume_queue / topic, evidence.take_file)
        finally:
            lock.release()
        with BaseStore.open(root, config, disk=disk, clock=lambda: now_ms, threads=False) as store:
            file = TopicFile(layout, clock=lambda: now_ms, disk=disk)
            BatchTopics(store, store._parts, file)  # noqa: SLF001 - what a store makes of its parts
    return findings, actions


def _set_aside(directory: Path, take: Callable[[Path], None]) -> None:
    """Move all files of a topic away; without its directory, opening builds its queues."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            take(path)
    if directory.is_dir():
        directory.rmdir()
