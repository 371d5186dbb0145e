"""Which delayed messages were delivered: found in the log itself, where no file says it.

``delayOffset.json`` is saved every few seconds, so after a kill it is older than the log.
Therefore it also says where the log ended when it was saved (``logEnd``, which fastjson passes
over): a copy after that place is a delivery that the offsets do not count. A copy is known by
DELAY, REAL_TOPIC and REAL_QID, which say its level and its own queue; its source by properties,
born time, host, body checksum and numbers, which a delivery does not change, except for what
`_CHANGED` names. Of equal sources that stand before it the first one counts.

Law: a message with a copy in the log is not delivered again, one without is delivered.

Without ``logEnd`` (the file is of a Java broker, or lost) the log is read from the first waiting
message on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from rocketstore.delay.levels import MOST_HELD, Due, Level, entries_of, message_of
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    WAIT,
)
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.message import STORE_HOST_V6_FLAG
from rocketstore.native.row import CallsFor
from rocketstore.rules.waiting import real_queue, waiting_offsets
from rocketstore.tables.positions import log_columns

if TYPE_CHECKING:
    from rocketstore.format.metadata_json import DelayOffsets
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.reading.reader import Reader

LOOKAHEAD: Final = MOST_HELD + 1_000
"""Most waiting messages of a level that a copy is compared with: deliveries are in order, so it is
one of the first, unless some before it are held or could not be delivered."""

_CHANGED: Final = (DELAY, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, WAIT, "__CRC32#")
"""Properties that a delivery may change: for several queues (4.9 drops DELAY), 5.x's checksum."""

Mark: TypeAlias = "tuple[int, int, int, int, int, int, frozenset[tuple[str, str]]]"


def resume(
    store: Reader, levels: Sequence[Level], saved: DelayOffsets, log_end: int,
    is_over: Callable[[], bool],
) -> int:  # fmt: skip
    """Set `levels` to what is delivered of the log before `log_end`; return how many were found.

    `is_over` ends it early. An offset before its queue's begin becomes that (spec B18, K-S5).
    """
    offsets, looked_at = saved.offset_table, saved.log_end
    ends = {level.number: store.max_offset(DELAY_TOPIC, level.queue_id) for level in levels}
    if not 0 <= (looked_at or 0) <= log_end or any(
        offsets.get(number, 0) > end for number, end in ends.items()
    ):
        # The log was cut, or restored from a copy, or the file is that of another store: the log
        # alone says what was delivered.
        offsets, looked_at = {}, None
    for level in levels:
        first, last = store.min_offset(DELAY_TOPIC, level.queue_id), ends[level.number]
        level.offset = waiting_offsets(offsets.get(level.number), first, last).start
        level.delivered.clear()
    start = _first_waiting(store, levels) if looked_at is None else looked_at
    if start is None or all(
        next(entries_of(store, one, one.offset), None) is None for one in levels
    ):
        return 0
    sources = {level.number: _Sources(store, level) for level in levels}
    found = 0
    for number, message in _copies(store, start, log_end):
        if is_over():
            break
        mark = _mark_of(message)
        asked = (one for at, one in sources.items() if number in (0, at))
        found += any(one.take(mark, message.physical_offset) for one in asked)
    return found


class _Sources:
    """The waiting messages of a level of which no copy was found yet."""

    def __init__(self, store: Reader, level: Level) -> None:
        self._level = level
        self._window: dict[Mark, deque[Due]] = defaultdict(deque)
        self._room = LOOKAHEAD
        self._further = self._marks(store, level, level.offset)

    def _marks(self, store: Reader, level: Level, offset: int) -> Iterator[tuple[Due, Mark]]:
        for entry in entries_of(store, level, offset):
            message = message_of(store, level, entry)
            if message is not None:
                yield entry, _mark_of(message)

    def take(self, wanted: Mark, place: int) -> bool:
        """Note that the source of a copy is delivered; False where none stands before `place`."""
        while wanted not in self._window:
            entry, mark = next(self._further, (None, wanted)) if self._room else (None, wanted)
            if entry is None:
                return False
            self._window[mark].append(entry)
            self._room -= 1
        if self._window[wanted][0].physical_offset > place:
            return False
        self._level.note(self._window[wanted].popleft().offset)
        self._room += 1
        if not self._window[wanted]:
            del self._window[wanted]
        return True


def _mark_of(message: StoredMessage) -> Mark:
    """Return what a message and its copy have in common."""
    return (
        message.born_timestamp_ms,
        message.body_crc,
        len(message.raw_body),
        message.flag,
        message.sys_flag & ~STORE_HOST_V6_FLAG,  # the copy's is that of the store that put it
        message.reconsume_times,
        frozenset(
            (name, value)
            for name, value in [("", message.born_host), *message.properties.items()]
            if name not in _CHANGED
        ),
    )


def _first_waiting(store: Reader, levels: Sequence[Level]) -> int | None:
    """Return where the first waiting record stands: its copy can only follow."""
    whole = [
        (entry.physical_offset for entry in entries_of(store, one, one.offset) if entry.size)
        for one in levels
    ]
    return min((at for places in whole for at in islice(places, 1)), default=None)


def _copies(store: Reader, start: int, stop: int) -> Iterator[tuple[int, StoredMessage]]:
    """Yield the deliveries in a stretch of the log, each with its level, 0 where it has none."""
    for columns in log_columns(store, start, stop):
        levels = columns.delay_level
        for row in ((levels > 0) | columns.call_for(CallsFor.EXTRA_ENTRIES)).nonzero()[0]:
            if columns.topic(int(row)) == DELAY_TOPIC:
                continue
            message = store.at_physical_offset(int(columns.physical_offset[row]))
            if message is not None and real_queue(message) == (message.topic, message.queue_id):
                yield int(levels[row]), message
