"""Make and replace files as a whole, and see where one holds anything but zeros.

Law: a new file has its full size from the moment it has its name. A writer that is killed between
the two leaves an empty file, and the Java store refuses to load a CommitLog or a ConsumeQueue with
a file of another size (MappedFileQueue.doLoad). So the blocks come first, while the file has no
name; where the file system knows no unnamed files (NFS, some overlays), they come apart as in 4.9.

Law: a small file is replaced by new bytes that are on the disk before they get the name, so a crash
leaves the old ones or the new ones; MixAll.string2File of 4.9 (spec F13) syncs nothing and deletes
the old file first (K-D4). A metadata table keeps the former ones as ``.bak``, which a reader takes
where the table is broken (ConfigManager.load); a broken file never becomes the backup.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rocketstore.errors import FormatError, StoreError, SystemRefusedError
from rocketstore.events import get_logger
from rocketstore.holes import data_extents
from rocketstore.rules.table_files import NO_FILE, Content, read_table
from rocketstore.storage.files.disk import (
    Disk,
    read_at,
    read_whole,
    refuse_dead_link,
    system_errors,
)
from rocketstore.units import MiB

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout

_ZEROS: Final = bytes(MiB)
"""Bytes of a file that are compared at a time."""

_HEAD_BYTES: Final = 8
"""Bytes that are looked at first: as many as a record has up to its magic code."""

_T = TypeVar("_T")

_log: Final = get_logger(__name__)


# --- making -------------------------------------------------------------------------------------


def make_file(path: Path, size: int, *, disk: Disk, sync: bool = True) -> tuple[int, bool]:
    """Make a file of `size` zero bytes, with all its blocks, in a directory that exists.

    An empty file of that name is replaced: its maker was interrupted. Where something else has the
    name, or the disk is full, no file is left behind. With `sync`, bytes and name are durable on
    return. Returns a descriptor open for both ways, and whether the file owns its blocks
    (`Disk.allocate`).
    """
    if path.is_file() and not holds_data(path):
        disk.unlink(path)
    try:
        return _made(path, size, disk, sync=sync)
    except FileExistsError as error:
        raise StoreError(
            f"cannot make {path}: something of that name is there already",
            hint="move it out of the store; the next message that needs the file makes it then",
        ) from error


def _made(path: Path, size: int, disk: Disk, *, sync: bool) -> tuple[int, bool]:
    descriptor = disk.create_unnamed(path)
    is_named = descriptor is None
    if descriptor is None:
        descriptor = disk.create_file(path)
    try:
        backed = disk.allocate(descriptor, path, size)
        if sync:
            # Size and blocks first: a name that survives a power cut alone is an empty file.
            disk.fdatasync(descriptor, path)
        if not is_named:
            disk.give_name(descriptor, path)
            is_named = True
            # Opened again, since the system's tools would list the file as "(deleted)".
            unnamed, descriptor = descriptor, -1
            os.close(unnamed)
            descriptor = disk.open_file(path, writable=True)
        if sync:
            disk.fsync_directory(path.parent)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        if is_named:
            disk.unlink(path)
        raise
    if not backed:
        _log.warning("file.sparse", path=str(path), reason="the file system has no fallocate")
    return descriptor, backed


def grow_file(path: Path, size: int, disk: Disk) -> None:
    """Let a file that was cut short reach its size, durably, with zeros."""
    with disk.opened(path, writable=True) as descriptor:
        disk.allocate(descriptor, path, size)
        disk.fdatasync(descriptor, path)


# --- replacing ----------------------------------------------------------------------------------


def replace_whole(
    path: Path, content: bytes | Iterable[bytes], disk: Disk, *, sync_name: bool = True
) -> None:
    """Make `content` the durable content of `path`, its name too if asked; keep no backup."""
    temporary = path.with_name(path.name + ".tmp")
    disk.unlink(temporary)
    descriptor = disk.create_file(temporary)
    try:
        try:
            position = 0
            for piece in (content,) if isinstance(content, bytes) else content:
                disk.write_at(descriptor, temporary, position, piece)
                position += len(piece)
            disk.fdatasync(descriptor, temporary)
        finally:
            os.close(descriptor)
        disk.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # on a full disk it would take what room there was
            disk.unlink(temporary)
        raise
    if sync_name:
        disk.fsync_directory(path.parent)


def backup_path(path: Path) -> Path:
    """Return where the former content of a metadata table is kept."""
    return path.with_name(path.name + ".bak")


def write_atomically(
    path: Path, content: bytes, *, disk: Disk, decode: Callable[[bytes], object] | None = None
) -> None:
    """Make `content` the durable content of `path`, keeping the former one as ``.bak``.

    The former one is worth keeping unless `decode` raises `FormatError`, or, without it, if it is
    not empty. After an error the file and its backup are as they were, or one of them is the new
    one.
    """
    disk.make_directory(path.parent)
    former = b""
    with contextlib.suppress(FileNotFoundError):
        former = read_whole(path)
    if former and former != content:
        with contextlib.suppress(FormatError):
            if decode is not None:
                decode(former)
            # Its name is durable with that of the new content, in the same directory.
            replace_whole(backup_path(path), former, disk, sync_name=False)
    replace_whole(path, content, disk)


class KnownTable(Generic[_T]):
    """A table that this process writes: what it wrote last itself is not decoded again.

    `decode` judges and decodes what another program may have written.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], _T], disk: Disk) -> None:
        self.path = path
        self._decode, self._disk = decode, disk
        self._written: tuple[bytes, _T] | None = None

    def read(self) -> _T | None:
        """Return what stands in the file or its backup; see `read_with_backup`."""
        return read_with_backup(self.path, self._decoded)

    def write(self, content: bytes, table: _T) -> None:
        """Make `content`, which is `table`, that of the file; see `write_atomically`."""
        write_atomically(self.path, content, disk=self._disk, decode=self._decoded)
        self._written = content, table

    def _decoded(self, content: bytes) -> _T:
        if self._written is not None and content == self._written[0]:
            return self._written[1]
        return self._decode(content)


def read_with_backup(path: Path, decode: Callable[[bytes], _T]) -> _T | None:
    """Return the decoded content of a table or of its backup; see `read_table`."""
    return read_table(str(path), _content, decode)


def _content(name: str) -> Content:
    path = Path(name)
    with system_errors(f"cannot read {path}"):
        if path.is_file():
            with contextlib.suppress(FileNotFoundError):  # it is being replaced
                return read_whole(path)
        refuse_dead_link(path.parent)
    return NO_FILE if os.path.lexists(path) else None


def small_files(layout: StoreLayout) -> Callable[[str], Content]:
    """Return what reads a small file by its name below the store."""

    def read(name: str) -> Content:
        try:
            return read_whole(layout.root / name)
        except FileNotFoundError:
            return None
        except SystemRefusedError as error:
            if error.errno not in {errno.EIO, errno.ELOOP}:
                raise  # nothing is known of it: no permission, a lost mount
            return os.strerror(error.errno)
        except StoreError:
            return NO_FILE

    return read


def changed_ns(directory: Path) -> dict[str, int]:
    """Return when each file of a directory was changed last, by name; in ns since 1970."""
    changed = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:  # reading it reports why
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                changed[entry.name] = entry.stat().st_mtime_ns
    return changed


# --- what a file holds --------------------------------------------------------------------------


def has_data(descriptor: int, path: Path, start: int, stop: int) -> bool:
    """Whether a byte of a range is not zero."""
    return any(True for _ in _nonzero_pieces(descriptor, path, start, stop))


def holds_data(path: Path) -> bool:
    """Whether a file holds any byte that is not zero."""
    with path.open("rb", buffering=0) as file:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        # The first bytes that the file system holds mostly tell, and to list all takes a while.
        held = size
        with contextlib.suppress(OSError):  # no data, or it cannot tell
            held = os.lseek(descriptor, 0, os.SEEK_DATA)
        if held < size and any(read_at(descriptor, path, held, _HEAD_BYTES)):
            return True
        return has_data(descriptor, path, 0, size)


def nonzero_extent(descriptor: int, path: Path, start: int, stop: int) -> tuple[int, int] | None:
    """Return the first byte of a range that is not zero, and one past the last; None without."""
    first = past = None
    for position, piece in _nonzero_pieces(descriptor, path, start, stop):
        if first is None:
            first = position + len(piece) - len(piece.lstrip(b"\0"))
        past = position + len(piece.rstrip(b"\0"))
    return None if first is None or past is None else (first, past)


def _nonzero_pieces(
    descriptor: int, path: Path, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    # All before the first read: what that brings into memory ahead of itself counts as data too.
    for begin, end in tuple(data_extents(descriptor, start, stop)):
        position = begin
        while position < end:
            piece = read_at(descriptor, path, position, min(MiB, end - position))
            if not piece:
                return
            if piece != _ZEROS[: len(piece)]:  # one memcmp, where counting would take tenfold
                yield position, piece
            position += len(piece)
