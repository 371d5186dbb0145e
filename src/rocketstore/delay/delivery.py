"""Deliver what is due: read a level's entries in order, put a copy of each where it belongs.

Law: a level's entries are dealt with in order of their times, each exactly once, and not before
the time in the entry. A message stored by a clock that was ahead waits for its delay from the
moment at which that was noticed. A put that the store does not take now is tried again and never
skipped. A message is skipped, with a warning, only if it can never be delivered: its record is gone
or damaged, it names no queue, or no store could take it.

How derived: ScheduleMessageService.DeliverDelayedMessageTimerTask of 4.9 (spec B18). The copy keeps
the text of all properties, DELAY, REAL_TOPIC and REAL_QID included; its put looks at none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from rocketstore.delay.levels import MOST_HELD, Due, Level, entries_of, message_of
from rocketstore.errors import RefusedMessageError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import DELAY_TOPIC, is_due_time
from rocketstore.rules.waiting import copy_of, real_queue

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore

RETRY_MS: Final = 100
"""Pause before a put that was not taken is tried again (DELAY_FOR_A_WHILE of 4.9)."""

LOOK_MS: Final = 1_000
"""Longest sleep: after it a message put meanwhile or a clock that was set is seen. The shortest
usual delay, so that no message is late by it; 4.9 looks every 100 ms."""

LEVEL_UNIT_MS: Final = 1_000
"""Delays are whole seconds; a time that many ms beyond the delay is still the level's own."""

BATCH_ENTRIES: Final = 1_000
"""Entries of a level dealt with before the other levels have their turn: about 20 ms."""

_log: Final = get_logger(__name__)


class DelayedDelivery:
    """Delivers the due messages of `levels`; counts what it did."""

    def __init__(self, store: BaseStore, levels: Sequence[Level]) -> None:
        self.levels = levels
        self.delivered = self.undeliverable = self.refused = 0
        self._store = store
        self._look_ms = max(RETRY_MS, min([LOOK_MS, *(level.delay_ms for level in levels)]))
        self._blocked: set[int] = set()
        self._last_ms = 0
        for level in levels:
            level.begin_at(level.offset)

    def run_once(self, now_ms: int) -> int:
        """Deliver what is due; return after how many ms to look again."""
        if now_ms < self._last_ms:  # held messages were judged by a clock that was ahead
            for level in self.levels:
                level.begin_at(level.offset)
        self._last_ms = now_ms
        return min([self._look_ms, *(self._run_level(level, now_ms) for level in self.levels)])

    def _run_level(self, level: Level, now_ms: int) -> int:
        self._skip_lost(level)
        while level.held and level.held[0][0] <= now_ms:
            if not self._deliver(level, level.held[0][1]):
                return RETRY_MS
            level.note(heappop(level.held)[1].offset)
        pause_ms = level.held[0][0] - now_ms if level.held else LOOK_MS
        stop = self._store.max_offset(DELAY_TOPIC, level.queue_id)
        start = max(level.looked_at, level.offset)
        if start >= stop:
            # Stored, but not dispatched yet: wait for it, as its time may be near.
            is_ahead = self._store.next_queue_offset(DELAY_TOPIC, level.queue_id) > start
            return min(pause_ms, RETRY_MS if is_ahead else LOOK_MS)
        last = min(stop, start + BATCH_ENTRIES)
        for entry in entries_of(self._store, level, start, last - start):
            if len(level.held) >= MOST_HELD:
                return pause_ms
            level.look_on(entry.offset)
            wait_ms = entry.due_ms - now_ms
            if 0 < wait_ms < level.delay_ms + LEVEL_UNIT_MS:
                return min(pause_ms, wait_ms)
            if wait_ms > 0 and (until_ms := self._held_until(level, entry, now_ms)) > now_ms:
                heappush(level.held, (until_ms, entry))
                level.looked_at = entry.offset + 1
            elif not self._deliver(level, entry):
                return RETRY_MS
            else:
                level.look_on(entry.offset + 1)
        level.look_on(last)  # fillers at the end
        return 0

    def _held_until(self, level: Level, entry: Due, now_ms: int) -> int:
        """Return when a message is due whose time is further away than its level says today."""
        message = message_of(self._store, level, entry)
        if message is None or not is_due_time(entry.due_ms, message.store_timestamp_ms):
            return now_ms  # damage: no level gave this time
        stored_ms = message.store_timestamp_ms
        if stored_ms <= now_ms:
            return entry.due_ms  # from a level that was longer, or no longer exists (K-S6)
        # Stored in the future: the clock was ahead, and it is unknown how long ago that was.
        if entry.offset >= level.seen[0] or level.seen[1] > now_ms:
            level.seen = self._store.max_offset(DELAY_TOPIC, level.queue_id), now_ms
        delay_ms = max(level.delay_ms, entry.due_ms - stored_ms)
        return min(entry.due_ms, level.seen[1] + delay_ms)

    def _skip_lost(self, level: Level) -> None:
        first = self._store.min_offset(DELAY_TOPIC, level.queue_id)
        if (lost := first - level.offset) > 0:
            self.undeliverable += lost
            _log.error(
                "delay.undeliverable", delay_level=level.number, queue_offset=level.offset,
                count=lost, reason="retention deleted the log files that had their records",
                hint="make fileReservedTime longer than messages wait",
            )  # fmt: skip
            level.begin_at(first)

    def _deliver(self, level: Level, entry: Due) -> bool:
        """Deliver the message of an entry; False where that has to be tried again."""
        message = message_of(self._store, level, entry)
        if message is None:
            return self._give_up(level, entry, "no intact record stands there")
        to = real_queue(message)
        if to is None:
            return self._give_up(level, entry, "REAL_TOPIC and REAL_QID name no queue of messages")
        try:
            result = self._store.put_record(*to, copy_of(message), wait_flush=False)
        except RefusedMessageError as error:
            return self._give_up(level, entry, str(error))
        if result.is_stored:
            self.delivered += 1
            if self._blocked and level.number in self._blocked:
                self._blocked.remove(level.number)
                _log.info(
                    "delay.delivers_again", delay_level=level.number, queue_offset=entry.offset
                )
            return True
        if not result.retriable:
            return self._give_up(level, entry, f"{result.status.name}: {result.detail}")
        self.refused += 1
        if level.number not in self._blocked:
            self._blocked.add(level.number)
            _log.warning(
                "delay.put_refused",
                delay_level=level.number,
                queue_offset=entry.offset,
                status=result.status.name,
                reason=result.detail,
                next=f"tried again every {RETRY_MS} ms",
            )
        return False

    def _give_up(self, level: Level, entry: Due, why: str) -> bool:
        self.undeliverable += 1
        _log.error(
            "delay.undeliverable", delay_level=level.number, queue_offset=entry.offset,
            physical_offset=entry.physical_offset, reason=why,
            next=f"it is skipped; {DELAY_TOPIC} keeps it as long as the log does",
        )  # fmt: skip
        return True
