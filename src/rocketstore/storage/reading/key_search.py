"""Messages by key: what the index suggests, held against the records.

The index knows 31 bits of a hash of topic and key, and whole seconds. What it returns are
candidates: other keys hash alike, items may be left over from records that are gone, and one record
may be indexed twice.

Law: a message is returned only when its topic and one of its keys (or its unique key) are exactly
those asked for and its store time lies in the range, each at most once, newest first. Candidates
that fail do not use up the quota (K-Q1), deleted records are passed over (K-Q2), the begin of the
range is exact to the millisecond (K-I5, K-I6), duplicates vanish (K-I8).

How derived: DefaultMessageStore.queryMessage and IndexService.queryOffset of 4.9 (spec B14, B15.4).
Java sorts each round by offset, oldest first, which mixes rounds; here the order is that of
IndexService.queryOffset, which is also the more useful one when there are more hits than wanted.
Where index and log are memory maps, one kernel call per index file does everything but the decoding
(``find_hits``); else it is done item by item here, with the same answer.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from rocketstore.errors import FormatError
from rocketstore.format.record import decode_record
from rocketstore.scan import kernels
from rocketstore.storage.reading.record_access import message_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.message import StoredMessage
    from rocketstore.storage.reading.read_sources import (
        ByteArray,
        IndexSource,
        LogSource,
        MappedIndexSource,
        MappedLogSource,
        MappedPart,
    )

_HITS_PER_CALL: Final = 32
_SIZES_AT: Final = _HITS_PER_CALL + 1
_FROM_SLOT: Final = -1
"""Instead of an item to go on from."""
_NO_END_MS: Final = (1 << 63) - 1
_NO_BYTES: Final = np.empty(0, dtype=np.uint8)


class KeySearch:
    """Finds messages of one store by key; safe to use from several threads."""

    def __init__(self, log: LogSource, index: IndexSource) -> None:
        self._log = log
        self._index = index
        self._is_mapped = hasattr(log, "files") and hasattr(index, "files")
        self._buffers: list[npt.NDArray[np.int64]] = []
        self._recent: tuple[weakref.ref[ByteArray], MappedPart] | None = None

    def find(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int | None, max_messages: int
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key, newest first; see `Reader.find`."""
        if max_messages <= 0 or not key:
            return []
        if self._is_mapped and topic.isascii() and key.isascii():
            end = _NO_END_MS if end_ms is None else end_ms
            return self._find_mapped(topic, key, begin_ms, end, max_messages)
        messages: dict[int, StoredMessage] = {}
        for message in self._hits(topic, key, begin_ms, end_ms):
            messages.setdefault(message.physical_offset, message)
            if len(messages) == max_messages:
                break
        return list(messages.values())

    def _hits(
        self, topic: str, key: str, begin_ms: int, end_ms: int | None
    ) -> Iterator[StoredMessage]:
        candidates = self._index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        for physical_offset in candidates:
            message = self._hit_at(physical_offset, topic, key, begin_ms, end_ms)
            if message is not None:
                yield message

    def _hit_at(
        self, physical_offset: int, topic: str, key: str, begin_ms: int, end_ms: int | None
    ) -> StoredMessage | None:
        """Return the message at an offset if it is one that was asked for."""
        message = message_at(self._log, physical_offset)
        if message is None or not is_hit(message, topic, key):
            return None
        stored = message.store_timestamp_ms
        is_in_range = begin_ms <= stored and (end_ms is None or stored <= end_ms)
        return message if is_in_range else None

    def _find_mapped(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int
    ) -> list[StoredMessage]:
        index = cast("MappedIndexSource", self._index)
        name = np.frombuffer(f"{topic}#{key}".encode(), np.uint8)
        slots, items = index.layout
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.zeros(2 * _HITS_PER_CALL + 1, np.int64)
        messages: dict[int, StoredMessage] = {}
        for file in reversed(index.files):
            array, number = file.array, _FROM_SLOT
            while number:
                log, base, readable = self._recent_part()
                number, count = kernels.find_hits(
                    array, slots, items, name, len(topic), begin_ms, end_ms, max(number, 0),
                    log, base, readable, buffer,
                )  # fmt: skip
                for n in range(count):
                    physical_offset = buffer.item(n)
                    if physical_offset in messages:
                        continue
                    if buffer.item(_SIZES_AT + n):
                        message = _decoded(log, physical_offset, base)
                    else:
                        message = self._hit_elsewhere(physical_offset, topic, key, begin_ms, end_ms)
                    if message is not None:
                        messages[physical_offset] = message
                        if len(messages) == max_messages:
                            self._buffers.append(buffer)
                            return list(messages.values())
        self._buffers.append(buffer)
        return list(messages.values())

    def _hit_elsewhere(
        self, physical_offset: int, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> StoredMessage | None:
        """Return a hit of another file than the kernel looked at, which it will look at next."""
        part = cast("MappedLogSource", self._log).files.find(physical_offset)
        if part is None or not part.is_available:
            return None
        try:
            self._recent = (weakref.ref(part.array), part)
        except OSError:  # deleted since
            return None
        return self._hit_at(physical_offset, topic, key, begin_ms, end_ms)

    def _recent_part(self) -> tuple[ByteArray, int, int]:
        """Return the bytes of the log file looked at last, its base, and how much is written."""
        recent = self._recent
        if recent is not None:
            reference, part = recent
            log = reference()
            if log is not None:
                return log, part.base, part.write_position
        return _NO_BYTES, 0, 0


def _decoded(log: ByteArray, physical_offset: int, base: int) -> StoredMessage | None:
    """Return the message that the kernel found, None when its body has another checksum."""
    try:
        return decode_record(log.data, physical_offset - base, base=base)
    except FormatError:
        return None


def is_hit(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a message is of a topic and carries a key."""
    return message.topic == topic and (key in message.keys or key == message.unique_key)
