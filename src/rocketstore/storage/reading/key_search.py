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
(``find_hits``), or one call of C all of it (``_key_search.c``, optional like the compiled append);
else it is done item by item here, with the same answer.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np

from rocketstore.errors import FormatError
from rocketstore.format.record import decode_intact, decode_record
from rocketstore.scan import kernels
from rocketstore.storage.reading.record_access import message_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


_Question: TypeAlias = tuple[str, str, int, int]
"""Topic, key, and the first and last store time of interest."""
_Place: TypeAlias = "tuple[ByteArray, int, int]"
"""The bytes of a log file, its base, and how many of them may be read."""
_NOWHERE: Final[_Place] = (_NO_BYTES, 0, 0)


def _compiled_search() -> Callable[..., int | None] | None:
    """Return ``append_hits`` of ``_key_search.c``, None where it cannot be used."""
    if decode_intact is None or not kernels.is_compiled():
        return None
    try:
        from rocketstore.storage.reading import _key_search  # noqa: PLC0415 - optional
    except ImportError:
        return None
    append_hits: Callable[..., int | None] = _key_search.append_hits
    return append_hits


_append_hits: Final = _compiled_search()


class KeySearch:
    """Finds messages of one store by key; safe to use from several threads.

    Parameters
    ----------
    log, index
        Where to look.
    memory_span_bytes
        How far behind the log's end a record counts as being in memory.
    """

    def __init__(self, log: LogSource, index: IndexSource, memory_span_bytes: int) -> None:
        self._log = log
        self._index = index
        self._memory_span_bytes = memory_span_bytes
        self._is_mapped = hasattr(log, "files") and hasattr(index, "files")
        self._mapped_index = cast("MappedIndexSource", index)
        self._buffers: list[npt.NDArray[np.int64]] = []
        self._recent: tuple[weakref.ref[ByteArray], MappedPart] | None = None

    def find(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int | None, max_messages: int
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key, newest first; see `Reader.find`."""
        if max_messages <= 0 or not key:
            return []
        question = (topic, key, begin_ms, _NO_END_MS if end_ms is None else end_ms)
        if _append_hits is not None and self._is_mapped:
            found = self._find_compiled(_append_hits, question, max_messages)
            if found is not None:
                return found
        if self._is_mapped and topic.isascii() and key.isascii():
            return self._find_by_kernel(question, max_messages)
        return self._find_plainly(question, max_messages)

    def _find_compiled(
        self, append_hits: Callable[..., int | None], question: _Question, max_messages: int
    ) -> list[StoredMessage] | None:
        """Return what was asked for, None when the question is not one for compiled code."""
        index = self._mapped_index
        layout = index.layout
        in_disk_below = self._log.max_offset - self._memory_span_bytes
        found: list[StoredMessage] = []
        for array in self._index_arrays():
            number: int | None = _FROM_SLOT
            while number:
                number = append_hits(
                    self, decode_intact, array, layout, number, question,
                    self._recent_place(), in_disk_below, max_messages, found,
                )  # fmt: skip
            if number is None:
                return None
            if len(found) == max_messages:
                break
        return found

    def _index_arrays(self) -> Iterator[ByteArray]:
        """Yield the index files' bytes, newest first, and held: retention takes only names."""
        for file in reversed(self._mapped_index.files):
            try:
                array = file.array
            except FileNotFoundError:  # retention was faster: all it knows has expired
                continue
            yield array

    def _find_plainly(self, question: _Question, max_messages: int) -> list[StoredMessage]:
        messages: dict[int, StoredMessage] = {}
        for message in self._hits(question):
            messages.setdefault(message.physical_offset, message)
            if len(messages) == max_messages:
                break
        return list(messages.values())

    def _hits(self, question: _Question) -> Iterator[StoredMessage]:
        topic, key, begin_ms, end_ms = question
        candidates = self._index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        for physical_offset in candidates:
            message = self._hit_at(physical_offset, question)
            if message is not None:
                yield message

    def _hit_at(self, physical_offset: int, question: _Question) -> StoredMessage | None:
        """Return the message at an offset if it is one that was asked for."""
        topic, key, begin_ms, end_ms = question
        message = message_at(self._log, physical_offset)
        if message is None or not is_hit(message, topic, key):
            return None
        return message if begin_ms <= message.store_timestamp_ms <= end_ms else None

    def _find_by_kernel(self, question: _Question, max_messages: int) -> list[StoredMessage]:
        topic, key, begin_ms, end_ms = question
        index = self._mapped_index
        name = np.frombuffer(f"{topic}#{key}".encode(), np.uint8)
        slots, items = index.layout
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.zeros(2 * _HITS_PER_CALL + 1, np.int64)
        messages: dict[int, StoredMessage] = {}
        for array in self._index_arrays():
            number = _FROM_SLOT
            while number:
                log, base, readable = self._recent_place()
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
                    elif self._place_of(physical_offset) is not None:
                        message = self._hit_at(physical_offset, question)
                    else:
                        message = None
                    if message is not None:
                        messages[physical_offset] = message
                        if len(messages) == max_messages:
                            self._buffers.append(buffer)
                            return list(messages.values())
        self._buffers.append(buffer)
        return list(messages.values())

    def _place_of(self, physical_offset: int) -> _Place | None:
        """Return the log file of an offset, which will be looked at first the next time."""
        part = cast("MappedLogSource", self._log).files.find(physical_offset)
        if part is None or not part.is_available:
            return None
        try:
            array = part.array
        except FileNotFoundError:  # deleted since
            return None
        self._recent = (weakref.ref(array), part)
        return array, part.base, part.write_position

    def _recent_place(self) -> _Place:
        """Return the log file looked at last."""
        recent = self._recent
        if recent is not None:
            reference, part = recent
            log = reference()
            if log is not None:
                return log, part.base, part.write_position
        return _NOWHERE


def _decoded(log: ByteArray, physical_offset: int, base: int) -> StoredMessage | None:
    """Return the message that the kernel found, None when its body has another checksum."""
    try:
        return decode_record(log.data, physical_offset - base, base=base)
    except FormatError:
        return None


def is_hit(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a message is of a topic and carries a key."""
    return message.topic == topic and (key in message.keys or key == message.unique_key)
