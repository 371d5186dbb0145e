"""The driver's side of a run: one writer, leftovers swept, a commit by one rename.

Law: the rename of ``_staging/…/messages`` to ``messages/run=…`` is the commit. Before it a run is
nothing; what a killed run left is removed by the next one. Behind it the run is whole: everything
in it was synced before, and the manifest lies inside.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

from msgspec import structs

from rocketstore.errors import ArchiveError, StoreFullError
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.jobs.archive.layout import (
    CONFIG,
    EXTENTS,
    LOCK,
    MANIFEST,
    MESSAGES,
    STAGING,
    parse_run_name,
    partition,
    run_name,
)
from rocketstore.pipeline.jobs.archive.manifest import encode_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rocketstore.pipeline.jobs.archive.manifest import DataFile, ExtentFile, Manifest


@contextlib.contextmanager
def locked(archive: Path) -> Iterator[None]:
    """Be the only writer of an archive, making its directory where there is none.

    Raises
    ------
    ArchiveError
        Another process writes to it, or the directory cannot be made.
    """
    try:
        archive.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(archive / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArchiveError(
            f"{archive} cannot be written: {error.strerror}",
            hint="name a directory on a disk that this user may write to",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArchiveError(
                f"{archive} is being written by another process",
                hint="wait for it to end; two runs at once would archive the same twice",
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def plain_disk_errors(archive: Path) -> Iterator[None]:
    """Say what an error of the archive's disk means.

    Raises
    ------
    StoreFullError
        The disk is full.
    ArchiveError
        Anything else went wrong with it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(
                f"{archive}: the disk is full; nothing of this run is archived",
                hint="make room and run the archive again",
            ) from error
        raise ArchiveError(f"{archive} cannot be written: {error}") from error


def sweep(archive: Path, last_run: int) -> None:
    """Remove what runs that never ended have left."""
    shutil.rmtree(archive / STAGING, ignore_errors=True)
    extents = archive / EXTENTS
    if extents.is_dir():
        for entry in sorted(extents.iterdir()):
            run = parse_run_name(entry.name)
            if run is not None and run > last_run:
                shutil.rmtree(entry)


def new_staging(archive: Path) -> Path:
    """Make the directory that tasks write to, and return it."""
    tasks = archive / STAGING / "tasks"
    tasks.mkdir(parents=True)
    return tasks


def placed_files(
    staged: Iterable[DataFile],
) -> tuple[tuple[DataFile, ...], dict[str, str]]:
    """Return the files with their final paths below the run, and those paths by staged name."""
    final: list[DataFile] = []
    paths: dict[str, str] = {}
    taken: set[str] = set()
    for one in sorted(staged, key=lambda file: (file.task, file.path)):
        directory = partition(one.topic_bytes, one.day)
        path = f"{directory}/part-{one.task:05d}.parquet"
        number = 1
        # Two topics that are no UTF-8 may look alike.
        while path in taken:
            number += 1
            path = f"{directory}/part-{one.task:05d}-{number}.parquet"
        taken.add(path)
        paths[one.path] = path
        final.append(structs.replace(one, path=path))
    return tuple(final), paths


def placed_extents(
    staged: Iterable[tuple[int, ExtentFile]],
) -> tuple[tuple[ExtentFile, ...], dict[str, str]]:
    """Return the extents of tasks with their final paths, and those paths by staged name."""
    ordered = sorted(staged, key=lambda told: told[0])
    paths = {one.path: f"part-{task:05d}.parquet" for task, one in ordered}
    final = tuple(structs.replace(one, path=paths[one.path]) for _, one in ordered)
    return final, paths


def commit(
    archive: Path,
    manifest: Manifest,
    messages: Mapping[str, str],
    extents: Mapping[str, str],
    config: Mapping[str, bytes],
) -> None:
    """Make a staged run part of the archive.

    Parameters
    ----------
    messages, extents
        Final path below the run by the name that a task gave.
    config
        Content of the store's JSON tables by name.
    """
    tasks = archive / STAGING / "tasks"
    name = run_name(manifest.run)
    staged_messages = archive / STAGING / MESSAGES
    staged_extents = archive / STAGING / EXTENTS
    # Moved one by one: what an attempt that was given up still writes stays behind.
    for source, target in messages.items():
        _move(tasks / source, staged_messages / target)
    for source, target in extents.items():
        _move(tasks / source, staged_extents / target)
    for file_name, content in config.items():
        _write(staged_messages / CONFIG / file_name, content)
    _write(staged_messages / MANIFEST, encode_manifest(manifest))
    _sync_tree(staged_messages)
    if extents:
        _sync_tree(staged_extents)
        _publish(staged_extents, archive / EXTENTS / name)
    _publish(staged_messages, archive / MESSAGES / name)
    shutil.rmtree(archive / STAGING, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        sync_path(directory)


def _publish(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    source.rename(target)
    sync_path(target.parent)
    sync_path(target.parent.parent)
