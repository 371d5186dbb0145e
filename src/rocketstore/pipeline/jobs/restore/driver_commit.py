"""The driver's side of a restore: files of their full size, and one rename that makes the store.

Law: the target is not there, or is an empty directory, until the rename; what a killed restore left
lies beside it under a name that no reader takes for a store, and the next restore removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.format.blank import encode_blank
from rocketstore.format.file_name import file_name
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.jobs.restore.task import plain_write_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rocketstore.pipeline.jobs.archive.manifest import LogFile

_NO_FALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


def check_target(target: Path) -> None:
    """Check that nothing is where the store is to be.

    Raises
    ------
    StoreError
        Something is.
    """
    with plain_write_errors(target):
        if target.is_dir() and not any(target.iterdir()):
            return
        if target.exists() or target.is_symlink():
            raise StoreError(
                f"{target} is there already: expected nothing, or an empty directory",
                hint="name a directory that does not exist yet",
            )


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield the directory that becomes the store; it is removed unless `publish` was called.

    Raises
    ------
    StoreError
        Another restore to the same place runs, or the directory cannot be made.
    """
    root = target.parent / f".{target.name}.restoring"
    with plain_write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"{target} is being restored by another process",
                hint="wait for it to end, or restore to another directory",
            ) from None
        store = root / "store"
        shutil.rmtree(store, ignore_errors=True)
        try:
            with plain_write_errors(store):
                (store / COMMIT_LOG_DIRECTORY).mkdir(parents=True)
            yield store
        finally:
            shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(descriptor)


def make_files(store: Path, log_files: Iterable[LogFile]) -> None:
    """Make the CommitLog files with all their blocks, so that a full disk is known now.

    Raises
    ------
    StoreFullError
        The disk has no room for them.
    StoreError
        They cannot be made.
    """
    for one in log_files:
        path = store / COMMIT_LOG_DIRECTORY / file_name(one.base)
        with plain_write_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                _allocate(descriptor, one.size)
            finally:
                os.close(descriptor)


def _allocate(descriptor: int, size: int) -> None:
    if size == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise
        os.ftruncate(descriptor, size)


def write_blanks(store: Path, blanks: Iterable[tuple[int, int]], file_size: int) -> None:
    """Close files behind their last record.

    Raises
    ------
    StoreError
        They cannot be written.
    """
    for offset, size in blanks:
        position = offset % file_size
        path = store / COMMIT_LOG_DIRECTORY / file_name(offset - position)
        with plain_write_errors(path), path.open("r+b") as file:
            file.seek(position)
            file.write(encode_blank(size))
            file.flush()
            os.fsync(file.fileno())


def write_config(store: Path, tables: Mapping[str, bytes]) -> None:
    """Write the JSON tables.

    Raises
    ------
    StoreError
        They cannot be written.
    """
    directory = store / CONFIG_DIRECTORY
    with plain_write_errors(directory):
        for name, content in tables.items():
            directory.mkdir(exist_ok=True)
            with (directory / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())


def publish(store: Path, target: Path) -> None:
    """Give a finished store its name.

    Raises
    ------
    StoreError
        Something got that name meanwhile.
    """
    with plain_write_errors(target):
        for directory, _, _ in os.walk(store):
            sync_path(directory)
        try:
            store.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            check_target(target)
            raise
        sync_path(target.parent)
