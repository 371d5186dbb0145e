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
from rocketstore.storage.recovery.lost_index import LostIndex, LostIndexSearch
from rocketstore.storage.recovery.lost_queues import LostQueue, LostQueueSearch
from rocketstore.verification.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.storage.known_ends import KnownEnds
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
    store_time_of
        Returns the store time of the record at a physical offset, None without one.

    Attributes
    ----------
    findings
        What is certainly lost.
    """

    def __init__(
        self,
        parts: RecoveryParts,
        evidence: Evidence,
        *,
        clean: bool,
        now_ms: int,
        store_time_of: Callable[[int], int | None],
    ) -> None:
        self._parts = parts
        self._evidence = evidence
        self._clean = clean
        self._now_ms = now_ms
        self._store_time_of = store_time_of
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
        index = self._look_at_index(known) if parts.config.message_index_enable else None
        if self._lost or index is not None:
            parts.promise_nothing()
        for lost in self._lost:
            self._take_queue(lost)
        if index is not None:
            self._take_index(index)
        places = [lost.walk_from for lost in self._lost]
        if index is not None:
            places.append(index.walk_from)
        for offset in places:
            file = parts.log.find(offset)
            start = min(start, parts.log.min_offset if file is None else file.base)
        return start

    def _look_at_index(self, known: KnownEnds | None) -> LostIndex | None:
        search = LostIndexSearch(
            self._parts.index,
            None if known is None else known.index_files,
            log_min=self._parts.log.min_offset,
            clean=self._clean,
            store_time_of=self._store_time_of,
        )
        lost = search.find()
        if lost is None:
            for done in search.put_headers_right():
                self._note("index-header", self._parts.index.directory.name, 0, done)
        return lost

    def _take_index(self, lost: LostIndex) -> None:
        index = self._parts.index
        index.take_away(lost.first_name, self._evidence.take_file)
        self._note("index-lost", f"{index.directory.name}/{lost.first_name}", 0, lost.reason)

    def _note(self, kind: str, name: str, at: int, reason: str) -> None:
        action = "made again from the log"
        self.findings.append(Finding(Severity.WARNING, kind, name, at, 0, reason, action))

    def _take_queue(self, lost: LostQueue) -> None:
        queue = self._parts.queues.get(lost.key)
        if queue is not None and lost.take_from is not None:
            queue.take_away(lost.take_from, self._evidence.take_file, now_ms=self._now_ms)
        elif queue is not None:
            queue.truncate(lost.first, now_ms=self._now_ms)
        if lost.is_certain:
            name = f"{self._parts.queues.directory.name}/{lost.key.topic}/{lost.key.queue_id}"
            self._note("queue-lost", name, lost.first * ENTRY_SIZE_BYTES, lost.reason)

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
