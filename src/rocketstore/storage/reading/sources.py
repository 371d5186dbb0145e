"""What a reader reads from: a log, a table of queues, an index.

The store that writes keeps these in memory maps, the read-only store reads them with ``pread``;
both answer alike.

Law: nothing here writes, creates or takes a lock, and a question about an unknown queue leaves no
trace (K-C5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from mmap import mmap

    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.index.pread_index import PreadIndex
    from rocketstore.storage.queues.consume_queue import ConsumeQueue
    from rocketstore.storage.queues.pread_queue import PreadQueue, PreadQueues
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

QueueSource: TypeAlias = "ConsumeQueue | PreadQueue"
QueueSources: TypeAlias = "ConsumeQueueTable | PreadQueues"
IndexSource: TypeAlias = "IndexService | PreadIndex"
"""Where it is read, an index gives candidates by hashes only, and all that it names are judged."""

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
