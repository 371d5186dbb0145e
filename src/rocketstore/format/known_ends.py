"""``known-ends``: how far each queue and the index had got, and which log that is said of.

JSON of a checksum and of what it is of, in a store's root; only this package writes and reads it
(decision 0021).

Law: what is said counts only where the file is tied to the log, up to the last tie that the log
has. Each reader asks here, and gives a function that reads the log.
Page: docs/format/directory.md.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from rocketstore.format.index_file import IndexHeader
from rocketstore.format.record import FIXED_SIZE
from rocketstore.units import QueueKey

ReadLog: TypeAlias = Callable[[int, int], bytes | None]
"""Reads up to so many bytes of a log from a physical offset on; nothing where no file has them."""

_HEAD_BYTES: Final = 8


class QueueEnds(NamedTuple):
    """Of one queue: the first offset in its files, and the next message's offset."""

    first: int
    next: int


class KnownEnds(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content of the file, of a moment when everything before `log_end` had been dispatched."""

    version: Literal[1]  # a later one is not read
    is_closed: bool  # written at an orderly end, not while the store was open
    log_end: int
    queues: list[tuple[QueueKey, QueueEnds]]
    index_files: list[tuple[str, IndexHeader]] | None  # oldest first; None where it is not known
    ties: list[tuple[int, int]] = []
    """Physical offsets of records before `log_end`, and the CRC-32 of their heads."""

    batch_queues: list[tuple[QueueKey, QueueEnds]] = []
    """The queues of batch topics."""

    @property
    def last_tie(self) -> int:
        """Where a log has to be tied that has lost nothing of what it was: 0 if it was empty."""
        return self.ties[-1][0] if self.ties else 0

    def tied_up_to(self, read: ReadLog) -> int | None:
        """Return where the last tie that a log has stands: up to there it is the log meant.

        None of another store's log, 0 where nothing was in it yet. The last ties are gone from a
        log that a power cut shortened, or that is an older backup, and lead elsewhere in one that
        went on in another way.
        """
        found = (at for at, checksum in reversed(self.ties) if tie_at(read, at) == checksum)
        return next(found, None if self.log_end else 0)

    def goes_on(self, read: ReadLog, files: Sequence[Any]) -> bool:
        """Whether a log of these files has a record or a BLANK at its end, or a later file."""
        head = read(self.log_end, _HEAD_BYTES)  # neither begins with eight zeros
        return any(head) if head else bool(files) and files[-1].base > self.log_end

    def is_by_others(self, read: ReadLog, files: Sequence[Any], *, ended: bool) -> bool:
        """Whether the log goes on after an end in order, of the file or, `ended`, of the store."""
        return (self.is_closed or ended) and self.goes_on(read, files)

    def is_deleted(self, ends: QueueEnds, queue: Any, *, by_others: bool) -> bool:
        """Whether another program deleted a queue, or deleted it and made it again.

        One that was made again begins with a number given before, of a record after `log_end`. One
        that is gone was deleted where it is sure that the log goes on `by_others`, else it is lost.
        """
        first = queue and queue.entry(queue.first_offset)
        if not first:
            return by_others
        return bool(first.physical_offset >= self.log_end and queue.first_offset < ends.next)


OF_NO_LOG: Final = KnownEnds(1, is_closed=False, log_end=-1, queues=[], index_files=None)
"""What a damaged file counts as: it was this store's, and says nothing of what that may lack."""


def tie_at(read: ReadLog, physical_offset: int) -> int | None:
    """Return the CRC-32 of the head of a record; None where the log has nothing there."""
    head = read(physical_offset, FIXED_SIZE)
    return zlib.crc32(head) if head and any(head) else None


def decode_known_ends(encoded: bytes) -> KnownEnds | None:
    """Return what a file of these bytes says; None where it is not whole."""
    try:
        checksum, content = msgspec.json.decode(encoded, type=tuple[int, msgspec.Raw])
        if zlib.crc32(content) == checksum:
            return msgspec.json.decode(content, type=KnownEnds)
    except msgspec.DecodeError:
        pass
    return None


def encode_known_ends(ends: KnownEnds) -> bytes:
    """Return the file's content."""
    content = msgspec.json.encode(ends)
    return msgspec.json.encode((zlib.crc32(content), msgspec.Raw(content)))
