"""Compare batch queues with the records of the log.

Law: a check writes nothing. Cost: a pass over the log, and 46 bytes of memory per record of a batch
topic.

How derived: BatchConsumeQueue of 5.3.1 (spec F9): one entry per record, in the order of the log.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rocketstore.rules.batch_entries import entries_called_for
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.scan.batch_search import stored_entries
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.recovery.log_survey import LogBytes, chain_records
from rocketstore.units import QueueKey
from rocketstore.verification.batch_rules import queue_findings
from rocketstore.verification.file_rules import queue_file_findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.rules.findings import Finding, LastWriter
    from rocketstore.rules.log_rules import LogView
    from rocketstore.scan.batch_search import BatchEntryArray
    from rocketstore.storage.layout import StoreLayout


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
        self._file_findings += queue_file_findings(
            key, files.findings, lambda path: str(path.relative_to(layout.root))
        )
        data = b"".join(files.read(one.base, one.size) or b"" for one in files.files)
        self.entries[key] = stored_entries(data)

    def compare(self, files: Sequence[LogBytes], log: LogView, writer: LastWriter) -> list[Finding]:
        """Return what is wrong with them, by the records of the log.

        A live writer adds records before their entries: the log is read later.
        """
        called = defaultdict[QueueKey, bytearray](bytearray)
        if self._batch_topics:
            numbers = QueueNumbers(self._batch_topics)
            for chain in log.kept:
                if chain.start >= log.end:
                    continue
                (file,) = (one for one in files if one.base <= chain.start < one.base + one.size)
                for columns in chain_records(file, chain.start, min(chain.stop, log.end)):
                    for key, entry in entries_called_for(columns, numbers):
                        called[key] += entry
        found, none = self._file_findings.copy(), stored_entries(b"")
        for key in sorted({*self.entries, *called}):
            stored, due = self.entries.get(key, none), stored_entries(called[key])
            found += queue_findings(key, stored, due, log.start, writer)
        return found
