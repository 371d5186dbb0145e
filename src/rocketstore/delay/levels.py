"""The queues of the delay topic: one per level, with entries that say when a message is due.

Law: a level is a queue. Messages of a queue without a level in the settings (these were shortened)
are delivered all the same, when their entry says.

How derived: ScheduleMessageService.delayLevel2QueueId and parseDelayLevel of 4.9 (spec B18, F5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.config import parse_delay_levels
from rocketstore.format.queue_entry import DELAY_TOPIC, MAX_EXT_ADDRESS
from rocketstore.native.row import NO_LEVEL_DELAY_MS

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.reading.reader import Reader

MOST_HELD: Final = 10_000
"""Messages of a level that wait for longer than it says and let later ones pass."""


@dataclass(slots=True)
class Level:
    """One level, and how far its queue is delivered.

    Every entry before `offset` is dealt with, and those in `delivered`, which are beyond it. Before
    `looked_at` the others are `held`, a heap of what waits for longer than the level says. `seen`:
    until when, and where, there were entries of a clock that was ahead.
    """

    number: int
    delay_ms: int
    offset: int = 0
    delivered: set[int] = field(default_factory=set)
    looked_at: int = 0
    held: list[tuple[int, Due]] = field(default_factory=list)
    seen: tuple[int, int] = (0, 0)

    @property
    def queue_id(self) -> int:
        """Queue of the delay topic."""
        return self.number - 1

    def note(self, offset: int) -> None:
        """Note that an entry is dealt with."""
        if offset >= self.offset:
            self.delivered.add(offset)
        while self.offset in self.delivered:
            self.delivered.remove(self.offset)
            self.offset += 1

    def look_on(self, offset: int) -> None:
        """Note that all entries from `looked_at` to an offset are dealt with, or fillers."""
        for passed in range(self.looked_at, offset):
            self.note(passed)
        self.looked_at = offset

    def begin_at(self, offset: int) -> None:
        """Look again at all that is left from an offset on."""
        self.delivered = {one for one in self.delivered if one >= offset}
        self.offset = self.looked_at = offset
        self.held = []


class Due(NamedTuple):
    """What an entry of a level's queue says; with a `size` of 0 its record is lost."""

    offset: int
    due_ms: int
    physical_offset: int
    size: int


def levels_of(store: Reader) -> list[Level]:
    """Return the levels of the settings, and of further queues that the store has."""
    delays = parse_delay_levels(store.config.message_delay_level)
    longest = delays.get(len(delays), NO_LEVEL_DELAY_MS)
    further = (key.queue_id + 1 for key in store.queues(DELAY_TOPIC))
    numbers = sorted({*delays, *further})
    return [Level(number, delays.get(number, longest)) for number in numbers]


def entries_of(store: Reader, level: Level, offset: int, most: int | None = None) -> Iterator[Due]:
    """Yield the entries of a level from an offset on, without fillers and those delivered."""
    for at, entry in store.queue_entries(DELAY_TOPIC, level.queue_id, offset, most):
        is_open = at >= level.offset and at not in level.delivered  # now, not when it was asked
        if is_open and not entry.is_filler:
            size = entry.record_size if entry.is_message else 0
            due_ms = entry.tags_code
            if due_ms <= MAX_EXT_ADDRESS:
                due_ms = _extended_due_ms(store, level, at, due_ms)
            yield Due(at, due_ms, entry.physical_offset, size)


def _extended_due_ms(store: Reader, level: Level, offset: int, address: int) -> int:
    """Return the due time of a message whose time stands in the queue's extension (spec F7).

    If it is lost there, the delay counts from the store time, as in 4.9.
    """
    unit = store.extension_unit(DELAY_TOPIC, level.queue_id, address)
    if unit is not None:
        return unit.tags_code
    return (store.store_timestamp(DELAY_TOPIC, level.queue_id, offset) or 0) + level.delay_ms


def message_of(store: Reader, level: Level, entry: Due) -> StoredMessage | None:
    """Return the message of an entry, None where it cannot be read any more."""
    message = store.at_physical_offset(entry.physical_offset) if entry.size else None
    if message is None or (message.topic, message.queue_id) != (DELAY_TOPIC, level.queue_id):
        return None
    return message
