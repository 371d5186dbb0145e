"""A record of the CommitLog as the message it holds, wherever a pointer leads into the log.

The pointer (a queue entry, an index item, a client's message id) may be wrong: stale, damaged
or invented. `check_record`, and nothing else, decides whether a message stands there.

Law: no message is made of bytes that `check_record` does not call an intact record. A view of a
file is borrowed for one call; between calls only a weak reference is kept, so that no reader holds
on to the space of a deleted file.

Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.decode of 4.9 (docs/format/record.md).
"""

from __future__ import annotations

import weakref

from rocketstore.format.host import decode_host
from rocketstore.format.record import topic_text
from rocketstore.format.stored_message import StoredMessage

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from typing import Any

    from rocketstore.native import view
    from rocketstore.native.row import StopReason
    from rocketstore.native.view import Bytes
    from rocketstore.native.walk import (
        MAGIC_V1,
        MAGIC_V2,
        body_position,
        check_record,
        store_time_position,
        topic_of,
    )

    _FIXED_SIZE, _START_SIZE = 91, 8


class BorrowedBytes:
    """The bytes of a buffer, which stay where they are for as long as this lives."""

    export: Any

    def take(self, buffer: Any) -> None:
        """Ask for the bytes; once only."""
        if cython.compiled:
            self.data = view.borrow(buffer, cython.address(self.export))
        else:
            self.data = view.bytes_of(buffer)

    def __dealloc__(self) -> None:
        view.release(cython.address(self.export))


def borrowed(buffer: Any) -> BorrowedBytes:
    """Return the bytes of a buffer."""
    one = BorrowedBytes.__new__(BorrowedBytes)
    one.take(buffer)
    return one


class LatestText:
    """A text that was decoded last and the bytes it came from: most messages repeat it."""

    def __init__(self, decode: Any) -> None:
        self.decode = decode
        self.known = (b"", "")


_latest_topic = LatestText(topic_text)
_latest_born_host = LatestText(decode_host)
_latest_store_host = LatestText(decode_host)


def latest_text(latest: LatestText, data: Bytes, at: int, size: int) -> str:
    """Return the text of the bytes at `at`, and one object for all messages that repeat it."""
    # Taken once, as a whole: another thread may replace it.
    source, text = latest.known
    known = view.bytes_inside(source)
    if known.size == size and view.equal_bytes(data, at, known, 0, size):
        return text
    source = view.copy_of(data, at, size)
    text = latest.decode(source)
    latest.known = (source, text)
    return text


def message_of(data: Bytes, at: int) -> StoredMessage:
    """Return the message of the record at a position, which `check_record` found intact."""
    size = view.load_i32(data, at)
    store_time_at = store_time_position(data, at)
    body_at = body_position(data, at)
    born_host_size = store_time_at - at - 48
    store_host_size = body_at - store_time_at - 24
    topic_at, topic_size = topic_of(data, at)
    properties_at = topic_at + topic_size + 2
    return StoredMessage(
        latest_text(_latest_topic, data, topic_at, topic_size),
        view.load_i32(data, at + 12),
        view.load_i64(data, at + 20),
        view.load_i64(data, at + 28),
        size,
        view.load_i32(data, at + 36),
        view.load_i32(data, at + 16),
        view.load_i64(data, at + 40),
        latest_text(_latest_born_host, data, at + 48, born_host_size),
        view.load_i64(data, store_time_at),
        latest_text(_latest_store_host, data, store_time_at + 8, store_host_size),
        view.load_i32(data, body_at - 16),
        view.load_i64(data, body_at - 12),
        view.load_i32(data, at + 8),
        view.copy_of(data, body_at, view.load_i32(data, body_at - 4)),
        view.copy_of(data, properties_at, at + size - properties_at),
    )


def decode(buffer: Any, position: int, base: int, check_crc: bool) -> StoredMessage | None:
    """Return the message whose record starts at a position of a buffer, None without an intact one.

    ``buffer[0]`` has physical offset `base`; `check_crc` compares the checksum of the body.
    """
    one = borrowed(buffer)
    data = one.data
    if position < 0 or position >= data.size:
        return None
    if check_record(data, position, base, data.size, check_crc) != StopReason.END:
        return None
    return message_of(data, position)


class LogAtHand:
    """A log to read from, and its file that was read last: the next record is likely there.

    `source.bytes_at` returns for an offset and a size a `Window` that has the offset, or None.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.recent: tuple[Any, Any] | None = None


class LogCursor:
    """The stretch of a log that one call reads from; it moves to where a record is."""

    def begin(self, log: LogAtHand) -> None:
        """Begin with the file that was read last."""
        self.log = log
        self.base = self.readable = 0
        recent = log.recent
        if recent is not None:
            reference, file = recent
            mapping = reference()
            if mapping is not None:
                self.take(mapping, file.base, file.write_position)

    def take(self, buffer: Any, base: int, readable: int) -> None:
        """Read from a buffer."""
        one = borrowed(buffer)
        self.data = one.data
        self.borrowed = one
        self.buffer = buffer
        self.base = base
        self.readable = min(readable, self.data.size)

    def holds(self, offset: int, size: int) -> bool:
        """Return whether bytes of the log are in the stretch."""
        return self.base <= offset and size <= self.readable - (offset - self.base)

    def move(self, offset: int, size: int) -> bool:
        """Go to where bytes of the log are; False where they are not all in one present file."""
        found = self.log.source.bytes_at(offset, size)
        if found is None:
            return False
        buffer, base, readable, file = found
        self.take(buffer, base, readable)
        if file is not None:
            self.log.recent = (weakref.ref(buffer), file)
        return self.holds(offset, size)

    def prefetch_record(self, offset: int, size: int) -> None:
        """Have a record, or the beginning of a long one, fetched in the background."""
        at = offset - self.base
        if 0 <= at < self.readable:
            view.prefetch_reads(self.data, at, size)

    def reach(self, offset: int, size: int) -> int:
        """Return where in the stretch a whole record may stand at an offset; -1 where none can.

        A `size` of 0 takes the length that the record states.
        """
        if offset < 0 or not (self.holds(offset, _START_SIZE) or self.move(offset, _START_SIZE)):
            return -1
        stated = view.load_i32(self.data, offset - self.base)
        magic = view.load_u32(self.data, offset - self.base + 4)
        if magic not in (MAGIC_V1, MAGIC_V2) or stated < _FIXED_SIZE or size not in (0, stated):
            return -1
        if not (self.holds(offset, stated) or self.move(offset, stated)):
            return -1
        return offset - self.base

    def seek(self, offset: int, size: int, check_crc: bool) -> int:
        """Return where in the stretch the intact record of an offset stands, else as `reach`."""
        at = self.reach(offset, size)
        if at < 0:
            return -1
        found = check_record(self.data, at, self.base, self.readable, check_crc)
        # The record may have been read again meanwhile, from a file that another process writes.
        if found != StopReason.END or size not in (0, view.load_i32(self.data, at)):
            return -1
        return at


def message_at(log: LogAtHand, offset: int, size: int) -> StoredMessage | None:
    """Return the message at a physical offset, None where no intact record of this size stands.

    A `size` of 0 takes the size that the record states.
    """
    cursor = LogCursor.__new__(LogCursor)
    cursor.begin(log)
    at = cursor.seek(offset, size, True)
    return None if at < 0 else message_of(cursor.data, at)


def size_at(log: LogAtHand, offset: int) -> int:
    """Return the size of the intact record at a physical offset, 0 without one."""
    cursor = LogCursor.__new__(LogCursor)
    cursor.begin(log)
    at = cursor.seek(offset, 0, True)
    return 0 if at < 0 else int(view.load_i32(cursor.data, at))


def store_time_at(log: LogAtHand, offset: int, size: int) -> int | None:
    """Return the store time of the record at an offset, None without an intact one of this size.

    A body with a wrong checksum still has its time.
    """
    cursor = LogCursor.__new__(LogCursor)
    cursor.begin(log)
    at = cursor.seek(offset, size, False)
    if at < 0:
        return None
    return int(view.load_i64(cursor.data, store_time_position(cursor.data, at)))
