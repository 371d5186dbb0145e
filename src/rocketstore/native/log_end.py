"""The end of the mapped log, and the writing of a record there, part by part.

Law: no byte is written before its position was compared with the limit; the length, which makes a
record of the bytes, is written last. Bytes after the end do not count until it moves.

Source: CommitLog.DefaultAppendMessageCallback.doAppend and MessageDecoder.messageProperties2String
of 4.9.8 (spec B3.5, F3).
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from rocketstore.arguments import is_whole
from rocketstore.errors import RefusedMessageError
from rocketstore.format import properties as named

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view
    from rocketstore.native.view import Bytes
    from rocketstore.native.walk import has_offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.units import QueueKey

_MAGIC = 0xDAA320A7 - (1 << 32)
_LONGEST, _ROOMY = named.PROPERTIES_SIZE_MAX, named.PROPERTIES_SIZE_ROOMY
_THREES = 0x0303030303030303
_HIGHEST = 0x8080808080808080
_KEYS, _TAGS = f"\2{named.KEYS}\1".encode(), f"\2{named.TAGS}\1".encode()
_UNIQUE_KEY = f"\2{named.UNIQ_KEY}\1".encode()
NEVER = 1 << 62
"""No append comes to this position."""
_SPECIAL = frozenset({named.DELAY, named.INNER_MULTI_DISPATCH, named.WAIT})
"""Properties that the writer looks at."""


def has_separator(text: Bytes) -> bool:
    """Return whether 0x01 or 0x02 is in a text, or 0x00, with which a block may not end."""
    at = 0
    while text.size - at >= 8:
        word = view.load_word(text, at)
        # Whether one of eight bytes is less than three, the usual test.
        if (word - _THREES) & ~word & _HIGHEST:
            return True
        at += 8
    while at < text.size:
        if view.load_u8(text, at) < 3:
            return True
        at += 1
    return False


def fitting(name: str, value: Any, bits: int) -> int:
    """Return a number that fits its field; raises `RefusedMessageError` for any other object."""
    known = view.number_of(value, bits)
    if known != view.NO_NUMBER:
        return known
    limit = 1 << (bits - 1)
    if not is_whole(value):
        kind = type(value).__name__
        raise RefusedMessageError(f"{name} is an int, not {kind}: {value!r:.40}")
    number = int(index(value))
    if -limit <= number < limit:
        return number
    raise RefusedMessageError(
        f"{name} {value!r:.40} does not fit its field ({-limit} to {limit - 1})"
    )


class QueueCounter:
    """The next offset of one queue, and the fields that all its records share.

    When the store was opened, `next_offset` was `first_offset` and `stored_bytes` 0.
    """

    def __init__(self, key: QueueKey, topic: bytes, queue_id: int, next_offset: int) -> None:
        self.key = key
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.first_offset = next_offset
        self.stored_bytes = 0


class Record:
    """A message, checked and encoded: all of a record except its place and store time.

    The host bits of `sys_flag` follow from the hosts; a `born_timestamp_ms` of None takes the time
    of the append. `RefusedMessageError` says that a number does not fit its field. One that holds
    a batch (`hold_batch`) takes as many queue offsets as it has messages.
    """

    def __init__(
        self,
        body: bytes,
        properties: bytes,
        born_host: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> None:
        for part in (body, properties, born_host):
            if type(part) is not bytes:
                raise TypeError(f"a record is made of bytes, not {type(part).__name__}")
        self.body = body
        self.properties = properties
        self.born_host = born_host
        self.flag = fitting("flag", flag, 32)
        self.sys_flag = hosted(fitting("sysFlag", sys_flag, 32), len(born_host))
        self.is_born_now = born_timestamp_ms is None
        self.born = 0 if born_timestamp_ms is None else fitting("born time", born_timestamp_ms, 64)
        self.reconsume_times = fitting("reconsume times", reconsume_times, 32)
        self.prepared_offset = fitting("prepared transaction offset", prepared_offset, 64)
        self.inner_count = 1

    def hold_batch(self, count: int) -> None:
        """Note that the body is a batch, which takes as many queue offsets (spec F9)."""
        self.inner_count = count

    def describe(self, properties: bytes, born_timestamp_ms: int | None) -> None:
        """Take other properties and another born time, which the caller has checked."""
        self.properties = properties
        self.is_born_now = born_timestamp_ms is None
        self.born = 0 if born_timestamp_ms is None else born_timestamp_ms

    def take(
        self, host: bytes, flag: Any, sys_flag: Any, born: Any, times: Any, offset: Any
    ) -> bool:
        """Take host and numbers of a message; return whether all of them are plain."""
        self.born_host = host
        self.flag = view.number_of(flag, 32)
        bits = view.number_of(sys_flag, 32)
        self.sys_flag = hosted(bits, len(host))
        self.is_born_now = born is None
        self.born = 0 if born is None else view.number_of(born, 64)
        self.reconsume_times = view.number_of(times, 32)
        self.prepared_offset = view.number_of(offset, 64)
        return (
            self.flag != view.NO_NUMBER
            and bits >= 0
            and not bits & 0x8C
            and self.born != view.NO_NUMBER
            and self.reconsume_times != view.NO_NUMBER
            and self.prepared_offset != view.NO_NUMBER
        )

    @property
    def offset_count(self) -> int:
        """How many queue offsets it gets; prepared and rolled-back ones get none."""
        return self.inner_count if has_offset(self.sys_flag) else 0

    def with_body(self, body: bytes) -> Record:
        """Return a record that differs by its body."""
        record = Record(body, self.properties, self.born_host)
        born = None if self.is_born_now else self.born
        record.take(
            self.born_host, self.flag, self.sys_flag, born, self.reconsume_times,
            self.prepared_offset,
        )  # fmt: skip
        return record


def hosted(sys_flag: int, born_host_size: int) -> int:
    """Return a sysFlag without host bits but that of the born host."""
    return (sys_flag & ~0x30) | (0x10 if born_host_size == 20 else 0)


def bare_size(born_host_size: int, store_host_size: int, topic_size: int) -> int:
    """Return the bytes of a record with neither body nor properties."""
    return 75 + born_host_size + store_host_size + topic_size


class LogEnd:
    """Where the log ends, and up to where records may be written into its last file.

    In the file at `base` the next record begins at `position`, and must end by `limit`. The last
    complete record ends at `max_offset`. `locked_since_ms` is 0 while the append lock is free, and
    `behind_ms` how far the clock is behind the store time of the append under way;
    `is_busy` says that an append by `CommitLog` is under way, or was interrupted, and
    `needs_slow_path` that the record just written is one for the writer. An append that
    comes to the position `look_at` calls `on_look`, which says where the next look is due.
    `put_count` and `put_bytes` are what all counters of its queues add up to since the opening.
    """

    def __init__(self, store_host: bytes, on_look: Any = None) -> None:
        self.store_host = store_host
        self.file: Any = None
        self.view: Any = None
        self.base = self.position = self.max_offset = 0
        self.last_store_timestamp_ms = self.locked_since_ms = self.behind_ms = 0
        self.put_count = self.put_bytes = 0
        self.limit = -1
        self.is_busy = False
        self.needs_slow_path = False
        self.look_at = NEVER
        self.on_look = on_look

    def write_into(self, file: Any, mapping: Any, position: int, limit: int) -> None:
        """Write into `file`, of which `mapping` has the bytes, from `position` up to `limit`."""
        self.limit = -1
        if not 0 <= position <= limit <= len(mapping):
            raise ValueError(f"{position} to {limit} are not positions in {len(mapping)} bytes")
        self.position_slot = view.slot_named(type(file), "write_position")
        self.file = file
        self.view = mapping
        self.data = view.bytes_of(self.view)
        self.base = file.base
        self.position = position
        self.limit = limit

    def close(self) -> None:
        """Let no append find space; `CommitLog` makes some when one comes."""
        self.limit = -1

    def drop(self) -> None:
        """Release file and mapping."""
        self.limit = -1
        self.data = view.bytes_of(b"")
        self.file = self.view = None

    def move(self, base: int, position: int, now_ms: int) -> None:
        """Set the log's end, in the file of that offset, with a record of that time."""
        self.last_store_timestamp_ms = now_ms
        self.position = position
        self.max_offset = base + position

    def size_of(self, record: Record, counter: QueueCounter) -> int:
        """Return the bytes that a message takes."""
        size = bare_size(len(record.born_host), len(self.store_host), len(counter.topic))
        return size + len(record.body) + len(record.properties)

    # --- the parts of a record ------------------------------------------------------------------

    def write_head(
        self, record: Record, body: Bytes, counter: QueueCounter, at: int, number: int, now: int
    ) -> int:
        """Write magic to topic; return where the properties begin, or -1 if they do not fit.

        `needs_slow_path` says so too; the parts that follow set it where one of them cannot be
        written.
        """
        born_host = view.bytes_inside(record.born_host)
        store_host = view.bytes_inside(self.store_host)
        topic = view.bytes_inside(counter.topic)
        size = bare_size(born_host.size, store_host.size, topic.size) + body.size
        if size > self.limit - at:
            self.needs_slow_path = True
            return -1
        self.needs_slow_path = False
        data = self.data
        view.store_i32(data, at + 4, _MAGIC)
        view.store_i32(data, at + 8, view.crc_of(body, 0, body.size))
        view.store_i32(data, at + 12, counter.queue_id)
        view.store_i32(data, at + 16, record.flag)
        view.store_i64(data, at + 20, number)
        view.store_i64(data, at + 28, self.base + at)
        view.store_i32(data, at + 36, record.sys_flag | (0x20 if store_host.size == 20 else 0))
        view.store_i64(data, at + 40, now - self.behind_ms if record.is_born_now else record.born)
        view.copy_bytes(data, at + 48, born_host, 0, born_host.size)
        at += 48 + born_host.size
        view.store_i64(data, at, now)
        view.copy_bytes(data, at + 8, store_host, 0, store_host.size)
        at += 8 + store_host.size
        view.store_i32(data, at, record.reconsume_times)
        view.store_i64(data, at + 4, record.prepared_offset)
        view.store_i32(data, at + 12, body.size)
        view.copy_bytes(data, at + 16, body, 0, body.size)
        at += 16 + body.size
        view.store_u8(data, at, topic.size)
        view.copy_bytes(data, at + 1, topic, 0, topic.size)
        return at + 3 + topic.size

    def add_bytes(self, at: int, source: Bytes, begin: int, size: int) -> int:
        """Copy bytes; return what follows them. What does not fit takes the slow path."""
        if size > self.limit - at:
            self.needs_slow_path = True
            return at
        view.copy_bytes(self.data, at, source, begin, size)
        return at + size

    def add_byte(self, at: int, byte: int) -> int:
        """Write one byte."""
        if at >= self.limit:
            self.needs_slow_path = True
            return at
        view.store_u8(self.data, at, byte)
        return at + 1

    def add_text(self, at: int, text: Any) -> int:
        """Copy a text that may stand between separators; any other takes the slow path."""
        if type(text) is str:
            source = view.utf8_of(text)
            if source.size >= 0 and not has_separator(source):
                return self.add_bytes(at, source, 0, source.size)
        self.needs_slow_path = True
        return at

    def add_name(self, at: int, start: int, name: bytes) -> int:
        """Begin a property: its name between separators, of which the first one needs none."""
        source = view.bytes_inside(name)
        is_first = 1 if at == start else 0
        return self.add_bytes(at, source, is_first, source.size - is_first)

    def add_value(self, at: int, start: int, name: bytes, value: Any) -> int:
        """Add a property with a field of its own, if it has a value."""
        if value is None or (type(value) is str and not value):
            return at
        return self.add_text(self.add_name(at, start, name), value)

    def add_keys(self, at: int, start: int, keys: tuple[Any, ...]) -> int:
        """Add several keys, none of them empty or with a blank in it."""
        if not keys:
            return at
        first = at = self.add_name(at, start, _KEYS)
        for key in keys:
            if at > first:
                at = self.add_byte(at, 0x20)
            stop = self.add_text(at, key)
            if stop == at or view.find_byte(self.data, at, stop, 0x20) < stop:
                self.needs_slow_path = True
            at = stop
        return at

    def add_further(self, at: int, properties: dict[Any, Any]) -> int:
        """Add properties without fields of their own; they come before all others."""
        start = at
        for name, value in properties.items():
            if at > start:
                at = self.add_byte(at, 2)
            stop = self.add_text(at, name)
            size = stop - at
            # One of these lengths has a name that the writer looks at.
            may_be_special = size == 4 or size == 5 or size == 20
            if size == 0 or self.needs_slow_path or (may_be_special and name in _SPECIAL):
                self.needs_slow_path = True
                return stop
            at = self.add_text(self.add_byte(stop, 1), value)
        return at

    def add_properties(
        self, start: int, properties: Any, keys: Any, unique_key: Any, tags: Any
    ) -> int:
        """Write the properties of a message; return where they end, also for the slow path."""
        at = start
        if type(properties) is not dict:
            self.needs_slow_path = True
        elif properties:
            at = self.add_further(at, properties)
        if type(keys) is tuple or type(keys) is list:
            at = self.add_keys(at, start, tuple(keys))
        else:
            at = self.add_value(at, start, _KEYS, keys)
        at = self.add_value(at, start, _UNIQUE_KEY, unique_key)
        return self.add_value(at, start, _TAGS, tags)

    def end_properties(self, start: int, stop: int) -> None:
        """Write how long the properties are, unless they take the slow path.

        So do those that leave less than GIVE_BACK_ROOM: the writer says so in its result.
        """
        if self.needs_slow_path or stop - start > _ROOMY:
            self.needs_slow_path = True
        else:
            view.store_i16(self.data, start - 2, stop - start)

    # --- records --------------------------------------------------------------------------------

    def add_record(
        self, record: Record, body: Bytes, counter: QueueCounter, at: int, number: int, now: int
    ) -> int:
        """Write a record without its length; return where it ends.

        One that does not fit sets `needs_slow_path`.
        """
        properties = view.bytes_inside(record.properties)
        if properties.size > _LONGEST:
            self.needs_slow_path = True
            return at
        start = self.write_head(record, body, counter, at, number, now)
        if start < 0:
            return at
        stop = self.add_bytes(start, properties, 0, properties.size)
        view.store_i16(self.data, start - 2, stop - start)
        return stop

    def write(self, counter: QueueCounter, records: Sequence[Record], now_ms: int) -> int:
        """Write records after the end, which stays; return where they end in the file."""
        if counter is None or None in records or len(counter.topic) > 127:
            raise TypeError("expected records of one queue, found None or a topic over 127 bytes")
        at = self.position
        number = counter.next_offset
        for record in records:
            count = record.offset_count
            body = view.bytes_inside(record.body)
            first = number if count else 0
            at = self.add_record(record, body, counter, at, first, now_ms)
            if self.needs_slow_path:
                self.take_back(at)
                raise ValueError(f"no room for {len(records)} records up to {self.limit}")
            number += count
        end = at
        at = self.position
        for record in records:
            size = self.size_of(record, counter)
            view.store_i32(self.data, at, size)
            at += size
        return int(end)

    def take_back(self, stop: int) -> None:
        """Clear what was written after the end."""
        view.clear_bytes(self.data, self.position, stop)

    def begin_piece(self, piece: Bytes) -> None:
        """Have records written into memory, from the end on, in place of the mapping."""
        self.mapped = self.data
        self.mapped_limit = self.limit
        self.data = view.piece_at(piece, self.position)
        self.limit = min(self.limit, self.data.size)

    def end_piece(self, descriptor: int, stop: int) -> None:
        """Write the piece to the file up to a position, and go on with the mapping."""
        view.write_out(descriptor, self.data, self.position, stop, self.mapped)
        self.data = self.mapped
        self.limit = self.mapped_limit

    def publish(self, counter: QueueCounter, count: int, stop: int, now: int) -> None:
        """Move the end, and all that depends on it, past the written records."""
        size = stop - self.position
        counter.next_offset += count
        counter.stored_bytes += size
        self.put_count += count
        self.put_bytes += size
        self.reach(stop, now)

    def reach(self, stop: int, now: int) -> None:
        """Move the end past what was written and counted."""
        written = stop
        self.position = stop
        self.last_store_timestamp_ms = now
        # The file must know the new end before any reader does.
        view.set_slot(self.file, self.position_slot, written)
        self.max_offset = self.base + stop
