"""Compare batch queues with the records of the log, and build wrong ones again.

Law: a check writes nothing; a repair moves what is wrong to ``repair/`` before anything is made in
its place. Cost: one pass over the log, and 46 bytes of memory per record of a batch topic.

How derived: BatchConsumeQueue of 5.3.1 (spec F9): one entry per record, in the order of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from rocketstore.batch_queue.inner_messages import entry_of
from rocketstore.batch_queue.topics import BatchTopics, file_size
from rocketstore.format.batch_queue_entry import (
    BATCH_ENTRY_SIZE_BYTES,
    decode_batch_entry,
    encode_batch_entry,
)
from rocketstore.message import TRANSACTION_PREPARED
from rocketstore.scan.scanner import scan_window
from rocketstore.storage.audit.store_audit import ReadLogFile, find_places
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import StoreLock, may_have_writer
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.queues.queue_search import batch_topics_in, listed_queues
from rocketstore.storage.recovery.evidence import Evidence
from rocketstore.storage.store import BaseStore
from rocketstore.topic_file import TopicFile
from rocketstore.units import QueueKey
from rocketstore.verification.findings import file_finding, finding
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.verification.findings import Finding

_AGAIN: Final = "repair builds the queue again"


def check_batch_queues(root: Path, config: StoreConfig) -> list[Finding]:
    """Return what is wrong with the batch queues of a store; nothing where it has none.

    What a live writer has not dispatched yet is no fault. `StoreDamagedError`: a topic has queues
    of the other kind.
    """
    layout, sizes = find_places(root, config)
    names = batch_topics_in(layout)
    if not names:
        return []
    is_live = may_have_writer(layout.lock)
    # Read first: a writer adds records before their entries.
    found = dict(_found(layout))
    findings = [finding for _, wrong in found.values() for finding in wrong]
    log = PreadFiles(layout.log_directories, file_size=sizes.commit_log_file_bytes)
    files = [ReadLogFile(file, sizes.commit_log_file_bytes) for file in log.files]
    expected = _expected(files, names)
    first = max(log.min_offset, 0)
    for key in sorted({*found, *expected}):
        entries, _ = found.get(key, ([], []))
        there = [one for one in entries if decode_batch_entry(one).physical_offset >= first]
        wanted = expected.get(key, [])
        pairs = enumerate(zip(there, wanted, strict=False))
        shorter = min(len(there), len(wanted))
        same = next((place for place, (one, other) in pairs if one != other), shorter)
        if there == wanted or (is_live and same == shorter):
            continue
        kind = "queue-wrong"
        if same == len(there):
            kind = "queue-missing"
        elif same == len(wanted):
            kind = "queue-beyond-log"
        entry = decode_batch_entry((there if same == len(wanted) else wanted)[same])
        findings.append(
            finding(
                kind,
                f"{layout.batch_consume_queue.name}/{key.topic}/{key.queue_id}",
                f"{len(there)} entries of {len(wanted)} records, of which the first {same} agree",
                action=_AGAIN,
                topic=key.topic,
                queue_id=key.queue_id,
                queue_offset=entry.base_offset,
                physical_offset=entry.physical_offset,
            )
        )
    return findings


def _found(layout: StoreLayout) -> Iterator[tuple[QueueKey, tuple[list[bytes], list[Finding]]]]:
    """Yield each queue's entries as they stand there, and what is wrong with its files."""
    size = BATCH_ENTRY_SIZE_BYTES
    for key in listed_queues(layout.batch_consume_queue):
        files = PreadFiles((layout.batch_consume_queue / key.topic / str(key.queue_id),))
        wrong = [
            file_finding(
                "queue", one.problem.kind, str(one.path.relative_to(layout.root)), one.expected,
                one.found, **key._asdict(),
            )
            for one in files.findings
        ]  # fmt: skip
        data = b"".join(files.read(one.base, one.size) or b"" for one in files.files)
        count = -(-len(data.rstrip(b"\0")) // size)
        # The last numbers of an entry may be zeros.
        data = data.ljust(count * size, b"\0")
        yield key, ([data[at * size : (at + 1) * size] for at in range(count)], wrong)


def _expected(files: list[ReadLogFile], names: frozenset[str]) -> dict[QueueKey, list[bytes]]:
    """Return the entries that the records of a log call for, as dispatch enters them."""
    numbers, entries = QueueNumbers(), dict[QueueKey, list[bytes]]()
    stops: dict[QueueKey, int] = {}
    for file in files:
        for batch in scan_window(file, base=file.base, size=file.size):
            columns = batch.columns
            queues = numbers.of(columns)
            is_batch = np.array([one.name in names for one in numbers.queues] + [False])
            is_batch = is_batch[queues] & (columns.sys_flag & TRANSACTION_PREPARED == 0)
            for number in np.flatnonzero(is_batch).tolist():
                key = numbers.key(int(queues[number]))
                entry = entry_of(columns, number)
                if entry is not None and entry.base_offset >= stops.get(key, 0):
                    stops[key] = entry.stop_offset
                    entries.setdefault(key, []).append(encode_batch_entry(entry))
    return entries


def repair_batch_queues(
    root: Path, config: StoreConfig, *, now_ms: int, dry_run: bool = False, disk: Disk | None = None
) -> tuple[list[Finding], list[str]]:
    """Build the queues of topics again in which something is wrong; return what, and what was done.

    Of the store itself nothing else may be wrong any more: `repair_store` comes first.
    """
    findings = check_batch_queues(root, config)
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
