"""What a reader reads from: a log, a table of queues, an index.

The store that writes keeps these in memory maps, the read-only store reads them with ``pread``; a
reader knows only the protocols below, so that both answer alike.

Law: nothing here writes, creates or takes a lock, and a question about an unknown queue leaves no
trace (K-C5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from mmap import mmap

    from rocketstore.format.index_file import IndexLayout
    from rocketstore.units import QueueKey

Buffer: TypeAlias = "mmap | bytes | memoryview"


class MappedFilePart(Protocol):
    """A file of the log that lies in a memory map."""

    base: int
    """Physical offset of its first byte."""
    write_position: int
    """How many of its bytes are written."""


LogWindow: TypeAlias = "tuple[Buffer, int, int, MappedFilePart | None]"
"""A stretch of the log: the mapping of a whole file, or bytes that were read; the physical offset
of the first byte; how many of them are written; and the file, where it is a mapping."""

QueueWindow: TypeAlias = "tuple[Buffer, int, int, bool]"
"""A run of queue entries: their bytes, the queue offset of the first one, one past the last one for
which there is room (a queue's maximum may come before), and whether it is a mapping."""


class LogSource(Protocol):
    """The CommitLog as one range of bytes."""

    @property
    def is_mapped(self) -> bool:
        """Whether its files lie in memory maps."""
        ...

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is still there."""
        ...

    @property
    def max_offset(self) -> int:
        """Where the log ends, or a little after; "in memory" is measured from it."""
        ...

    @property
    def readable_limit(self) -> int:
        """One past the last byte that a reader may see."""
        ...

    def window(self, offset: int, size: int) -> LogWindow | None:
        """Return a stretch with `size` bytes at `offset`; None where no present file has them.

        It may end earlier where fewer bytes are written.
        """
        ...


class QueueSource(Protocol):
    """One ConsumeQueue."""

    @property
    def min_offset(self) -> int:
        """First queue offset whose record is still in the CommitLog."""
        ...

    @property
    def max_offset(self) -> int:
        """One past the last entry."""
        ...

    @property
    def first_offset(self) -> int:
        """First queue offset on disk, expired and filler entries included."""
        ...

    @property
    def entries_per_file(self) -> int:
        """How many entries one file holds."""
        ...

    def window(self, start: int, limit: int) -> QueueWindow | None:
        """Return a run with the entry `start`, at best also the `limit` - 1 after it.

        None where the file is not there.
        """
        ...

    def entry_bytes(self, start: int, limit: int) -> memoryview | bytes | None:
        """Return up to `limit` written entries from queue offset `start`, within one file.

        None where the file is not there.
        """
        ...


class QueueSources(Protocol):
    """All ConsumeQueues; asking for one never creates it."""

    def get(self, key: QueueKey) -> QueueSource | None:
        """Return the queue, or None."""
        ...

    def keys(self) -> Iterable[QueueKey]:
        """Return every queue that exists."""
        ...


class MappedIndexFile(Protocol):
    """An index file that lies in a memory map."""

    @property
    def mapping(self) -> Buffer:
        """The mapping; raises `FileNotFoundError` when the file was deleted before it was made."""
        ...


class MappedIndexSource(Protocol):
    """A key index whose files lie in memory maps, so that they can be searched as a whole."""

    layout: IndexLayout
    """Slots and items of each file."""
    is_mapped: Literal[True]

    @property
    def mapped_files(self) -> Iterable[MappedIndexFile]:
        """All, newest first."""
        ...


class ReadIndexSource(Protocol):
    """A key index whose files are read: hashes only, so all that it names must be looked at."""

    is_mapped: Literal[False]

    def candidates(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int | None
    ) -> Iterator[int]:
        """Yield physical offsets of possible hits, newest first.

        The range of store times is a hint: more may come than lies in it, never less.
        """
        ...


IndexSource: TypeAlias = MappedIndexSource | ReadIndexSource
