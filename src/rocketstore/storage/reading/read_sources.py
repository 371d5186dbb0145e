"""What the reader reads from: a log, a table of queues, an index.

The store that writes keeps these in memory maps, the read-only store reads them with ``pread``; the
reader knows only the small protocols below, so that both answer alike.

Law: nothing here writes, creates or takes a lock, and a question about an unknown queue leaves no
trace (K-C5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from rocketstore.format.index_file import IndexLayout
    from rocketstore.units import QueueKey

    ByteArray = npt.NDArray[np.uint8]


class LogSource(Protocol):
    """The CommitLog as one range of bytes."""

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is still there."""
        ...

    @property
    def max_offset(self) -> int:
        """Where the log ends, or a little behind; "in memory" is measured from it."""
        ...

    @property
    def readable_limit(self) -> int:
        """One past the last byte that a reader may see."""
        ...

    def slice(self, offset: int, size: int) -> memoryview | bytes | None:
        """Return `size` bytes at `offset`, or None where they are not all in one present file."""
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


class IndexSource(Protocol):
    """The key index: hashes only, so every answer is a candidate that must be verified."""

    def candidates(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int | None
    ) -> Iterator[int]:
        """Yield physical offsets of possible hits, newest first.

        The range of store times is a hint: more may come than lies in it, never less.
        """
        ...


class MappedIndexPart(Protocol):
    """One index file that lies in a memory map."""

    @property
    def array(self) -> ByteArray:
        """All its bytes."""
        ...


class MappedIndexSource(IndexSource, Protocol):
    """An index whose files are memory maps, so that a kernel can search them."""

    layout: IndexLayout
    """Slots and items of each file."""

    @property
    def files(self) -> Sequence[MappedIndexPart]:
        """All, oldest first; replaced as a whole when a file comes or goes."""
        ...


class MappedWindow(NamedTuple):
    """Part of a file that lies in a memory map, for kernels."""

    array: ByteArray
    """The whole mapping."""
    base: int
    """Offset of ``array[0]``, in bytes of the log or of the queue."""
    readable_bytes: int
    """How much of it, from its start, may be read."""


class MappedPart(Protocol):
    """One file of a log that lies in a memory map."""

    base: int
    """Physical offset of its first byte."""
    write_position: int
    """How many of its bytes are written."""

    @property
    def array(self) -> ByteArray:
        """All its bytes."""
        ...

    @property
    def is_available(self) -> bool:
        """False once its deletion was asked for."""
        ...


class MappedParts(Protocol):
    """The files of a log."""

    @property
    def files(self) -> Sequence[MappedPart]:
        """All, in order; replaced as a whole when a file comes or goes."""
        ...

    def find(self, offset: int) -> MappedPart | None:
        """Return the file that covers `offset`."""
        ...


class MappedLogSource(LogSource, Protocol):
    """A log whose files are memory maps, so that kernels can copy from it."""

    @property
    def files(self) -> MappedParts:
        """Its files."""
        ...


class MappedQueueSource(QueueSource, Protocol):
    """A queue whose files are memory maps."""

    def window(self, position: int) -> MappedWindow | None:
        """Return the map that holds byte `position` of the queue, or None."""
        ...
