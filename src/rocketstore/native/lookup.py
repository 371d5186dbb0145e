"""The messages that carry a key: from the items of an index to the messages they name.

A lookup is a hash, a short walk through an index file, and a look at each record the walk names.
The index knows 31 bits of a hash of topic and key, and whole seconds: what it names are candidates.

Law: a message is found only when its record is intact, has exactly the topic and one of the keys
(or the unique key) asked for, and a store time in the range; each once, newest first. Candidates
that fail do not use up the quota.

Sources: IndexFile.selectPhyOffset, DefaultMessageStore.queryMessage (spec B14, B15.5), with K-Q1,
K-I5 and K-I6 put right.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

from rocketstore.native.decode import LogAtHand, Window

if not cython.compiled:
    from typing import TYPE_CHECKING

    from rocketstore.native.decode import lent, message_of
    from rocketstore.native.index import follow_chain, positive_hash
    from rocketstore.native.java_hash import hash_of
    from rocketstore.native.row import COLUMN_COUNT, Column, StopReason
    from rocketstore.native.view import (
        Bytes,
        equal_bytes,
        find_byte,
        load_i32,
        load_i64,
        load_u32,
        utf8_inside,
    )
    from rocketstore.native.walk import (
        check_record,
        crc_agrees,
        read_properties,
        topic_of,
        v6_extra_bytes,
    )

    if TYPE_CHECKING:
        from typing import Any

        from rocketstore.message import StoredMessage

    _HEADER_SIZE = 40
    _ROOM, _FEW_STEPS, _ALL_STEPS = 32, 64, 0x7FFFFFFF


class Lookup(Window):
    """One search for the messages of a topic that carry a key.

    Parameters
    ----------
    begin_ms, end_ms
        Store times of interest, both included.
    memory_span
        How far before the log's end a record counts as being in memory.
    most
        How many messages are wanted.
    """

    topic: Bytes
    key: Bytes
    found: list[StoredMessage]
    offsets: Any
    row: Any

    def __init__(
        self,
        log: LogAtHand,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        memory_span: int,
        most: int,
    ) -> None:
        if not cython.compiled:
            self.offsets, self.row = [0] * (_ROOM + 1), [0] * COLUMN_COUNT
        if not (isinstance(begin_ms, int) and isinstance(end_ms, int)):
            raise TypeError("store times are whole numbers")
        self.begin(log)
        self.found = []
        self.lowest = -1
        self.held_topic = topic
        self.held_key = key
        self.topic = utf8_inside(self.held_topic)
        self.key = utf8_inside(self.held_key)
        # The hash of ``topic#key``.
        key_hash = 31 * hash_of(self.topic, 0, self.topic.size, 0) + 35
        self.key_hash = positive_hash(hash_of(self.key, 0, self.key.size, key_hash))
        self.begin_ms = begin_ms
        self.end_ms = end_ms
        self.in_disk_below = self.log.source.max_offset - memory_span
        self.most = most

    def messages(self) -> list[StoredMessage]:
        """Return what was found so far, in the order of the candidates."""
        return self.found

    def search(self, index_file: Any, slot_limit: int, item_limit: int) -> bool:
        """Follow the key's chain in an index file; False when no more messages are wanted."""
        one = lent(index_file)
        items = one.data
        if items.size < _HEADER_SIZE:
            return True
        if load_i64(items, 0) > self.end_ms or load_i64(items, 8) < self.begin_ms:
            return True
        # Who gives up the interpreter's lock may wait milliseconds for it: it is kept for a few
        # items that are likely in memory.
        is_old = load_i64(items, 24) < self.in_disk_below
        number = 0
        while True:
            if is_old:
                with cython.nogil:
                    number = self.follow(items, slot_limit, item_limit, number, _ALL_STEPS)
            else:
                number = self.follow(items, slot_limit, item_limit, number, _FEW_STEPS)
            for n in range(self.offsets[_ROOM]):
                if not self.look_at(self.offsets[n]):
                    return False
            if number == 0:
                return True
            is_old = True

    def follow(
        self, items: Bytes, slot_limit: int, item_limit: int, number: int, steps: int
    ) -> int:
        """Note the candidates of some items; return the item to go on from, 0 after the last."""
        return follow_chain(
            items, slot_limit, item_limit, self.key_hash, self.begin_ms, self.end_ms, number,
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
        if self.lowest < 0 or offset < self.lowest:  # as it is in a chain that only goes back
            return False
        return any(message.physical_offset == offset for message in self.found)

    def hit_at(self, offset: int) -> int:
        """Return where in the window the record of a candidate stands, -1 when it is no hit."""
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
        """Return whether the record at a place is intact and one that was asked for."""
        data = self.data
        if check_record(data, at, self.base, self.readable, False) != StopReason.END:
            return False
        topic_at, topic_size = topic_of(data, at)
        if topic_size != self.topic.size or not equal_bytes(
            data, topic_at, self.topic, 0, topic_size
        ):
            return False
        born_extra, store_extra = v6_extra_bytes(load_u32(data, at + 36))
        stored = load_i64(data, at + 56 + born_extra)
        if stored < self.begin_ms or stored > self.end_ms:
            return False
        if not self.carries(topic_at + topic_size + 2, at + load_i32(data, at)):
            return False
        body_at = at + 88 + born_extra + store_extra
        return crc_agrees(data, at, body_at, load_i32(data, body_at - 4))

    def carries(self, at: int, end: int) -> bool:
        """Return whether properties have the key, as a word of ``KEYS`` or as ``UNIQ_KEY``."""
        data, row = self.data, self.row
        size = self.key.size
        read_properties(data, at, end, row)
        if row[Column.UNIQUE_KEY_SIZE] == size and equal_bytes(
            data, row[Column.UNIQUE_KEY_AT], self.key, 0, size
        ):
            return True
        at = row[Column.KEYS_AT]
        end = at + row[Column.KEYS_SIZE]
        while at < end:
            stop = find_byte(data, at, end, 32)
            if stop - at == size and equal_bytes(data, at, self.key, 0, size):
                return True
            at = stop + 1
        return False
