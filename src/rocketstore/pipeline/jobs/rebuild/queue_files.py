"""Write queue files below a staging directory, each entry at its own place.

Law: a file has its whole length and its blocks before an entry is written, and only final bytes are
written: doing it twice, or at the same time, writes the same bytes twice.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.errors import StoreFullError
from rocketstore.format.file_name import file_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER_BYTES

if TYPE_CHECKING:
    from rocketstore.format.queue_entry import EntryArray

_OPEN_FILES: Final = 128
"""Descriptors that one task holds; queues come one after the other, so few are used again."""

_FILLERS: Final = FILLER_BYTES * 4096


class QueueFiles:
    """The queue files below one directory, opened as they are needed.

    Parameters
    ----------
    root
        The directory; a queue's own directory is made, `root` is not: when it is gone the rebuild
        is over.
    file_bytes
        Length of a queue file.
    """

    def __init__(self, root: str, file_bytes: int) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self._open: dict[str, int] = {}
        self._directories: set[str] = set()

    def write(self, directory: str, queue_offset: int, entries: EntryArray | bytes) -> None:
        """Write entries from a queue offset on into the queue of a directory."""
        view = np.frombuffer(entries, np.uint8).data
        at = queue_offset * ENTRY_SIZE_BYTES
        while view:
            base = at - at % self.file_bytes
            piece = view[: base + self.file_bytes - at]
            descriptor = self._descriptor(directory, base)
            _write_at(descriptor, at - base, piece)
            view = view[len(piece) :]
            at += len(piece)

    def fill(self, directory: str, start: int, stop: int) -> None:
        """Write fillers into the places ``[start, stop)``."""
        most = len(_FILLERS) // ENTRY_SIZE_BYTES
        for at in range(start, stop, most):
            count = min(most, stop - at)
            self.write(directory, at, _FILLERS[: count * ENTRY_SIZE_BYTES])

    def close(self) -> None:
        """Make what was written durable, and let go of the files."""
        while self._open:
            _, descriptor = self._open.popitem()
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def give_names(self, directory: str, root: str) -> None:
        """Move the files of a queue to the same directory below another root, one by one."""
        target = QueueFiles(root, self.file_bytes)
        target._make_directory(directory)
        for name in os.listdir(f"{self.root}/{directory}"):  # noqa: PTH208 - paths made of strings
            os.replace(  # noqa: PTH105 - as above
                f"{self.root}/{directory}/{name}", f"{root}/{directory}/{name}"
            )

    def _descriptor(self, directory: str, base: int) -> int:
        path = f"{self.root}/{directory}/{file_name(base)}"
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= _OPEN_FILES:
                self.close()
            self._make_directory(directory)
            descriptor = self._open[path] = open_whole(path, self.file_bytes)
        return descriptor

    def _make_directory(self, directory: str) -> None:
        if directory in self._directories:
            return
        topic = directory.partition("/")[0]
        for name in (topic, directory):
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{self.root}/{name}")  # noqa: PTH102 - a path made of strings
        self._directories.add(directory)


def open_whole(path: str, size: int) -> int:
    """Open a file for writing, made with all its blocks if it is not there.

    Raises
    ------
    StoreFullError
        The disk has no room for it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        raise StoreFullError(
            f"{path} cannot be made: {error.strerror}",
            hint=f"a rebuild needs room for new queues and index beside the old; {size} bytes here",
        ) from error
    return descriptor


def _write_at(descriptor: int, position: int, view: memoryview) -> None:
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written
