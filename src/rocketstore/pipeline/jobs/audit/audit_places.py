"""Where the parts of a store are, how long its files should be, and whether somebody writes to it.

Law: nothing is opened for writing. What is wrong with a file is a value; a file that its name or
neighbours contradict is left out and reported, a short one is used as far as it goes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.config import (
    ObservedSizes,
    StoreConfig,
    StoreSizes,
    resolve_sizes,
)
from rocketstore.errors import NotAStoreError
from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.format.index_file import IndexLayout, is_index_file_name
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    LOCK_FILE_NAME,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, is_remote, opened
from rocketstore.pipeline.stores import (
    commonest_size,
    configured_log,
    list_segments,
    offset_files,
    store_with_log,
)
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocketstore.pipeline.files import FileEntry, Files

_LISTERS: Final = 16
"""Directories of an object store that are listed at once."""

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ELSEWHERE: Final = ("nfs", "cifs", "smb", "9p", "virtiofs", "fuse", "ceph", "gluster", "lustre")
"""Beginnings of the kinds of file systems that other machines mount as well."""


class StoreFile(NamedTuple):
    """One file of a log or a queue; `base` is the offset in its name, `size` what is usable."""

    base: int
    size: int
    path: str

    @property
    def stop(self) -> int:
        """Offset past its last byte."""
        return self.base + self.size


class FileProblem(NamedTuple):
    """Something wrong with a file; `problem` ends the kind of the finding."""

    path: str
    problem: str
    expected: str
    found: str
    base: int = -1


class FileRow(NamedTuple):
    """The files of one log or queue."""

    files: tuple[StoreFile, ...]
    problems: tuple[FileProblem, ...]

    @property
    def first(self) -> int:
        """Offset of the first byte, 0 without files."""
        return self.files[0].base if self.files else 0

    @property
    def stop(self) -> int:
        """Offset past the last byte there is room for, 0 without files."""
        return self.files[-1].stop if self.files else 0


def file_row(files: Files, directories: Sequence[str], file_size: int) -> FileRow:
    """Return the files of a log or a queue, each of which should have `file_size` bytes."""
    return row_of([files.list(directory) for directory in directories], file_size)


def row_of(listings: Iterable[Iterable[FileEntry]], file_size: int) -> FileRow:
    """Return the files that were listed, each of which should have `file_size` bytes."""
    problems: list[FileProblem] = []
    found: list[StoreFile] = []
    for listing in listings:
        for entry in listing:
            base = parse_file_name(entry.name)
            if base is None:
                problems.append(
                    FileProblem(entry.path, "wrong-name", "20 digits", repr(entry.name))
                )
            elif entry.is_directory:
                problems.append(
                    FileProblem(entry.path, "not-a-file", "a file", "something else", base)
                )
            else:
                found.append(StoreFile(base, entry.size, entry.path))
    return FileRow(tuple(_in_order(sorted(found), file_size, problems)), tuple(problems))


def _in_order(
    found: list[StoreFile], file_size: int, problems: list[FileProblem]
) -> list[StoreFile]:
    files: list[StoreFile] = []

    def report(file: StoreFile, problem: str, expected: str, seen: str) -> None:
        problems.append(FileProblem(file.path, problem, expected, seen, file.base))

    for file in found:
        if file.size == 0:
            report(file, "empty", f"{file_size} bytes", "0 bytes")
            continue
        if file.size != file_size:
            report(file, "wrong-size", f"{file_size} bytes", f"{file.size} bytes")
        if files and file.base == files[-1].base:
            report(file, "duplicate", "one file of a name", files[-1].path)
            continue
        if files and (file.base - files[0].base) % file_size:
            expected = f"a multiple of {file_size} after {files[0].base}"
            report(file, "misplaced", expected, str(file.base))
            continue
        if files and files[-1].base + file_size < file.base:
            missing = files[-1].base + file_size
            path = f"{file.path.rpartition('/')[0]}/{file_name(missing)}"
            expected = f"{(file.base - missing) // file_size} file(s) up to {file_name(file.base)}"
            problems.append(FileProblem(path, "missing", expected, "none", missing))
        files.append(file._replace(size=min(file.size, file_size)))
    return files


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
    extensions
        Sizes of the files of each queue's extension.
    was_closed
        There is no file ``abort``.
    """

    location: str
    files: Files
    root: str
    sizes: StoreSizes
    log_directories: tuple[str, ...]
    log: FileRow
    queues: dict[QueueKey, FileRow]
    index_entries: tuple[FileEntry, ...]
    extensions: dict[tuple[str, str], list[int]]
    is_live: bool
    was_closed: bool

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
    listed = _listed(files, queue_directory)
    keys = {
        QueueKey(topic, int(name)): entries
        for (topic, name), entries in listed.items()
        # As in 4.9, a name must be a number to count.
        if name.isascii() and name.isdigit() and str(int(name)) == name
    }
    index = files.list(f"{root}/{INDEX_DIRECTORY}")
    sizes = _sizes(files, config, logs, keys.values(), index)
    extensions = _listed(files, f"{root}/{CONSUME_QUEUE_EXT_DIRECTORY}")
    names = {entry.name for entry in files.list(root)}
    return StorePlaces(
        location if is_remote(location) else root,
        files,
        root,
        sizes,
        tuple(logs),
        file_row(files, logs, sizes.commit_log_file_bytes),
        {key: row_of([keys[key]], sizes.consume_queue_file_bytes) for key in sorted(keys)},
        tuple(index),
        {
            key: [one.size for one in entries if not one.is_directory]
            for key, entries in extensions.items()
        },
        _is_live(location, root, has_abort=ABORT_FILE_NAME in names),
        ABORT_FILE_NAME not in names,
    )


def data_stop(places: StorePlaces, file: StoreFile) -> int:
    """Return a position past which a file of the log is known to be zeros."""
    with opened(places.files, file.path) as source:
        return min(source.data_stop(file.size), file.size)


def _is_directory(files: Files, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    return any(one.name == name and one.is_directory for one in files.list(parent))


def _sizes(
    files: Files,
    config: StoreConfig,
    logs: list[str],
    queues: Iterable[list[FileEntry]],
    index: list[FileEntry],
) -> StoreSizes:
    # What is set is not compared with the files: a file of another length is a finding.
    log_files = [one for path in logs for one in offset_files(files.list(path))]
    queue_files = (
        []
        if config.mapped_file_size_consume_queue
        else [one for entries in queues for one in offset_files(entries)]
    )
    index_files = [one for one in index if is_index_file_name(one.name)]
    has_layout = config.max_hash_slot_num is not None and config.max_index_num is not None
    observed = ObservedSizes(
        commit_log=None if config.mapped_file_size_commit_log else commonest_size(log_files),
        consume_queue=commonest_size(queue_files, ENTRY_SIZE_BYTES),
        index_file=None if has_layout else commonest_size(index_files),
    )
    return resolve_sizes(config, observed)


def _listed(files: Files, directory: str) -> dict[tuple[str, str], list[FileEntry]]:
    """Return what lies two directories below one, by their names."""
    below = [
        (topic.name, queue)
        for topic in files.list(directory)
        if topic.is_directory
        for queue in files.list(topic.path)
        if queue.is_directory
    ]
    with ThreadPoolExecutor(_LISTERS) as pool:
        listings = pool.map(files.list, [queue.path for _, queue in below])
        keys = [(topic, queue.name) for topic, queue in below]
        return dict(zip(keys, listings, strict=True))


def _is_live(location: str, root: str, *, has_abort: bool) -> bool:
    """Whether a writer works on the store; unknown counts as yes."""
    from rocketstore.storage.files.lock import writer_pid  # noqa: PLC0415 - drivers only

    if is_remote(location):
        return has_abort  # no lock reaches there
    lock = Path(root, LOCK_FILE_NAME)
    if not lock.exists():
        return False  # every writer makes it first
    return writer_pid(lock) is not None or (has_abort and _is_elsewhere(lock))


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
