"""Files of a store, on this machine's disks or anywhere that ``pyarrow.fs`` reaches.

A location is a path (or ``file:`` URI), read with ``pread``, or a URI such as ``s3://bucket/store``,
opened anew in every process from its text. Law: nothing is mapped and nothing is written.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from rocketstore.errors import StoreError
from rocketstore.units import KiB

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES: Final = 64 * KiB
_ZEROS: Final = bytes(_CHUNK_BYTES)


class FileEntry(NamedTuple):
    """What a directory holds under one name."""

    name: str
    path: str
    size: int
    is_directory: bool


class OpenFile(Protocol):
    """A file that can be read at any position."""

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` from `position` on; return how many bytes there were."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, or as many as there are."""
        ...

    def data_stop(self, size: int) -> int:
        """Return a position behind which the file is known to be zeros."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class Files(Protocol):
    """A file system."""

    def list(self, path: str) -> list[FileEntry]:
        """Return what a directory holds, sorted by name; nothing when there is no directory."""
        ...

    def open(self, path: str) -> OpenFile:
        """Open a file for reading."""
        ...


def files_at(location: str) -> tuple[Files, str]:
    """Return the file system of a location, and the location's path in it.

    Raises
    ------
    StoreError
        ``pyarrow.fs`` knows no such file system, or cannot reach it.
    """
    parts = urlsplit(location)
    # One letter is a drive, and a store may lie in a directory with a colon in its name.
    if "://" not in location and parts.scheme != "file":
        return LocalFiles(), str(Path(location).absolute())
    if parts.scheme == "file":
        return LocalFiles(), unquote(parts.path)
    from pyarrow import ArrowException, fs  # noqa: PLC0415 - only for stores elsewhere

    try:
        system, path = fs.FileSystem.from_uri(location)
    except (ArrowException, OSError, ValueError) as error:
        raise StoreError(
            f"{location} cannot be reached: {error}",
            hint="pyarrow.fs knows s3://, hdfs://, gs://, abfs:// and file://; "
            "credentials come from the environment of each executor",
        ) from error
    return ArrowFiles(system), path.rstrip("/")


@contextlib.contextmanager
def opened(files: Files, path: str) -> Iterator[OpenFile]:
    """Open a file for the length of a ``with`` block."""
    file = files.open(path)
    try:
        yield file
    finally:
        file.close()


def unreadable(path: str, error: OSError) -> StoreError:
    """Return the error that says why a file or directory cannot be read."""
    reason = error.strerror or str(error)
    hint = None
    if isinstance(error, PermissionError):
        hint = "let the user that runs Spark's workers read the store's files"
    elif isinstance(error, FileNotFoundError):
        hint = "retention may have deleted it since the query was planned; run the query again"
    return StoreError(f"{path} cannot be read: {reason}", hint=hint)


class LocalFiles:
    """Files of this machine, network mounts included."""

    def list(self, path: str) -> list[FileEntry]:
        """Return what a directory holds, sorted by name; nothing when there is no directory."""
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    # A file may go between being listed and being asked for its size.
                    with contextlib.suppress(FileNotFoundError):
                        size = entry.stat().st_size
                        found.append(FileEntry(entry.name, entry.path, size, entry.is_dir()))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(path, error) from error
        return sorted(found)

    def open(self, path: str) -> LocalFile:
        """Open a file for reading."""
        try:
            return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise unreadable(path, error) from error


class LocalFile:
    """A file read with ``pread``."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` from `position` on; return how many bytes there were."""
        total = 0
        try:
            while total < len(view):
                got = os.preadv(self.descriptor, [view[total:]], position + total)
                if got == 0:
                    break
                total += got
        except OSError as error:
            raise unreadable(self.path, error) from error
        return total

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, or as many as there are."""
        try:
            return os.pread(self.descriptor, size, position)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def data_stop(self, size: int) -> int:
        """Return a position behind which the file is known to be zeros.

        That is where its last hole begins. A file without a hole there, because its pages were
        written ahead, is read backwards as far as it is zeros.
        """
        return self._last_written(min(self._last_hole(size), size))

    def _last_written(self, stop: int) -> int:
        """Return a position up to a chunk behind the last byte before `stop` that is not zero."""
        while stop > 0:
            begin = max(0, stop - _CHUNK_BYTES)
            # Compared, not stripped: the empty end of a 1 GiB file is most of a small store.
            if self.read(begin, stop - begin) != _ZEROS[: stop - begin]:
                break
            stop = begin
        return stop

    def _last_hole(self, size: int) -> int:
        stop = 0
        try:
            while stop < size:
                data = os.lseek(self.descriptor, stop, os.SEEK_DATA)
                stop = os.lseek(self.descriptor, data, os.SEEK_HOLE)
        except OSError:
            # ENXIO: no data behind. A file system that cannot tell says so at once, with stop 0.
            if stop == 0 and os.fstat(self.descriptor).st_blocks:
                return size
        return stop

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.descriptor)


class ArrowFiles:
    """A file system of ``pyarrow.fs``."""

    def __init__(self, system: Any) -> None:
        self.system = system

    def list(self, path: str) -> list[FileEntry]:
        """Return what a directory holds, sorted by name; nothing when there is no directory."""
        from pyarrow import fs  # noqa: PLC0415 - as above

        selector = fs.FileSelector(path, allow_not_found=True)
        try:
            infos = self.system.get_file_info(selector)
        except NotADirectoryError:
            return []
        except OSError as error:
            raise unreadable(path, error) from error
        return sorted(
            FileEntry(info.base_name, info.path, info.size or 0, info.type == fs.FileType.Directory)
            for info in infos
        )

    def open(self, path: str) -> ArrowFile:
        """Open a file for reading."""
        try:
            return ArrowFile(path, self.system.open_input_file(path))
        except OSError as error:
            raise unreadable(path, error) from error


class ArrowFile:
    """A file read by ranges."""

    def __init__(self, path: str, handle: Any) -> None:
        self.path = path
        self.handle = handle

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` from `position` on; return how many bytes there were."""
        piece = self.read(position, len(view))
        view[: len(piece)] = piece
        return len(piece)

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, or as many as there are."""
        try:
            content: bytes = self.handle.read_at(size, position)
        except OSError as error:
            raise unreadable(self.path, error) from error
        return content

    def data_stop(self, size: int) -> int:
        """Return `size`: nothing is known of holes."""
        return size

    def close(self) -> None:
        """Let go of the file."""
        self.handle.close()
