"""Where the parts of a store are, and what the audit's tasks are to read of them.

Law: nothing is opened for writing. What is wrong with a file is a value; a file that its name or
neighbours contradict is left out and reported, a short one is used as far as it goes.
"""

from __future__ import annotations

import bisect
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstore.config import (
    StoreConfig,
    StoreSizes,
    observed_in,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.errors import FormatError, NotAStoreError
from rocketstore.format.file_name import parse_queue_id
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    IndexLayout,
    decode_header,
    is_index_file_name,
    used_item_count,
)
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    LOCK_FILE_NAME,
)
from rocketstore.pipeline.files import files_at, is_remote, opened, read_part
from rocketstore.pipeline.jobs.audit.audit_work import (
    AuditTask,
    Cut,
    FileRow,
    IndexFile,
    passing_over_deleted,
    row_of,
)
from rocketstore.pipeline.planning import grouped
from rocketstore.pipeline.stores import (
    StoreFile,
    configured_log,
    list_segments,
    offset_files,
    store_with_log,
)
from rocketstore.units import QueueKey
from rocketstore.verification.expectation import delay_array
from rocketstore.verification.file_rules import FileProblem
from rocketstore.verification.findings import Finding, finding
from rocketstore.verification.small_files import CLOCK_TOLERANCE_MS, SMALL_FILES

if TYPE_CHECKING:
    from rocketstore.pipeline.files import FileEntry, Files, OpenFile


_LISTERS: Final = 16
"""Directories of an object store that are listed at once."""

_LAST: Final = 2**63 - 1


@dataclass(frozen=True)
class StorePlaces:
    """A store's parts as they were found.

    Tasks open `location`, of which `root` is the path inside its file system. On a live store a
    writer works: what it has not dispatched yet is no fault. One that was closed has no ``abort``.
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

    def log_now(self) -> FileRow:
        """Return the log's files as they are by now."""
        listed = [self.files.list(directory) for directory in self.log_directories]
        return row_of(listed, self.sizes.commit_log_file_bytes)

    def below_root(self, path: str) -> str:
        """Return a path relative to the store where it lies there."""
        return path.removeprefix(self.root + "/")

    def place_in_log(self, physical_offset: int) -> tuple[str, int]:
        """Return file and position of a physical offset, ("", offset) where no file is."""
        file = self.file_at(physical_offset)
        if file is None:
            return "", physical_offset
        return self.below_root(file.path), physical_offset - file.base

    def file_at(self, physical_offset: int) -> StoreFile | None:
        """Return the file that an offset of the log belongs to, whether or not it is so long."""
        files = self.log.files
        at = bisect.bisect_right(files, physical_offset, key=lambda file: file.base) - 1
        stop = files[at].base + self.sizes.commit_log_file_bytes if at >= 0 else 0
        return files[at] if physical_offset < stop else None


def find_places(location: str, config: StoreConfig) -> StorePlaces:
    """Find a store's parts and learn the sizes of its files: set, or the commonest.

    A `ConfigError` says that one cannot be learnt, or that the log's files look like those of one
    directory of several.
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
        QueueKey(topic, queue_id): entries
        for (topic, name), entries in listed.items()
        if (queue_id := parse_queue_id(name)) is not None
    }
    log = [files.list(path) for path in logs]
    index = files.list(f"{root}/{INDEX_DIRECTORY}")
    families = (
        (one for entries in log for _, one in offset_files(entries)),
        (one for entries in keys.values() for _, one in offset_files(entries)),
        (one for one in index if is_index_file_name(one.name)),
    )
    lengths = [[(Path(one.path), one.size) for one in family] for family in families]
    sizes = resolve_sizes(config, observed_in(config, *lengths))
    extensions = _listed(files, f"{root}/{CONSUME_QUEUE_EXT_DIRECTORY}")
    names = {entry.name for entry in files.list(root)}
    return StorePlaces(
        location if is_remote(location) else root,
        files,
        root,
        sizes,
        tuple(logs),
        row_of(log, sizes.commit_log_file_bytes),
        {key: row_of([keys[key]], sizes.consume_queue_file_bytes) for key in sorted(keys)},
        tuple(index),
        {
            key: [one.size for one in entries if not one.is_directory]
            for key, entries in extensions.items()
        },
        # No lock reaches an object store.
        ABORT_FILE_NAME in names if is_remote(location) else _may_have_writer(root),
        ABORT_FILE_NAME not in names,
    )


def _is_directory(files: Files, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    return any(one.name == name and one.is_directory for one in files.list(parent))


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


def _may_have_writer(root: str) -> bool:
    from rocketstore.storage.files.lock import may_have_writer  # noqa: PLC0415 - drivers only

    return may_have_writer(Path(root, LOCK_FILE_NAME))


# --- tasks --------------------------------------------------------------------------------------


def plan_tasks(
    places: StorePlaces, config: StoreConfig, max_split_bytes: int, now_ms: int
) -> tuple[AuditTask, list[AuditTask], list[Finding]]:
    """Return what all tasks share, the tasks, and what is wrong with index files as listed."""
    wrong, index = _index_files(places) if config.message_index_enable else ([], [])
    size = places.sizes.consume_queue_file_bytes
    common = AuditTask(
        places.location,
        places.sizes.commit_log_file_bytes,
        size,
        places.sizes.index_layout,
        config.message_index_enable,
        places.is_live,
        max((file.last for file in index), default=-1) if places.is_live else _LAST,
        delay_array(parse_delay_levels(config.message_delay_level)),
        now_ms + CLOCK_TOLERANCE_MS,
        {
            key: row.files
            for key, row in places.queues.items()
            if row.first % size
            or any(one.problem is FileProblem.NOT_A_FILE for one in row.problems)
        },
    )
    tasks = [
        common._replace(
            cuts=cuts,
            index_files=tuple(
                file
                for file in index
                if file.last >= cuts[0].items_start and file.first < cuts[-1].items_stop
            ),
        )
        for cuts in log_cuts(places, max_split_bytes)
    ]
    tasks += [common._replace(index_files=(file,)) for file in index]
    return common, tasks, wrong


def log_cuts(places: StorePlaces, max_split_bytes: int) -> list[tuple[Cut, ...]]:
    """Return what of the log each task reads: ranges that hold something.

    There is at least one, for the index's sake.
    """
    if max_split_bytes < 1:
        raise ValueError(f"max_split_bytes: expected at least 1, found {max_split_bytes}")
    cuts = []
    for base, size, path in places.log.files:
        with opened(places.location, path) as file:
            stop = min(file.data_stop(size), size)
        known = None if places.is_live else stop
        for start in range(0, stop, max_split_bytes):
            end = min(start + max_split_bytes, stop)
            cuts.append(Cut(path, base, start, end, size, known))
    cuts = cuts or [Cut("", places.log.first, 0, 0, 0, 0)]
    edges = [places.log.first, *(cut.base + cut.start for cut in cuts[1:]), _LAST]
    cuts = [
        cut._replace(items_start=start, items_stop=stop)
        for cut, (start, stop) in zip(cuts, pairwise(edges), strict=True)
    ]
    return grouped(cuts, max_split_bytes, lambda cut: cut.stop - cut.start)


def _index_files(places: StorePlaces) -> tuple[list[Finding], list[IndexFile]]:
    """Return what is wrong with index files as they are listed, and the others."""
    wrong: list[Finding] = []
    found: list[IndexFile] = []
    layout = places.sizes.index_layout
    expected = layout.size_bytes
    for entry in places.index_entries:
        name = places.below_root(entry.path)
        if entry.is_directory or not is_index_file_name(entry.name):
            reason = "no index file's name; it is passed over"
            wrong.append(finding("index-extra", name, reason))
        elif entry.size != expected:
            reason = f"length: expected {expected} bytes, found {entry.size}"
            wrong.append(finding("index-length", name, reason))
        else:
            with passing_over_deleted(), opened(places.location, entry.path) as file:
                found.append(_index_file(file, entry.path, name, layout))
    return wrong, found


def _index_file(file: OpenFile, path: str, name: str, layout: IndexLayout) -> IndexFile:
    stop = FIRST_ITEM
    with contextlib.suppress(FormatError):  # who follows its items says so
        stop = used_item_count(decode_header(file.read(0, INDEX_HEADER_SIZE)), layout)
    first, last = (
        int.from_bytes(file.read(layout.item_position(number) + 4, 8), "big", signed=True)
        if stop > FIRST_ITEM
        else -1
        for number in (FIRST_ITEM, stop - 1)
    )
    return IndexFile(path, name, stop, first, last)


def small_contents(places: StorePlaces) -> dict[str, bytes]:
    """Return the small files that are there, by their names below the store."""
    found = {}
    for directory in (places.root, f"{places.root}/{CONFIG_DIRECTORY}"):
        for entry in places.files.list(directory):
            name = places.below_root(entry.path)
            if name in SMALL_FILES and not entry.is_directory:
                with passing_over_deleted():
                    found[name] = read_part(places.location, entry.path, 0, entry.size)
    return found
