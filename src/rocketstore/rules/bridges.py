"""Bridges over damage: what the header of a broken record says about where the log went on.

Law: pure functions over the bytes that `read` returns; no file is opened here.
"""

from collections.abc import Callable
from typing import Final

from rocketstore.format.record import RECORD_MAGICS

BRIDGE_HEADER_BYTES: Final = 88
"""Bytes of a record up to and including the body's length, with IPv4 hosts."""


class Headers:
    """What records of a file state; `read` returns so many bytes from a position.

    `base` is the physical offset of the file, which is zeros from where `read` returns fewer bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], base: int, size: int) -> None:
        self._read, self._base, self._size = read, base, size

    def lead(self, start: int, stop: int) -> bool:
        """Whether the broken bytes from `start` on show that the log went on at `stop`.

        The record that should stand at `start` is damaged, but its header may still lead on: by its
        length, or by the lengths inside it, to `stop` or to another damaged record's header, and so
        on. A record torn by a crash leads nowhere: what stands at its end was not written after it.
        Both ends of the break are physical offsets inside the file.
        """
        position = start
        while position < stop:
            ends = self._ends_of_record(position)
            inside = (end for end in ends if position < end <= stop)
            reached = next((end for end in inside if end == stop or all(self._vouched(end))), None)
            if reached is None:
                return False
            position = reached
        return position == stop

    def _vouched(self, offset: int) -> tuple[bool, bool]:
        """Whether magic and address say that a record begins at a physical offset."""
        at = offset - self._base
        return self._bytes(at + 4, 4) in RECORD_MAGICS, self._number(at + 28, 8) == offset

    def _ends_of_record(self, offset: int) -> list[int]:
        """Return the ends that a record states, if magic or address confirm its header."""
        at = offset - self._base
        if at + BRIDGE_HEADER_BYTES > self._size or not any(self._vouched(offset)):
            return []
        ends = [offset + self._number(at, 4)]
        inner = self._inner_size(at)
        return ends if inner is None else [*ends, offset + inner]

    def _inner_size(self, at: int) -> int | None:
        """Add up the lengths inside a record (magic V1), None where they leave the file."""
        flags = self._number(at + 36, 4)
        hosts = (20 if flags & 0x10 else 8) + (20 if flags & 0x20 else 8)
        body_size_at = at + 68 + hosts
        topic_size_at = body_size_at + 4 + self._number(body_size_at, 4)
        if topic_size_at >= self._size:
            return None
        properties_size_at = topic_size_at + 1 + self._number(topic_size_at, 1)
        if properties_size_at + 2 > self._size:
            return None
        return properties_size_at + 2 + self._number(properties_size_at, 2) - at

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._bytes(at, size), "big")

    def _bytes(self, at: int, size: int) -> bytes:
        inside = max(min(size, self._size - at), 0)
        return self._read(at, inside).ljust(inside, b"\0") if inside else b""
