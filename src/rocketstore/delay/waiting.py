"""What waits: delayed messages of a store, by level and due time, read without writing.

What a live store delivered since it saved its offsets does not wait: its log says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.delay.copies import resume
from rocketstore.delay.levels import Due, Level, entries_of, levels_of, message_of
from rocketstore.rules.waiting import real_queue
from rocketstore.tables.delay_offsets import DelayOffsetTable

if TYPE_CHECKING:
    from rocketstore.storage.read_only import ReadOnlyStore


class Waiting(NamedTuple):
    """One waiting message; without a topic, its record cannot be read or names no queue."""

    level: int
    due_ms: int
    topic: str | None
    queue_id: int
    physical_offset: int
    size: int


def waiting(store: ReadOnlyStore) -> list[tuple[Level, Iterator[Due]]]:
    """Return the levels, each with its waiting entries."""
    levels = levels_of(store)
    saved = DelayOffsetTable(store.layout).load()
    resume(store, levels, saved, store.max_physical_offset, lambda: False)
    return [(level, entries_of(store, level, level.offset)) for level in levels]


def waiting_messages(store: ReadOnlyStore, only_level: int | None = None) -> Iterator[Waiting]:
    """Yield every message that waits, by level and in the order of its delivery."""
    for level, entries in waiting(store):
        for entry in entries if only_level in (None, level.number) else ():
            message = message_of(store, level, entry)
            to = None if message is None else real_queue(message)
            topic, queue_id = (None, -1) if to is None else to
            yield Waiting(
                level.number, entry.due_ms, topic, queue_id, entry.physical_offset, entry.size
            )
