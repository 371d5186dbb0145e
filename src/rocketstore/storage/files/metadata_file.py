"""Replace a small file as a whole, so that a crash leaves the old one or the new one.

Law: new bytes are on the disk before they get the name, the old ones stay beside as ``.bak``, and a
reader that finds the file broken takes the backup. A broken file never becomes the backup.

How derived: MixAll.string2File and ConfigManager.load of 4.9 (spec F13), which sync nothing and
delete the old file before the new one has its name (K-D4).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from rocketstore.errors import FormatError
from rocketstore.events import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk

_T = TypeVar("_T")
_log = get_logger(__name__)


def backup_path(path: Path) -> Path:
    """Return where the former content of `path` is kept."""
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
    former = _read(path)
    if former and former != content and _is_good(former, decode):
        replace_whole(backup_path(path), former, disk)
    replace_whole(path, content, disk)


def read_with_backup(path: Path, decode: Callable[[bytes], _T]) -> _T | None:
    """Return the decoded content of `path`, or of its backup where it is missing, empty or broken.

    None when there is neither. Raises `FormatError` when what there is is broken. Source:
    ConfigManager.load, loadBak.
    """
    broken: FormatError | None = None
    for candidate in (path, backup_path(path)):
        content = _read(candidate)
        if not content:
            continue
        try:
            return decode(content)
        except FormatError as error:
            _log.warning("table.broken", path=str(candidate), error=str(error))
            broken = error
    if broken is not None:
        raise broken
    return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _is_good(content: bytes, decode: Callable[[bytes], object] | None) -> bool:
    if decode is None:
        return True
    try:
        decode(content)
    except FormatError:
        return False
    return True


def replace_whole(path: Path, content: bytes, disk: Disk, *, sync_name: bool = True) -> None:
    """Make `content` the durable content of `path`, its name too if asked; keep no backup."""
    temporary = path.with_name(path.name + ".tmp")
    disk.unlink(temporary)
    descriptor = disk.create_file(temporary)
    try:
        disk.write_at(descriptor, temporary, 0, content)
        disk.fdatasync(descriptor, temporary)
    finally:
        os.close(descriptor)
    disk.replace(temporary, path)
    if sync_name:
        disk.fsync_directory(path.parent)
