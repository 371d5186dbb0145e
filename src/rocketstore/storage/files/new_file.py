"""Make a file that has its full size from the moment it has its name.

A writer that is killed between a file's name and its size leaves an empty file behind, and the Java
store refuses to load a CommitLog or a ConsumeQueue with a file of another size
(MappedFileQueue.doLoad). So the blocks come first, while the file has no name; where the file
system knows no unnamed files (NFS, some overlays), name and size come apart as in 4.9.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.storage.files.written import holds_data

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk

_log = get_logger(__name__)


def make_file(path: Path, size: int, *, disk: Disk, sync: bool = True) -> tuple[int, bool]:
    """Make a file of `size` zero bytes, with all its blocks, in a directory that exists.

    With `sync`, bytes and name are durable when this returns.

    Returns
    -------
    descriptor, backed
        A descriptor open for both ways, and whether the file owns all its blocks (see
        `Disk.allocate`).

    Raises
    ------
    StoreFullError
        There is no room; nothing is left behind.
    StoreError
        Something has that name already, say a directory.
    """
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
            # Opened again, or the tools of the system would list the file as "(deleted)".
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
        _log.warning("file.sparse", path=str(path), why="the file system has no fallocate")
    return descriptor, backed


def grow_file(path: Path, size: int, disk: Disk) -> None:
    """Let a file that was cut short reach its size, durably, with zeros."""
    descriptor = disk.open_file(path, writable=True)
    try:
        disk.allocate(descriptor, path, size)
        disk.fdatasync(descriptor, path)
    finally:
        os.close(descriptor)


def remove_empty(path: Path, disk: Disk) -> None:
    """Delete a file that is in the way and holds nothing: its maker was interrupted."""
    if path.is_file() and not holds_data(path):
        disk.unlink(path)
