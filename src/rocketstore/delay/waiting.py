"""What waits: delayed messages of a store, by level and due time, read without writing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.delay.copies import resume
from rocketstore.delay.levels import destination_of, entries_of, levels_of, message_of
from rocketstore.delay.service import load_delay_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.delay.levels import Level
    from rocketstore.storage.read_only import ReadOnlyStore


class WaitingLevel(NamedTuple):
    """How many messages wait in a level; due times are 0 without any."""

    level: int
    delay_ms: int
    waiting: int
    overdue: int
    first_due_ms: int
    last_due_ms: int


class Waiting(NamedTuple):
    """One message that waits; without a topic its record cannot be read, or names no place."""

    level: int
    due_ms: int
    topic: str | None
    queue_id: int
    physical_offset: int
    size: int


def _levels(store: ReadOnlyStore) -> list[Level]:
    levels = levels_of(store)
    saved = load_delay_offsets(store.layout.root)
    resume(store, levels, saved, store.max_physical_offset, lambda: False)
    return levels


def waiting_levels(store: ReadOnlyStore, now_ms: int) -> Iterator[WaitingLevel]:
    """Yield what waits in each level; a live store has delivered the youngest copies already."""
    for level in _levels(store):
        waiting = overdue = last = 0
        first: int | None = None
        for entry in entries_of(store, level, level.offset):
            waiting += 1
            overdue += entry.due_ms <= now_ms
            first = entry.due_ms if first is None else min(first, entry.due_ms)
            last = max(last, entry.due_ms)
        yield WaitingLevel(level.number, level.delay_ms, waiting, overdue, first or 0, last)


def waiting_messages(store: ReadOnlyStore, only_level: int | None = None) -> Iterator[Waiting]:
    """Yield every message that waits, by level and in the order of its delivery."""
    for level in _levels(store):
        if only_level not in (None, level.number):
            continue
        for entry in entries_of(store, level, level.offset):
            message = message_of(store, level, entry)
            to = None if message is None else destination_of(message)
            yield Waiting(
                level.number,
                entry.due_ms,
                None if to is None else to.topic,
                -1 if to is None else to.queue_id,
                entry.physical_offset,
                entry.size,
            )
