"""The file ``known-ends``: how far queues and index went when everything was last on the disk.

A queue that has lost the end of its files looks like one that ends there. This file remembers the
number each queue had got to, so that the next opening can tell the two apart without reading the
log (decision 0021). It is written with the checkpoint, at each opening, and at an orderly end.

Law: it only makes recovery look further. Nothing is cut because of it, a store without it opens,
and what somebody else wrote since is recognised: then it counts as missing. 4.9 ignores the file.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from rocketstore.errors import StoreFullError
from rocketstore.events import get_logger
from rocketstore.format.index_file import IndexHeader
from rocketstore.storage.files.disk import NO_SPACE_ERRORS
from rocketstore.storage.files.whole_file import replace_whole
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

KNOWN_ENDS_FILE_NAME: Final = "known-ends"
_HEAD_BYTES: Final = 8
_log: Final = get_logger(__name__)


class QueueEnds(NamedTuple):
    """Of one queue: the first offset its files have a place for, and its next message's offset."""

    first: int
    next: int


class KnownEnds(NamedTuple):
    """What the file says.

    Attributes
    ----------
    is_closed
        Written at an orderly end, not while the store was open.
    log_end
        Physical offset up to which everything had been dispatched.
    index_files
        Name and header of every index file, oldest first; None where that is not known.
    """

    is_closed: bool
    log_end: int
    queues: dict[QueueKey, QueueEnds]
    index_files: list[tuple[str, IndexHeader]] | None

    def applies(self, log: MappedFileQueue, *, clean: bool) -> bool:
        """Whether nobody but this package has written to the store since.

        A broker of 4.9 that stored a message, or began the next file, left a log that goes on.
        After a crash of ours it goes on too: then the file says that the store was open. `clean`
        says whether the last writer, ours or a broker, ended in order.
        """
        return not (clean or self.is_closed) or not _goes_on(log, self.log_end)


def _goes_on(log: MappedFileQueue, physical_offset: int) -> bool:
    """Whether a record or a BLANK begins at an offset: neither has eight zeros at its start."""
    file = log.find(physical_offset)
    if file is None:
        return bool(log.files) and log.files[-1].base > physical_offset
    head = file.read_at(physical_offset - file.base, _HEAD_BYTES)
    file.close_descriptor()
    return any(head)


_Content = tuple[
    Literal[1],  # a later version is not read
    bool,
    int,
    list[tuple[QueueKey, QueueEnds]],
    list[tuple[str, IndexHeader]] | None,
]


def encode_known_ends(ends: KnownEnds) -> bytes:
    """Encode the file: JSON of a checksum and what it is of."""
    queues = list(ends.queues.items())
    content = msgspec.json.encode((1, ends.is_closed, ends.log_end, queues, ends.index_files))
    return msgspec.json.encode((zlib.crc32(content), msgspec.Raw(content)))


def decode_known_ends(encoded: bytes) -> KnownEnds | None:
    """Decode the file; None where a byte of it is wrong, or a later version wrote it."""
    try:
        checksum, content = msgspec.json.decode(encoded, type=tuple[int, msgspec.Raw])
        if zlib.crc32(content) != checksum:
            return None
        _, is_closed, log_end, queues, index = msgspec.json.decode(content, type=_Content)
    except msgspec.DecodeError:
        return None
    return KnownEnds(is_closed, log_end, dict(queues), index)


def read_known_ends(root: Path) -> KnownEnds | None:
    """Return what the file below `root` says; None without one that is whole."""
    try:
        return decode_known_ends((root / KNOWN_ENDS_FILE_NAME).read_bytes())
    except OSError:
        return None


def write_known_ends(root: Path, ends: KnownEnds, *, disk: Disk) -> None:
    """Replace the file, durably but for its name; a crash leaves the old one or the new one."""
    replace_whole(root / KNOWN_ENDS_FILE_NAME, encode_known_ends(ends), disk, sync_name=False)


def forget_known_ends(root: Path, *, keep_queues: bool, disk: Disk) -> None:
    """Forget the index files, which a repair made again; also the queues whose numbers it took."""
    known = read_known_ends(root)
    if known is not None and keep_queues:
        write_known_ends(root, known._replace(index_files=None), disk=disk)
    else:
        disk.unlink(root / KNOWN_ENDS_FILE_NAME)


class KnownEndsWriter:
    """Keeps the file of an open store."""

    def __init__(
        self,
        root: Path,
        queues: ConsumeQueueTable,
        index: IndexService,
        *,
        dispatched_offset: Callable[[], int],
        disk: Disk,
    ) -> None:
        self._root = root
        self._queues = queues
        self._index = index
        self._dispatched_offset = dispatched_offset
        self._disk = disk
        self._written: KnownEnds | None = None
        self._lock = threading.Lock()

    def take(self, *, is_closed: bool = False) -> KnownEnds:
        """Return how far everything is now."""
        log_end = self._dispatched_offset()
        queues = {
            queue.key: QueueEnds(queue.first_offset, queue.given_stop)
            for queue in self._queues.all()
        }
        index = [(file.name, file.header) for file in self._index.files]
        return KnownEnds(is_closed, log_end, queues, index)

    def write(self, ends: KnownEnds) -> None:
        """Write it down unless the file says so; where there is no room, the old one has to do."""
        with self._lock:
            if ends == self._written:
                return
            try:
                write_known_ends(self._root, ends, disk=self._disk)
            except (StoreFullError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_SPACE_ERRORS:
                    raise
                _log.warning("known_ends.no_room", root=str(self._root), error=str(error))
            else:
                self._written = ends
