"""Compare batch queues with the records of the log, and build wrong ones again.

Law: a check writes nothing; a repair moves what is wrong to ``repair/`` before anything is made in
its place. Cost: a pass over the log, a repair's two more, and 46 bytes of memory per record of a
batch topic.

How derived: BatchConsumeQueue of 5.3.1 (spec F9): one entry per record, in the order of the log.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from rocketstore.batch_queue.topics import BatchTopics, file_size
from rocketstore.storage.audit.store_audit import (
    ReadLogFile,
    find_kinds,
    find_layout,
)
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.files.whole_file import small_files
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.recovery.evidence import Evidence
from rocketstore.storage.recovery.log_survey import chain_records, survey_log
from rocketstore.storage.store import BaseStore
from rocketstore.tables.topics import TopicFile
from rocketstore.units import QueueKey
from rocketstore.verification.batch_entries import (
    UNREACHABLE,
    entries_called_for,
    queue_findings,
    stored_entries,
)
from rocketstore.verification.findings import file_finding
from rocketstore.verification.queue_numbers import QueueNumbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.verification.batch_entries import BatchEntryArray
    from rocketstore.verification.findings import Finding
    from rocketstore.verification.log_rules import LogView


class StoredQueues:
    """The batch queues of a store as they are read, here and now."""

    def __init__(self, layout: StoreLayout, batch_topics: frozenset[str]) -> None:
        self.entries: dict[QueueKey, BatchEntryArray] = {}
        self._batch_topics = batch_topics
        self._file_findings: list[Finding] = []
        for key in listed_queues(layout.batch_consume_queue):
            if key.topic in batch_topics:
                self._read(layout, key)

    def _read(self, layout: StoreLayout, key: QueueKey) -> None:
        directory = layout.batch_consume_queue / key.topic / str(key.queue_id)
        files = PreadFiles((directory,))
        for one in files.findings:
            name = str(one.path.relative_to(layout.root))
            self._file_findings.append(
                file_finding(
                    "queue", one.problem.kind, name, one.expected, one.found, **key._asdict()
                )
            )
        data = b"".join(files.read(one.base, one.size) or b"" for one in files.files)
        self.entries[key] = stored_entries(data)

    def compare(
        self, files: Sequence[ReadLogFile], log: LogView, *, is_live: bool = False,
        dispatched_to: int | None = None,
    ) -> list[Finding]:  # fmt: skip
        """Return what is wrong with them, by the records of the log.

        A writer adds records before their entries: where it `is_live`, the log is read later.
        """
        called = defaultdict[QueueKey, bytearray](bytearray)
        if self._batch_topics:
            numbers = QueueNumbers(self._batch_topics)
            for chain in log.kept:
                (file,) = (one for one in files if one.holds(chain.start))
                for columns in chain_records(file, chain.start, chain.stop):
                    for key, entry in entries_called_for(columns, numbers):
                        called[key] += entry
        found, none = self._file_findings.copy(), stored_entries(b"")
        for key in sorted({*self.entries, *called}):
            stored, due = self.entries.get(key, none), stored_entries(called[key])
            found += queue_findings(
                key, stored, due, log.start, is_live=is_live, dispatched_to=dispatched_to
            )
        return found


def repair_batch_queues(
    root: Path, config: StoreConfig, *, now_ms: int, dry_run: bool, disk: Disk
) -> tuple[list[Finding], list[str], str | None]:
    """Build the queues of topics again in which something is wrong.

    Returns what was wrong, what was done, and the directory that keeps the old queues. Of the store
    itself nothing else may be wrong any more: `repair_store` comes first. Nothing is done where
    ``topics.json`` does not say which topics these are: such a store does not open.
    """
    layout, sizes = find_layout(root, config)
    kinds = find_kinds(layout, small_files(layout))
    if not kinds.batch_topics:
        return [], [], None
    log_files = PreadFiles(layout.log_directories, file_size=sizes.commit_log_file_bytes)
    files = [ReadLogFile(file, log_files.file_size) for file in log_files.files]
    log = survey_log(files, now_ms=now_ms, data_stop=ReadLogFile.data_stop)
    findings = StoredQueues(layout, kinds.batch_topics).compare(files, log)
    mended = [one for one in findings if one.kind != UNREACHABLE and not kinds.unsaid]
    topics = sorted({one.topic for one in mended if one.topic})
    evidence = Evidence(layout, disk, now_ms)
    if topics and not dry_run:
        size = file_size(layout, config, sizes)
        config = msgspec.structs.replace(config, mapped_file_size_batch_queue=size)
        with StoreLock(layout.lock, layout.written_directories):
            for topic in topics:  # without its directory, opening builds its queues
                evidence.take_tree(layout.batch_consume_queue / topic)
        with BaseStore.open(root, config, disk=disk, clock=lambda: now_ms, threads=False) as store:
            file = TopicFile(layout, clock=lambda: now_ms, disk=disk)
            BatchTopics(store, store._parts, file)  # noqa: SLF001 - what a store makes of its parts
    done = [f"batch queues of {topic}: build them again from the log" for topic in topics]
    return findings, done, evidence.directory
