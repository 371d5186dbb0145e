"""Take away what is broken of queues and index, so that recovery's walk makes it again.

A queue with a broken file becomes a queue that ends before it, and then dispatch, which knows how
to go on at a queue's end, does the rest. So there is one way to make entries, whatever was lost.

Law: nothing is taken away before the store says that it is in use and promises nothing: an opening
that is interrupted here is followed by one that checks everything. What is taken away is kept in
``repair/<time>/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.storage.audit.findings import Finding, Severity
from rocketstore.storage.checkpoint import promise_nothing
from rocketstore.storage.recovery.lost_queues import LostQueue, LostQueueSearch

if TYPE_CHECKING:
    from rocketstore.storage.recovery.evidence import Evidence
    from rocketstore.storage.recovery.recover import RecoveryParts
    from rocketstore.units import QueueKey


class LostFiles:
    """What the queues and the index of a store that is being opened have lost.

    Parameters
    ----------
    parts
        Of the store; nothing is changed yet.
    evidence
        Where files are kept.
    clean
        Whether the last writer ended in order.
    now_ms
        The time.

    Attributes
    ----------
    findings
        What is certainly lost.
    """

    def __init__(
        self, parts: RecoveryParts, evidence: Evidence, *, clean: bool, now_ms: int
    ) -> None:
        self._parts = parts
        self._evidence = evidence
        self._clean = clean
        self._now_ms = now_ms
        self._lost: list[LostQueue] = []
        self.findings: list[Finding] = []

    def take_away(self, data_stop: int, start: int) -> int:
        """Find what is lost and take broken files away.

        Parameters
        ----------
        data_stop
            Physical offset behind the last byte of the log that is not zero.
        start
            Where recovery would begin without a loss.

        Returns
        -------
        int
            Where it has to begin, `start` at most.
        """
        parts = self._parts
        known = parts.known_ends
        if known is not None and not known.applies(parts.log, clean=self._clean):
            known = None
        self._lost = LostQueueSearch(
            parts.queues,
            {} if known is None else known.queues,
            log_min=parts.log.min_offset,
            log_stop=data_stop,
            max_record_bytes=parts.log.file_size,
        ).find()
        if self._lost:
            promise_nothing(parts.layout, parts.disk)
        for lost in self._lost:
            self._take_queue(lost)
        for offset in [lost.walk_from for lost in self._lost]:
            file = parts.log.find(offset)
            start = min(start, parts.log.min_offset if file is None else file.base)
        return start

    def _take_queue(self, lost: LostQueue) -> None:
        queue = self._parts.queues.get(lost.key)
        if queue is not None and lost.take_from is not None:
            queue.take_away(lost.take_from, self._evidence.take_file, now_ms=self._now_ms)
        elif queue is not None:
            queue.truncate(lost.first, now_ms=self._now_ms)
        if lost.is_certain:
            name = f"{self._parts.queues.directory.name}/{lost.key.topic}/{lost.key.queue_id}"
            action = "made again from the log"
            at = lost.first * ENTRY_SIZE_BYTES
            finding = Finding(Severity.WARNING, "queue-lost", name, at, 0, lost.reason, action)
            self.findings.append(finding)

    def keep_given(self) -> dict[QueueKey, tuple[int, int]]:
        """Keep the places of numbers that were given out, and whose records the log lacks as well.

        Returns
        -------
        dict
            First and one past the last queue offset kept, of each queue that has such.
        """
        kept = {}
        for lost in self._lost:
            queue = self._parts.queues.get_or_create(lost.key)
            if queue is not None and queue.given_stop < lost.given_stop:
                first = queue.max_offset
                queue.truncate(first, now_ms=self._now_ms, keep_to=lost.given_stop)
                kept[lost.key] = (first, lost.given_stop)
        return kept
