"""All files of one store: its log, queues and index, with their sizes and what is wrong with each.

Law: nothing is opened for writing. A fault of a file is a value; a file that does not fit its name
or neighbours is left out and reported, a short one is used as far as it goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.config import StoreConfig, StoreSizes, resolve_sizes
from rocketstore.config.files import commonest, observed_in
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    DLEDGER_HEAD_BYTES,
    INDEX_DIRECTORY,
    LOCK_FILE_NAME,
    is_dledger_head,
    is_judged,
    parse_file_name,
    parse_queue_id,
)
from rocketstore.format.index_file import is_index_file_name
from rocketstore.format.metadata_json import BACKUP_SUFFIX, TOPICS_FILE
from rocketstore.places.files import (
    StoreFile,
    files_at,
    offset_files,
    passing_over_deleted,
    read_part,
    side_by_side,
    subdirectories,
)
from rocketstore.places.location import is_remote
from rocketstore.places.log_files import list_segments
from rocketstore.places.queue_files import EVERY_KIND
from rocketstore.places.small_files import small_content
from rocketstore.places.stores import configured_log, store_with_log
from rocketstore.rules.files import FileFinding, FileProblem, dledger_log, no_store, usable_files
from rocketstore.rules.newer import NEWER_FILES
from rocketstore.rules.queue_kinds import QueueKinds, queue_kinds
from rocketstore.scan.queue_search import last_up_to
from rocketstore.units import QueueKey
from rocketstore.verification.small_files import SMALL_FILES

if TYPE_CHECKING:
    from rocketstore.places.files import FileEntry, Files
    from rocketstore.rules.table_files import Content


class FileRow(NamedTuple):
    """The files of one log or queue."""

    files: tuple[StoreFile, ...]
    problems: tuple[FileFinding[str], ...]


def row_of(entries: Iterable[FileEntry], file_size: int) -> FileRow:
    """Return the files that were listed, each of which should have `file_size` bytes."""
    problems, found, entries = list[FileFinding[str]](), list[StoreFile](), list(entries)
    names = {entry.name for entry in entries}
    for entry in entries:
        base = parse_file_name(entry.name)
        if base is None:
            if not is_judged(entry.name, names):
                continue
            wrong = FileProblem.WRONG_NAME, "20 digits", repr(entry.name)
            problems.append(FileFinding(entry.path, *wrong))
        elif not entry.is_file:
            wrong = FileProblem.NOT_A_FILE, "a file", "something else"
            problems.append(FileFinding(entry.path, *wrong))
        else:
            found.append(StoreFile(base, entry.size, entry.path))
    return FileRow(tuple(usable_files(found, file_size, problems)), tuple(problems))


class StoreListing(NamedTuple):
    """All files of a store, as they were listed.

    Tasks open `location`, of which `root` is the path inside its file system. The directories
    `dledger` have a log of DLedger. A live store has a working writer: records that it has not
    dispatched yet are no fault. An aborted one has none, and a file ``abort``.
    """

    location: str
    files: Files
    root: str
    sizes: StoreSizes
    log_directories: tuple[str, ...]
    log: FileRow
    queues: dict[QueueKey, FileRow]
    batch_queues: dict[QueueKey, FileRow]
    index_entries: list[FileEntry]
    extensions: dict[QueueKey, list[FileEntry]]
    dledger: list[str]
    is_live: bool
    was_aborted: bool

    def below_root(self, path: str) -> str:
        """Return a path relative to the store where it lies there."""
        return path.removeprefix(self.root + "/")

    def without(self, kinds: QueueKinds) -> StoreListing:
        """Return the parts without queues that are not of their topic's kind."""
        names, queues, batches = kinds.batch_topics, self.queues, self.batch_queues
        return self._replace(
            queues={key: row for key, row in queues.items() if key.topic not in names},
            batch_queues={key: row for key, row in batches.items() if key.topic in names},
        )

    def file_position(self, physical_offset: int) -> tuple[str, int]:
        """Return file and position of a physical offset, ("", offset) where no file is."""
        file = self.file_at(physical_offset)
        if file is None:
            return "", physical_offset
        return self.below_root(file.path), physical_offset - file.base

    def file_at(self, physical_offset: int) -> StoreFile | None:
        """Return the file that an offset of the log belongs to, whether or not it is so long."""
        file = last_up_to(self.log.files, physical_offset)
        stop = 0 if file is None else file.base + self.sizes.commit_log_file_bytes
        return file if physical_offset < stop else None


def list_store(location: str, config: StoreConfig) -> StoreListing:
    """Find a store's parts and learn the sizes of its files: set, or the commonest.

    A `ConfigError` says that one cannot be learnt, or that the log's files look like those of one
    directory of several.
    """
    from rocketstore.storage.files.lock import may_have_writer  # noqa: PLC0415 - drivers only

    files, root = files_at(location)
    root = root.rstrip("/")
    there = {one.name: one.is_directory for one in files.list(root)}
    rafts = [f"{root}/{name}" for name in there if name.startswith("dledger-")]
    rafts = [path for path in rafts if offset_files(files.list(f"{path}/data"))]
    if named := configured_log(location, config):
        store_with_log(location, named)  # raises where one is not there
    elif not there.get(COMMIT_LOG_DIRECTORY):
        none = no_store(location if is_remote(location) else Path(root))
        raise dledger_log(rafts[0]) if rafts else none
    else:
        list_segments(location)  # raises where it is one directory of several
    directories = named or (f"{root}/{COMMIT_LOG_DIRECTORY}",)
    log = [entry for path in directories for entry in files.list(path)]
    for base, _, path in offset_files(log)[:1]:
        if is_dledger_head(read_part(location, path, 0, DLEDGER_HEAD_BYTES), base):
            raise dledger_log(path)
    queues, batch_queues, extensions = (
        {
            QueueKey(topic, queue_id): entries
            for (topic, name), entries in _listed(location, f"{root}/{directory}").items()
            if (queue_id := parse_queue_id(name)) is not None
        }
        for directory in (*EVERY_KIND, CONSUME_QUEUE_EXT_DIRECTORY)
    )
    index = files.list(f"{root}/{INDEX_DIRECTORY}")
    families = (
        offset_files(log),
        [one for entries in queues.values() for one in offset_files(entries)],
        [one for one in index if is_index_file_name(one.name)],
    )
    lengths = ([(Path(one.path), one.size) for one in family] for family in families)
    sizes = resolve_sizes(config, observed_in(config, *lengths))
    # No lock reaches an object store.
    has_abort, queue_bytes = ABORT_FILE_NAME in there, sizes.consume_queue_file_bytes
    is_live = has_abort if is_remote(location) else may_have_writer(Path(root, LOCK_FILE_NAME))
    return StoreListing(
        location if is_remote(location) else root,
        files,
        root,
        sizes,
        directories,
        row_of(log, sizes.commit_log_file_bytes),
        # One after another goes: of 100,000 queues the driver does not hold both forms.
        {key: row_of(queues.pop(key), queue_bytes) for key in sorted(queues)},
        {key: row_of(entries, _usual(entries)) for key, entries in sorted(batch_queues.items())},
        index,
        extensions,
        rafts,
        is_live,
        has_abort and not is_live,
    )


def _usual(entries: Iterable[FileEntry]) -> int:
    """Return the commonest length of a queue's files; of batch queues no store has one for all."""
    found = commonest((Path(one.path), one.size) for one in offset_files(entries))
    return 0 if found is None else found.size


def _listed(location: str, directory: str) -> dict[tuple[str, str], list[FileEntry]]:
    """Return the entries two directories below one of a location, by the names of both."""
    files, _ = files_at(location)
    found = [
        (topic.name, one)
        for topic in subdirectories(files, directory)
        for one in subdirectories(files, topic.path)
    ]
    listings = side_by_side(location, len(found))(files.list, [one.path for _, one in found])
    return dict(zip(((topic, one.name) for topic, one in found), listings, strict=True))


def small_contents(
    places: StoreListing, names: Collection[str] = (*SMALL_FILES, *NEWER_FILES)
) -> tuple[dict[str, Content], dict[str, int]]:
    """Return small files by their names below the store; and when files were changed last."""
    found: dict[str, Content] = {}
    changed = {}
    directories = {places.root, *(f"{places.root}/{one}".rpartition("/")[0] for one in names)}
    for directory in sorted(directories):
        for entry in places.files.list(directory):
            name = places.below_root(entry.path)
            changed[entry.name] = entry.changed_ns
            if name in names:
                with passing_over_deleted():
                    found[name] = small_content(places.location, entry)
    return found, changed


def batch_topics_of(places: StoreListing) -> frozenset[str]:
    """Return the topics whose records have no entry in a ConsumeQueue."""
    table = f"{CONFIG_DIRECTORY}/{TOPICS_FILE}"
    small, _ = small_contents(places, (table, table + BACKUP_SUFFIX))
    return queue_kinds(small.get, places.queues, places.batch_queues).batch_topics
