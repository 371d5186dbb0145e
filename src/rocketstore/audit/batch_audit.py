"""Compare batch queues with the records of the log.

Law: a check writes nothing. Cost: 92 bytes of memory per record of a batch topic.

How derived: BatchConsumeQueue of 5.3.1 (spec F9): one entry per record, in the order of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocketstore.scan.batch_search import stored_entries
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.units import QueueKey
from rocketstore.verification.batch_rules import batch_queue_findings
from rocketstore.verification.file_rules import queue_file_findings

if TYPE_CHECKING:
    from rocketstore.rules.findings import Finding, LastWriter
    from rocketstore.scan.batch_search import BatchEntryArray
    from rocketstore.storage.layout import StoreLayout


class StoredQueues:
    """The batch queues of a store as they are read, here and now.

    A live writer adds records before their entries: the log is read later, and the entries that its
    records call for are added to `called`.
    """

    def __init__(self, layout: StoreLayout, batch_topics: frozenset[str]) -> None:
        self.entries: dict[QueueKey, BatchEntryArray] = {}
        self.called = defaultdict[QueueKey, bytearray](bytearray)
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

    def findings(self, log_min: int, writer: LastWriter) -> Iterator[Finding]:
        """Yield what is wrong with them; records before `log_min` have expired."""
        yield from self._file_findings
        none = stored_entries(b"")
        for key in sorted({*self.entries, *self.called}):
            stored, due = self.entries.get(key, none), stored_entries(self.called[key])
            yield from batch_queue_findings(key, stored, due, log_min, writer)
