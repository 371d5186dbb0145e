"""The commit of a rebuild on a disk: the lock, and new directories in the place of old ones.

New queues and index are made below ``rebuild/<id>`` inside the store. When they are whole and
durable, each directory changes places with the new one in a single step (``RENAME_EXCHANGE``), and
the old one goes to ``repair/<time>/``. A journal says which directory is which, by inode, so that
the next rebuild or opening can tell old from new after a kill (decision 0010).

Law: at every moment ``consumequeue`` and ``index`` are whole, old or new; either serves the same
log. The lock is held from before the log is read until after the swap. The checkpoint stays: it
says up to when queues and index are on the disk, and the new ones are, to the log's end.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.at_once import at_once
from rocketstore.errors import NotAStoreError, StoreError, SystemRefusedError
from rocketstore.events import get_logger
from rocketstore.format.file_name import CONSUME_QUEUE_EXT_DIRECTORY
from rocketstore.process import give_to_owner
from rocketstore.storage.checkpoint import forget_known_ends
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.lock import StoreLock, refuse_writer
from rocketstore.storage.files.log_directories import refuse_foreign
from rocketstore.storage.files.whole_file import replace_whole
from rocketstore.storage.layout import StoreLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.config import StoreConfig

_log: Final = get_logger(__name__)

REBUILD_DIRECTORY: Final = "rebuild"  # in the store, where a rebuild works; gone when none runs
JOURNAL_NAME: Final = "commit.json"


@contextmanager
def locked(
    root: Path, config: StoreConfig | None = None, *, only_reads: bool = False
) -> Iterator[None]:
    """Hold the lock of a store, as a writer does, and clean up after a killed rebuild.

    Who only reads also gets a store that it may not write, unless a process writes to it.
    """
    layout = StoreLayout.of(root, config)
    with system_errors(f"cannot rebuild {root}"), ExitStack() as stack:
        try:
            stack.enter_context(StoreLock(layout.lock, layout.written_directories))
            is_ours = True
        except SystemRefusedError as error:
            if not only_reads or error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
                raise
            refuse_writer(layout.lock, hint="stop that writer")
            is_ours = False
        refuse_foreign(layout)
        if is_ours:
            finish_interrupted(root)
        yield


@contextmanager
def staged(root: Path) -> Iterator[Path]:
    """Yield a directory inside a store for the new files; it is removed if the block fails."""
    directory = root / REBUILD_DIRECTORY / uuid.uuid4().hex
    try:
        directory.mkdir(parents=True)
        yield directory
    except (Exception, KeyboardInterrupt):
        finish_interrupted(root)
        raise


class Journal(msgspec.Struct, frozen=True):
    """The steps of a commit; paths are relative to the store.

    `swaps` has each directory's name, and the inodes of the new and the old one, to tell them by.
    """

    staging: str
    kept: str
    swaps: list[tuple[str, int, int | None]]


def commit(root: Path, staging: Path, *, now_ms: int, disk: Disk | None = None) -> str | None:
    """Put new directories in the place of the old ones; the caller holds the lock.

    What is below `staging`, ``rebuild/<id>``, is whole, and its files are synced. Returns where the
    old directories are, relative to the store; None when there were none.
    """
    disk = disk or Disk()
    if (root / CONSUME_QUEUE_EXT_DIRECTORY).is_dir():  # no new entry refers there
        (staging / CONSUME_QUEUE_EXT_DIRECTORY).mkdir()
    names = sorted(path.name for path in staging.iterdir())
    for name in names:
        _refuse_link(root / name)
        walked = [*os.walk(staging / name)]
        at_once(disk.fsync_directory, [Path(place) for place, _, _ in walked])
        for place, _, files in walked:
            for one in ("", *files):
                give_to_owner(Path(place, one), root)
    swaps = [(name, (staging / name).stat().st_ino, _inode(root / name)) for name in names]
    kept = _kept_directory(root, now_ms)
    if kept.parent.is_dir() and not os.access(kept.parent, os.W_OK):  # else only after the swaps
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(kept.parent))
    journal = Journal(
        staging.relative_to(root).as_posix(), kept.relative_to(root).as_posix(), swaps
    )
    replace_whole(root / REBUILD_DIRECTORY / JOURNAL_NAME, msgspec.json.encode(journal), disk)
    disk.fsync_directory(root)
    # It names index files that are about to go; the next opening would miss them.
    forget_known_ends(root, keep_queues=True, disk=disk)
    for name, _, old_inode in swaps:
        _swap(root / name, staging / name, has_old=old_inode is not None, disk=disk)
        disk.fsync_directory(root)
        disk.fsync_directory(staging)
    is_kept = _keep_old(root, journal, disk)
    _sweep(root, disk)
    _log.info("rebuild.committed", root=str(root), kept=journal.kept if is_kept else None)
    return journal.kept if is_kept else None


def finish_interrupted(root: Path) -> None:
    """Clean up after a rebuild that was killed; the caller holds the lock.

    Directories that are in place stay, old or new: both are whole, and a writer may have gone on
    with them since. One that is missing, which only a kill between two plain renames leaves, gets
    the new one. Old ones are kept in ``repair/``; all else below ``rebuild`` is removed.
    """
    if not (root / REBUILD_DIRECTORY).is_dir():
        return
    disk, journal = Disk(), _read_journal(root / REBUILD_DIRECTORY / JOURNAL_NAME)
    if journal is not None:
        for name, new_inode, _ in journal.swaps:
            new = root / journal.staging / name
            if not (root / name).exists() and _inode(new) == new_inode:
                disk.replace(new, root / name)
        disk.fsync_directory(root)
        _keep_old(root, journal, disk)
    _sweep(root, disk)
    _log.warning("rebuild.swept", root=str(root), had_journal=journal is not None)


def _read_journal(path: Path) -> Journal | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{path} is not a journal of a rebuild: {error}",
            hint=f"look at {path.parent}, and delete it if nothing in it is needed",
        ) from error


def _swap(current: Path, new: Path, *, has_old: bool, disk: Disk) -> None:
    if not has_old:
        disk.replace(new, current)
        return
    try:
        disk.exchange(new, current)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise StoreError(
                f"{current} cannot be replaced: {error.strerror}",
                hint="consumequeue and index have to lie on the store's own file system",
            ) from error
        # The file system cannot exchange names: for a moment one is missing; the journal covers it.
        disk.replace(current, new.with_name(f"old-{new.name}"))
        disk.replace(new, current)


def _keep_old(root: Path, journal: Journal, disk: Disk) -> bool:
    """Move directories that were replaced to ``repair/``; return whether there are any."""
    staging, kept = root / journal.staging, root / journal.kept
    for name, _, old_inode in journal.swaps:
        for candidate in (staging / name, staging / f"old-{name}"):
            if old_inode is not None and _inode(candidate) == old_inode:
                disk.make_directory(kept)
                disk.replace(candidate, kept / name)
                disk.fsync_directory(kept)
    return kept.is_dir()


def _kept_directory(root: Path, now_ms: int) -> Path:
    path = first = StoreLayout.of(root).repair_at(now_ms)
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}.{number}")
    return path


def _sweep(root: Path, disk: Disk) -> None:
    """Remove everything below ``rebuild``, the journal last."""
    top = root / REBUILD_DIRECTORY
    for path in sorted(top.iterdir()):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    disk.unlink(top / JOURNAL_NAME)
    shutil.rmtree(top, ignore_errors=True)
    disk.fsync_directory(root)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreError(
            f"{path} is a link, which a rebuild would replace by a directory",
            hint="use: rocketstore queue rebuild, rocketstore index rebuild",
        )
    if path.exists() and not path.is_dir():
        raise NotAStoreError(f"{path} is not a directory", hint="move it away")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
