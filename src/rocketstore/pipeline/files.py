"""Files of a store, on this machine's disks or anywhere that ``pyarrow.fs`` reaches.

A location is a path (or ``file:`` URI), read with ``pread``, or a URI such as ``s3://bucket/store``,
opened in every process from its text. Law: nothing is mapped and nothing is written (`objects`
writes). A location is no place for a secret: it stands in plans and errors.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from rocketstore.errors import ConfigError, StoreError
from rocketstore.units import KiB

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES: Final = 64 * KiB
_ZEROS: Final = bytes(_CHUNK_BYTES)

_BLOCK_BYTES: Final = 16 * KiB
"""Least bytes that are asked of an object store: as quick as 20 of them, and a binary search in a
queue file needs half as many requests."""

_BLOCK_OF_STAT: Final = 512

_SECRET_WORDS: Final = ("key", "secret", "token", "password", "signature", "credential", "sas")


_S3_NAMES: Final = frozenset({"s3", "s3a", "s3n"})
"""Of S3, here and to Hadoop's clients."""


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
        """Return a position after which the file is known to be zeros."""
        ...

    def is_hole(self, position: int) -> bool:
        """Whether nothing was ever written from a position on, as far as that can be known."""
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

    def stored_stop(self, path: str, size: int) -> int:
        """Return where the last hole of a file begins, if that can be known; nothing is read."""
        ...


def is_remote(location: str) -> bool:
    """Tell whether a location is a URI that only ``pyarrow.fs`` reaches."""
    return "://" in location and urlsplit(location).scheme != "file"


def local_path(location: str) -> str:
    """Return the absolute path of a location on a disk: a path, or a ``file:`` URI.

    Raises
    ------
    ConfigError
        A URI names another machine, or a place relative to nothing.

    Examples
    --------
    >>> local_path("file:/data/a"), local_path("file:///data/my%20store")
    ('/data/a', '/data/my store')
    >>> local_path("/data/my%20store")
    '/data/my%20store'
    """
    if location[:5].lower() != "file:":
        return str(Path(location).absolute())
    path = location[5:]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    if not path.startswith("/"):
        raise ConfigError(
            f"{location} names no directory of this machine",
            key="path",
            value=location,
            hint="give an absolute path, as in file:///data/store, or a path without file:",
        )
    return str(Path(unquote(path)))


def files_at(location: str) -> tuple[Files, str]:
    """Return the file system of a location, and the location's path in it.

    Raises
    ------
    StoreError
        ``pyarrow.fs`` knows no such file system, or cannot reach it.
    ConfigError
        The location holds a secret.
    """
    if not is_remote(location):
        return LocalFiles(), local_path(location)
    return _arrow_files(location)


def refuse_secrets(location: str) -> None:
    """Raise where a URI holds a password or an access key; the error does not repeat it.

    Raises
    ------
    ConfigError
        It does.
    """
    if not is_remote(location):
        return
    parts = urlsplit(location)
    has_user = parts.scheme in _S3_NAMES and parts.username is not None
    names = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if (
        has_user
        or parts.password is not None
        or any(word in name for name in names for word in _SECRET_WORDS)
    ):
        place = f"{parts.scheme}://…@{parts.hostname or ''}{parts.path}"
        raise ConfigError(
            f"{place} has a credential in it, which plans, logs and errors would repeat",
            hint="give credentials by the environment of the driver and of each executor, "
            "such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by the role of the machine",
        )


def _arrow_files(location: str) -> tuple[ArrowFiles, str]:
    """Return the files of a URI, and its path; Hadoop's names of S3 are understood, too."""
    refuse_secrets(location)
    parts = urlsplit(location)
    scheme = "s3" if parts.scheme in _S3_NAMES else parts.scheme
    query = f"?{parts.query}" if parts.query else ""
    try:
        # A client of a parent process has lost its threads: each process has its own.
        system, root = _client(f"{scheme}://{parts.netloc}/{query}", os.getpid())
    except (OSError, ValueError, NotImplementedError) as error:
        raise StoreError(
            f"{location} cannot be reached: {error}",
            hint="pyarrow.fs knows s3://, hdfs://, gs://, abfs:// and file://; "
            "credentials come from the environment of each executor",
        ) from error
    return ArrowFiles(system), f"{root.rstrip('/')}/{unquote(parts.path).strip('/')}".rstrip("/")


@functools.lru_cache(maxsize=64)
def _client(host: str, _process: int) -> tuple[Any, str]:
    """Return the client of a host or bucket, which takes milliseconds to make and a request."""
    from pyarrow import fs  # noqa: PLC0415 - only for stores elsewhere

    client: tuple[Any, str] = fs.FileSystem.from_uri(host)
    return client


def joined(location: str, *names: str) -> str:
    """Return the location of what lies below another one.

    Examples
    --------
    >>> joined("s3://bucket/stores/?region=eu-west-1", "broker-a")
    's3://bucket/stores/broker-a?region=eu-west-1'
    """
    if not is_remote(location):
        return "/".join((local_path(location).rstrip("/"), *names))
    place, mark, query = location.partition("?")
    return "/".join((place.rstrip("/"), *map(quote, names))) + mark + query


def last_name(location: str) -> str:
    """Return the last name in a location: of a directory, or of a bucket.

    Examples
    --------
    >>> last_name("s3://bucket/broker-a?region=eu-west-1"), last_name("/data/broker-b")
    ('broker-a', 'broker-b')
    """
    if not is_remote(location):
        return local_path(location).rpartition("/")[2]
    place = location.partition("?")[0]
    return unquote(place.rstrip("/").rpartition("/")[2])


@contextlib.contextmanager
def opened(files: Files, path: str) -> Iterator[OpenFile]:
    """Open a file for the length of a ``with`` block."""
    file = files.open(path)
    try:
        yield file
    finally:
        file.close()


def sync_path(path: Path | str) -> None:
    """Bring a file, or the names in a directory, of this machine to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_dangling(entry: os.DirEntry[str]) -> bool:
    """Whether a file of a store is a link to nothing: its messages would be left out silently."""
    return entry.name.isdigit() and entry.is_symlink() and not Path(entry.path).exists()


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
                        if _is_dangling(entry):
                            raise StoreError(
                                f"{entry.path} is a link to a file that is not there",
                                hint="bring back what it points to, or remove the link",
                            )
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

    def stored_stop(self, path: str, size: int) -> int:
        """Return where the last hole of a file begins, if that can be known; nothing is read."""
        with contextlib.suppress(OSError, StoreError):  # gone: who reads it says so
            if Path(path).stat().st_blocks * _BLOCK_OF_STAT < size:
                file = self.open(path)
                with contextlib.closing(file):
                    return min(file.last_hole(size), size)
        return size


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
        return self._last_written(min(self.last_hole(size), size))

    def is_hole(self, position: int) -> bool:
        """Whether nothing was ever written from a position on, as far as that can be known."""
        try:
            os.lseek(self.descriptor, position, os.SEEK_DATA)
        except OSError as error:
            return error.errno == errno.ENXIO
        return False

    def _last_written(self, stop: int) -> int:
        """Return a position up to a chunk behind the last byte before `stop` that is not zero."""
        while stop > 0:
            begin = max(0, stop - _CHUNK_BYTES)
            # Compared, not stripped: the empty end of a 1 GiB file is most of a small store.
            if self.read(begin, stop - begin) != _ZEROS[: stop - begin]:
                break
            stop = begin
        return stop

    def last_hole(self, size: int) -> int:
        """Return where the last hole begins; `size` where the file system cannot tell."""
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

    def stored_stop(self, path: str, size: int) -> int:  # noqa: ARG002 - of any file system
        """Return `size`: an object has no holes."""
        return size


class ArrowFile:
    """A file read by ranges.

    What is read of a few bytes at a time comes in blocks, of which the last is kept.
    """

    def __init__(self, path: str, handle: Any) -> None:
        self.path = path
        self.handle = handle
        self._block_at = 0
        self._block = b""

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` from `position` on; return how many bytes there were."""
        piece = self._read_at(position, len(view))
        view[: len(piece)] = piece
        return len(piece)

    def read(self, position: int, size: int) -> bytes:
        """Return so many bytes, or as many as there are."""
        if size >= _BLOCK_BYTES:
            return self._read_at(position, size)
        at = position - self._block_at
        if not 0 <= at <= len(self._block) - size:
            self._block_at = position - position % _BLOCK_BYTES
            at = position - self._block_at
            length = -(-(at + size) // _BLOCK_BYTES) * _BLOCK_BYTES
            self._block = self._read_at(self._block_at, length)
        return self._block[at : at + size]

    def _read_at(self, position: int, size: int) -> bytes:
        try:
            content: bytes = self.handle.read_at(size, position)
        except OSError as error:
            raise unreadable(self.path, error) from error
        return content

    def data_stop(self, size: int) -> int:
        """Return `size`: nothing is known of holes."""
        return size

    def is_hole(self, position: int) -> bool:  # noqa: ARG002 - as of every file
        """Return False: as above."""
        return False

    def close(self) -> None:
        """Let go of the file."""
        self.handle.close()
