"""Where the parts of a store are, how long its files should be, and whether somebody writes to it.

Law: nothing is opened for writing, and this process opens no descriptor of the lock file: closing
it would drop the lock of a writer in this very process. Another one asks the kernel. Where that has
no sure answer, the file ``abort`` of a writer that has not ended is one: no live store is called
damaged.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstore.config import (
    FileObservation,
    ObservedSizes,
    StoreConfig,
    StoreSizes,
    resolve_sizes,
)
from rocketstore.errors import NotAStoreError
from rocketstore.format.index_file import IndexLayout, is_index_file_name
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    LOCK_FILE_NAME,
    LOCK_LENGTH_BYTES,
    LOCK_START,
)
from rocketstore.pipeline.files import files_at, is_remote, opened
from rocketstore.pipeline.jobs.audit.store_files import (
    FileRow,
    StoreFile,
    commonest_size,
    file_row,
    listed_queues,
    offset_files,
)
from rocketstore.pipeline.stores import (
    REBUILD_DIRECTORY,
    configured_log,
    list_segments,
    refuse_half_rebuilt,
    store_with_log,
)

if TYPE_CHECKING:
    from rocketstore.pipeline.files import FileEntry, Files
    from rocketstore.units import QueueKey

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ELSEWHERE: Final = ("nfs", "cifs", "smb", "9p", "virtiofs", "fuse", "ceph", "gluster", "lustre")
"""Beginnings of the kinds of file systems that other machines mount as well."""

_IS_LOCKED: Final = 3
_ASK: Final = f"""
import fcntl, struct, sys
question = struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, {LOCK_START}, {LOCK_LENGTH_BYTES}, 0)
with open(sys.argv[1], "rb") as file:
    answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
sys.exit(0 if struct.unpack("@hhqqi4x", answer)[0] == fcntl.F_UNLCK else {_IS_LOCKED})
"""
"""A question to the kernel about a lock file, which sees the locks of other containers."""


@dataclass(frozen=True)
class StorePlaces:
    """A store's parts as they were found.

    Attributes
    ----------
    location
        Path or URI, as tasks open it.
    root
        The path inside its file system.
    is_live
        A writer works on it: what it has not dispatched yet is no fault.
    was_closed
        There is no file ``abort``.
    """

    location: str
    files: Files
    root: str
    sizes: StoreSizes
    log_directories: tuple[str, ...]
    log: FileRow
    queue_keys: tuple[QueueKey, ...]
    index_entries: tuple[FileEntry, ...]
    is_live: bool
    was_closed: bool

    @property
    def queue_directory(self) -> str:
        """Path of ``consumequeue``."""
        return f"{self.root}/{CONSUME_QUEUE_DIRECTORY}"

    @property
    def index_layout(self) -> IndexLayout:
        """Slots and items of each index file."""
        return IndexLayout(self.sizes.hash_slot_count, self.sizes.index_item_count)

    def listed_again(self) -> FileRow:
        """Return the log's files as they are now."""
        return file_row(self.files, self.log_directories, self.sizes.commit_log_file_bytes)

    def below_root(self, path: str) -> str:
        """Return a path relative to the store where it lies there."""
        return path.removeprefix(self.root + "/")

    def place_in_log(self, physical_offset: int) -> tuple[str, int]:
        """Return file and position of a physical offset, ("", offset) where no file is."""
        size = self.sizes.commit_log_file_bytes
        for file in self.log.files:
            if file.base <= physical_offset < file.base + size:
                return self.below_root(file.path), physical_offset - file.base
        return "", physical_offset


def find_places(location: str, config: StoreConfig) -> StorePlaces:
    """Find a store's parts and learn the sizes of its files: set, or the commonest.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory, or not every one that was named.
    ConfigError
        A size cannot be learnt, or the log's files look like those of one directory of several.
    StoreError
        Something cannot be read.
    """
    files, root = files_at(location)
    root = root.rstrip("/")
    named = configured_log(location, config)
    if named:
        store_with_log(location, named)
    else:
        list_segments(location)  # raises where it is one directory of several
    logs = list(named) or [f"{root}/{COMMIT_LOG_DIRECTORY}"]
    if not any(_is_directory(files, path) for path in logs):
        raise NotAStoreError(
            f"{location} is no store: it has no commitlog directory",
            hint="give the directory that holds commitlog, consumequeue and index; for a log that "
            "lies elsewhere set storePathCommitLog",
        )
    queue_directory = f"{root}/{CONSUME_QUEUE_DIRECTORY}"
    keys = listed_queues(files, queue_directory)
    index = files.list(f"{root}/{INDEX_DIRECTORY}")
    sizes = _sizes(files, config, logs, [f"{queue_directory}/{t}/{q}" for t, q in keys], index)
    names = {entry.name for entry in files.list(root)}
    if REBUILD_DIRECTORY in names and is_remote(location):
        refuse_half_rebuilt(files, f"{root}/{REBUILD_DIRECTORY}", location)
    return StorePlaces(
        location if is_remote(location) else root,
        files,
        root,
        sizes,
        tuple(logs),
        file_row(files, logs, sizes.commit_log_file_bytes),
        tuple(keys),
        tuple(index),
        _is_live(location, root, has_abort=ABORT_FILE_NAME in names),
        ABORT_FILE_NAME not in names,
    )


def data_stop(places: StorePlaces, file: StoreFile) -> int:
    """Return a position behind which a file of the log is known to be zeros."""
    with opened(places.files, file.path) as source:
        return min(source.data_stop(file.size), file.size)


def _is_directory(files: Files, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    return any(one.name == name and one.is_directory for one in files.list(parent))


def _sizes(
    files: Files,
    config: StoreConfig,
    logs: list[str],
    queues: list[str],
    index: list[FileEntry],
) -> StoreSizes:
    # What is set is not compared with the files: a file of another length is a finding.
    log_files = [one for path in logs for one in offset_files(files, path)]
    queue_files = (
        []
        if config.mapped_file_size_consume_queue
        else [one for path in queues for one in offset_files(files, path)]
    )
    index_files = [one for one in index if is_index_file_name(one.name)]
    has_layout = config.max_hash_slot_num is not None and config.max_index_num is not None
    observed = ObservedSizes(
        commit_log=None
        if config.mapped_file_size_commit_log
        else _observed(commonest_size(log_files)),
        consume_queue=_observed(commonest_size(queue_files, 20)),
        index_file=None if has_layout else _observed(commonest_size(index_files)),
    )
    return resolve_sizes(config, observed)


def _observed(entry: FileEntry | None) -> FileObservation | None:
    return None if entry is None else FileObservation(Path(entry.path), entry.size)


def _is_live(location: str, root: str, *, has_abort: bool) -> bool:
    """Whether a writer works on the store."""
    if is_remote(location):
        return has_abort  # no lock reaches there
    lock = Path(root, LOCK_FILE_NAME)
    if not lock.exists():
        return False  # every writer makes it first
    command = [sys.executable, "-I", "-S", "-c", _ASK, str(lock)]
    try:
        asked = subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return has_abort
    if asked.returncode == _IS_LOCKED:
        return True
    return has_abort and (asked.returncode != 0 or _is_elsewhere(lock))


def _is_elsewhere(path: Path) -> bool:
    """Whether a file lies on a file system whose locks other machines may not show."""
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.split() for line in _MOUNTS.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return True
    kinds = {fields[fields.index("-") + 1] for fields in mounts if fields[2] == name}
    return any(kind.startswith(_ELSEWHERE) for kind in kinds)
