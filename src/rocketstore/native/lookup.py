"""The messages that carry a key: from the items of an index to the messages they name.

A lookup is a hash, a short walk through each index file, the newest first, and a look at each
record it names: the index knows 31 bits of a hash of topic and key, and whole seconds. Waiting for
memory takes most of the time, so slot, item and record are prefetched before they are needed.

Law: a message is found only when its record is intact, has exactly the topic and one of the keys
(or the unique key) asked for, and a store time in the range; each once, newest first. Candidates
that fail do not use up the quota.

Sources: IndexFile.selectPhyOffset, IndexService.queryOffset, whose order this is, and
DefaultMessageStore.queryMessage (spec B14, B15.4, B15.5), with K-Q1, K-I5 and K-I6 corrected.
"""

from __future__ import annotations

from functools import partial
from math import ceil, floor
from operator import index

import numpy as np

from rocketstore.arguments import is_whole, whole_number

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

from rocketstore.native.decode import LogAtHand, LogCursor

if not cython.compiled:
    from typing import TYPE_CHECKING

    from rocketstore.native import view
    from rocketstore.native.columns import next_key
    from rocketstore.native.decode import borrowed, message_of
    from rocketstore.native.index import first_item, follow_chain, has_room, key_hash_of, slot_start
    from rocketstore.native.row import COLUMN_COUNT, StopReason
    from rocketstore.native.walk import (
        body_position,
        check_record,
        crc_agrees,
        hash_of,
        read_properties,
        store_time_position,
        topic_of,
    )

    if TYPE_CHECKING:
        from typing import Any

        from rocketstore.format.stored_message import StoredMessage

    _ROOM, _FEW_STEPS, _ALL_STEPS, _AHEAD, _AHEAD_BYTES = 32, 64, 0x7FFFFFFF, 4, 1280

_LAST = (1 << 63) - 1
_FIRST = -1 - _LAST
_MOST_MESSAGES = 1 << 30
_count = partial(whole_number, "max_messages")


def in_64_bits(number: Any, rounded: Any) -> int:
    """Return a number, rounded if it is a fraction, or the nearest one that 64 bits hold."""
    value = view.number_of(number, 64)
    if value == view.NO_NUMBER:
        number = index(number) if is_whole(number) else number
        value = rounded(min(max(number, _FIRST), _LAST))
    return value


class KeySearch:
    """Finds the messages of one store by key; safe to use from several threads.

    A record less than `memory_span` before the log's end counts as being in memory.
    """

    def __init__(self, log: LogAtHand, index: Any, memory_span: int) -> None:
        self.log = log
        self.index = index
        self.memory_span = memory_span
        self.is_mapped = index.is_mapped
        self.end = self.log.source.end if self.is_mapped else self.log.source
        if self.is_mapped:
            self.slot_limit, self.item_limit = index.layout

    def find(
        self, topic: str, key: str, begin_ms: int, end_ms: int | None, max_messages: int
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key, newest first; see ``Reader.find``."""
        first = in_64_bits(begin_ms, ceil)
        last = _LAST if end_ms is None else in_64_bits(end_ms, floor)
        most = min(in_64_bits(max_messages, _count), _MOST_MESSAGES)
        if first > last or most <= 0:
            return []
        one = Lookup.__new__(Lookup)
        one.ask(topic, key, first, last, most)
        if one.topic.size < 0 or one.key.size <= 0:
            return []  # no record holds half a surrogate pair
        if not self.is_mapped:
            one.begin_search(self)
            for offset in self.index.candidates(topic, key, begin_ms=first, end_ms=last):
                if not one.look_at(offset):
                    break
            return one.found
        is_begun = False
        files = self.index.files
        for file in reversed(files):
            try:
                mapping = file.file.mapping
            except FileNotFoundError:  # retention was faster: all it knows has expired
                continue
            if not one.aim(mapping, self.slot_limit, self.item_limit):
                continue
            if not is_begun:
                one.begin_search(self)
                is_begun = True
            if not one.search(self.slot_limit, self.item_limit):
                break
        return one.found if is_begun else []


class Lookup(LogCursor):
    """One search under way."""

    def ask(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> None:
        """Take the topic, key and limits of the search."""
        self.topic, self.key = view.utf8_of(topic), view.utf8_of(key)
        self.begin_ms, self.end_ms, self.most = begin_ms, end_ms, most
        topic_hash = hash_of(self.topic, 0, self.topic.size, 0)
        self.key_hash = key_hash_of(self.key, 0, self.key.size, topic_hash)

    def begin_search(self, search: KeySearch) -> None:
        """Begin with the log's file that was read last, while the key's slot is fetched."""
        self.found: list[StoredMessage] = []
        if not cython.compiled:
            self.offsets: Any = [0] * (_ROOM + 1)
        self.begin(search.log)
        self.lowest = -1
        self.in_disk_below = search.end.max_offset
        self.in_disk_below -= search.memory_span

    def aim(self, mapping: Any, slot_limit: int, item_limit: int) -> bool:
        """Take an index file, and have its slot of the key fetched; False for too short a file."""
        self.borrowed_items = borrowed(mapping)
        self.items = self.borrowed_items.data
        if not has_room(self.items, slot_limit, item_limit):
            return False
        view.prefetch(self.items, slot_start(slot_limit, self.key_hash))
        return True

    def search(self, slot_limit: int, item_limit: int) -> bool:
        """Follow the key's chain in the index file; False when no more messages are wanted."""
        items = self.items
        if view.load_i64(items, 0) > self.end_ms or view.load_i64(items, 8) < self.begin_ms:
            return True
        number = first_item(items, slot_limit, item_limit, self.key_hash)
        # A thread without the interpreter's lock may wait milliseconds for it: it is kept for a
        # few items that are likely in memory.
        is_old = view.load_i64(items, 24) < self.in_disk_below
        while number > 0:
            if is_old:
                with cython.nogil:
                    number = self.follow(slot_limit, number, _ALL_STEPS)
            else:
                number = self.follow(slot_limit, number, _FEW_STEPS)
            for n in range(min(self.offsets[_ROOM], _AHEAD)):
                self.prefetch_record(self.offsets[n], _AHEAD_BYTES)
            for n in range(self.offsets[_ROOM]):
                if not self.look_at(self.offsets[n]):
                    return False
            is_old = True
        return True

    def follow(self, slot_limit: int, number: int, steps: int) -> int:
        """Note the candidates of some items; return the item to go on from, 0 after the last."""
        return follow_chain(
            self.items, slot_limit, self.key_hash, self.begin_ms, self.end_ms, number,
            self.offsets, _ROOM, steps,
        )  # fmt: skip

    def look_at(self, offset: int) -> bool:
        """Take the message of a candidate if it is a hit; False when no more are wanted."""
        if not self.is_known(offset):
            at = self.hit_at(offset)
            if at >= 0:
                self.found.append(message_of(self.data, at))
                self.lowest = offset if self.lowest < 0 else min(self.lowest, offset)
        return len(self.found) < self.most

    def is_known(self, offset: int) -> bool:
        """Return whether the message of an offset was found already."""
        if self.lowest < 0 or offset < self.lowest:  # as in a chain that only goes back
            return False
        return any(message.physical_offset == offset for message in self.found)

    def hit_at(self, offset: int) -> int:
        """Return where in the stretch the record of a candidate stands, -1 when it is no hit."""
        at = self.reach(offset, 0)
        if at < 0:
            return -1
        if offset < self.in_disk_below:
            with cython.nogil:
                is_hit = self.is_hit(at)
        else:
            is_hit = self.is_hit(at)
        return at if is_hit else -1

    def is_hit(self, at: int) -> bool:
        """Return whether the record at a position is intact and one that was asked for."""
        data = self.data
        if check_record(data, at, self.base, self.readable, False) != StopReason.END:
            return False
        topic_at, topic_size = topic_of(data, at)
        if topic_size != self.topic.size or not view.equal_bytes(
            data, topic_at, self.topic, 0, topic_size
        ):
            return False
        stored = view.load_i64(data, store_time_position(data, at))
        if stored < self.begin_ms or stored > self.end_ms:
            return False
        if not self.carries(topic_at + topic_size + 2, at + view.load_i32(data, at)):
            return False
        data = view.part_of(data, at, view.load_i32(data, at))  # no later one is wanted
        body_at = body_position(data, 0)
        size = view.load_i32(data, body_at - 4)
        return crc_agrees(data, 0, size, view.crc_of(data, body_at, size))

    def carries(self, at: int, end: int) -> bool:
        """Return whether properties have the key, as a word of ``KEYS`` or as ``UNIQ_KEY``."""
        if not cython.compiled:
            row = np.zeros(COLUMN_COUNT, np.int64)
        read_properties(self.data, at, end, row)
        size = self.key.size
        at, end = next_key(self.data, row, -1)
        while end > 0:
            if end - at == size and view.equal_bytes(self.data, at, self.key, 0, size):
                return True
            at, end = next_key(self.data, row, end)
        return False
