"""Files and directories at a location, on a disk or anywhere that ``pyarrow.fs`` reaches.

A file on a disk is read with ``pread``; an object store is asked for ranges, by a client that every
process makes from the location's text.

Laws: nothing is mapped. An object appears under its name as a whole, when its writer is done, or
not at all.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from rocketstore.at_once import at_once, spread
from rocketstore.errors import StoreError
from rocketstore.format.file_name import parse_file_name
from rocketstore.format.refusals import may_be_topic
from rocketstore.holes import data_stop
from rocketstore.places.location import S3_NAMES, is_remote, local_path, refuse_secrets, uri_parts
from rocketstore.units import KiB

_ZEROS: Final = bytes(64 * KiB)
_BLOCK_BYTES: Final = 16 * KiB
"""Least bytes that are asked of an object store: as quick as 20 of them, and a binary search in a
queue file needs half as many requests."""

REQUESTS: Final = 16  # asked for side by side: each is a round trip and hardly any bytes


class FileEntry(NamedTuple):
    """What a directory holds under one name; a pipe, or a link to nothing, is neither of two."""

    name: str
    path: str
    size: int
    is_directory: bool
    changed_ns: int = 0
    is_file: bool = True


class StoreFile(NamedTuple):
    """One file of a log or a queue; `base` is the offset in its name, `size` what is usable."""

    base: int
    size: int
    path: str

    @property
    def stop(self) -> int:
        """Offset past its last byte."""
        return self.base + self.size


def offset_files(entries: Iterable[FileEntry]) -> list[StoreFile]:
    """Return the files that are named by an offset, in order."""
    named = ((parse_file_name(one.name), one) for one in entries if one.is_file)
    found = [StoreFile(base, one.size, one.path) for base, one in named if base is not None]
    return sorted(found, key=lambda one: (one.base, one.path))


def side_by_side(location: str, count: int) -> Callable[..., Iterator[Any]]:
    """Return a `map` over some values, which runs calls side by side if it pays."""
    if count < REQUESTS and not is_remote(location):
        return map  # done before the threads are there

    def mapped(call: Callable[..., Any], *values: Iterable[Any]) -> Iterator[Any]:
        rows = zip(*values, strict=True)
        while some := [*itertools.islice(rows, 64 * REQUESTS)]:
            yield from spread(lambda row: call(*row), some, most=REQUESTS)

    return mapped


def files_at(location: str) -> tuple[Files, str]:
    """Return the file system of a location, and the location's path in it."""
    if not is_remote(location):
        return LocalFiles(), local_path(location)
    refuse_secrets(location)
    parts = uri_parts(location)
    scheme = "s3" if parts.scheme in S3_NAMES else parts.scheme
    query = f"?{parts.query}" if parts.query else ""
    try:
        # A client of a parent process has lost its threads: each process has its own.
        system, root = _client(f"{scheme}://{parts.netloc}/{query}", os.getpid())
    except (OSError, ValueError, NotImplementedError) as error:
        raise StoreError(
            f"{location} cannot be reached: {str(error).partition(chr(10))[0]}",
            hint="pyarrow.fs knows s3://, hdfs://, gs://, abfs:// and file://; "
            "credentials come from the environment of each executor",
        ) from error
    return ArrowFiles(system), f"{root.rstrip('/')}/{unquote(parts.path).strip('/')}".rstrip("/")


def entries_of(location: str, *names: str) -> list[FileEntry]:
    """Return what a directory below a location holds; nothing when there is no directory."""
    files, root = files_at(location)
    return files.list("/".join((root, *names)))


def subdirectories(files: Files, path: str) -> list[FileEntry]:
    """Return the directories in one of queues or topics, as `listed_queues` of a store does."""
    try:
        return directories(files.list(path))
    except StoreError as error:
        if not isinstance(error.__cause__, PermissionError) or may_be_topic(Path(path).name):
            raise
        return []


def directories(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Return the directories, of queues or topics; raises where one is a link to nothing."""
    for one in entries:
        if not (one.is_directory or one.is_file) and may_be_topic(one.name):
            refuse_link_to_nothing(one.path)
    return [one for one in entries if one.is_directory]


@functools.lru_cache(maxsize=64)
def _client(host: str, _process: int) -> Any:
    """Return the client of a host or bucket, which takes milliseconds to make and a request."""
    from pyarrow import fs  # noqa: PLC0415 - only for stores elsewhere

    return fs.FileSystem.from_uri(host)


def read_part(location: str, path: str, position: int, size: int) -> bytes:
    """Return up to so many bytes of a file of a location."""
    with opened(location, path) as file:
        return file.read(position, size)


def root_file(location: str, name: str) -> bytes:
    """Return a small file of a store's root; nothing where it is missing."""
    files, root = files_at(location)
    size = {entry.name: entry.size for entry in files.list(root)}.get(name)
    return read_part(location, f"{root}/{name}", 0, size) if size else b""


def stored_stop(location: str, path: str, size: int) -> int:
    """Return where the last hole of a file begins, if that can be known; nothing is read."""
    if is_remote(location):
        return size
    with contextlib.suppress(StoreError), opened(location, path) as file:  # the reader reports it
        return data_stop(file.descriptor, size) if isinstance(file, LocalFile) else size
    return size


def opened(location: str, path: str) -> contextlib.closing[OpenFile]:
    """Open a file, by its path in the file system of a location, for a ``with`` block."""
    files = files_at(location)[0] if is_remote(location) else LocalFiles()
    return contextlib.closing(files.open(path))


def sync_path(path: Path | str) -> None:
    """Sync a file, or the names in a directory, of this machine."""
    with contextlib.closing(LocalFiles().open(str(path))) as file:
        try:
            os.fsync(file.descriptor)
        except OSError as error:
            # As `Disk.fsync_directory`: some file systems have no such call.
            if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP} or not Path(path).is_dir():
                raise


def sync_all(paths: Iterable[Path | str]) -> None:
    """Sync many files and directories, of which those that wait share a flush of the disk."""
    at_once(sync_path, [*paths])


def missing_directories(place: Path) -> list[Path]:
    """Return the missing directories on the path of one, the directory itself first."""
    return [one for one in (place, *place.parents) if not one.exists()]


def make_directories(place: Path) -> None:
    """Make a directory and those above it that are missing, and bring their names to the disk."""
    missing = missing_directories(place)
    place.mkdir(parents=True, exist_ok=True)
    sync_all(one.parent for one in missing)


class plain_reads:  # noqa: N801 - a generator's context takes longer than most reads
    """Say in one sentence why a file or directory cannot be read."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError):
            return
        hints = {
            PermissionError: "let the user that runs Spark's workers read the store's files",
            FileNotFoundError: "retention may have deleted it since the query was planned; run the "
            "query again",
        }
        what = f"{self._path} cannot be read: {error.strerror or error}"
        raise StoreError(what, hint=hints.get(type(error))) from error


class passing_over_deleted(contextlib.AbstractContextManager[Any, bool]):  # noqa: N801 - as above
    """Pass over a file that retention deleted since it was listed."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, StoreError) and isinstance(error.__cause__, FileNotFoundError)


def _listed(entry: os.DirEntry[str]) -> Iterator[FileEntry]:
    """Yield what a directory of this machine holds under one name, unless it was deleted since."""
    try:
        found = entry.stat()
    except OSError as error:
        leads_nowhere = entry.is_symlink() and error.errno in {errno.ENOENT, errno.ELOOP}
        if leads_nowhere and entry.name.isdigit():
            refuse_link_to_nothing(entry.path)
        elif leads_nowhere:
            yield FileEntry(entry.name, entry.path, 0, is_directory=False, is_file=False)
        elif not isinstance(error, FileNotFoundError):
            raise
        return
    is_file, is_directory = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
    yield FileEntry(entry.name, entry.path, found.st_size, is_directory, found.st_mtime_ns, is_file)


def refuse_link_to_nothing(path: str) -> None:
    """Raise where a path is a link that leads to no file and no directory."""
    if Path(path).is_symlink() and not Path(path).exists():
        raise StoreError(
            f"{path} is a link to something that is not there",
            hint="bring back what it points to (is a disk not mounted?), or remove the link",
        )


class LocalFiles:
    """Files of this machine, network mounts included."""

    def list(self, path: str) -> list[FileEntry]:
        """Return what a directory holds, sorted by name; nothing when there is no directory."""
        found: list[FileEntry] = []
        gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with plain_reads(path), gone, os.scandir(path) as entries:
            for entry in entries:
                with plain_reads(entry.path):
                    found += _listed(entry)
        if not found:
            refuse_link_to_nothing(path)
        return sorted(found)

    def open(self, path: str) -> LocalFile:
        """Open a file for reading."""
        with plain_reads(path):
            return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class LocalFile:
    """A file read with ``pread``."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.read_count = 0  # bytes of `read_into`, which is what a scan reads with

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` from `position` on; return how many bytes there were."""
        total = 0
        with plain_reads(self.path):
            while got := os.preadv(self.descriptor, [view[total:]], position + total):
                total += got
        self.read_count += total
        return total

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, fewer where it ends; a call returns what is before a bad sector."""
        content = b""
        with plain_reads(self.path):
            while more := os.pread(self.descriptor, size - len(content), position + len(content)):
                content += more
                if len(content) == size:
                    break
        return content

    def data_stop(self, size: int) -> int:
        """Return a position, of a chunk, after which the file is zeros."""
        stop = data_stop(self.descriptor, size)
        while stop > 0:  # its pages may have been written ahead
            begin = max(0, stop - len(_ZEROS))
            # Compared, not stripped: the empty end of a 1 GiB file is most of a small store.
            if self.read(begin, stop - begin) != _ZEROS[: stop - begin]:
                break
            stop = begin
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

        infos: Iterable[Any] = ()
        with plain_reads(path), contextlib.suppress(NotADirectoryError):
            infos = self.system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(
            FileEntry(
                info.base_name,
                info.path,
                info.size or 0,
                info.type == fs.FileType.Directory,
                info.mtime_ns or 0,
                info.is_file,
            )
            for info in infos
        )

    def open(self, path: str) -> ArrowFile:
        """Open a file for reading."""
        with plain_reads(path):
            return ArrowFile(path, self.system.open_input_file(path))


class ArrowFile:
    """A file read by ranges; for small reads, the last block is kept."""

    def __init__(self, path: str, handle: Any) -> None:
        self.path, self.handle = path, handle
        self.read_count = 0
        self._block_at, self._block = 0, b""

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` from `position` on; return how many bytes there were."""
        piece = self._read_at(position, len(view))
        view[: len(piece)] = piece
        self.read_count += len(piece)
        return len(piece)

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, or as many as there are."""
        if size >= _BLOCK_BYTES:
            return self._read_at(position, size)
        if not self._block_at <= position <= self._block_at + len(self._block) - size:
            self._block_at = position - position % _BLOCK_BYTES
            blocks = -(-(position + size - self._block_at) // _BLOCK_BYTES)
            self._block = self._read_at(self._block_at, blocks * _BLOCK_BYTES)
        at = position - self._block_at
        return self._block[at : at + size]

    def _read_at(self, position: int, size: int) -> bytes:
        with plain_reads(self.path):
            return bytes(self.handle.read_at(size, position))

    def data_stop(self, size: int) -> int:
        """Return `size`: holes are not known."""
        return size

    def close(self) -> None:
        """Let go of the file."""
        self.handle.close()


Files: TypeAlias = LocalFiles | ArrowFiles
OpenFile: TypeAlias = LocalFile | ArrowFile
