"""Find stores below a location, the CommitLog files of a store, and its JSON tables.

A log may lie in several directories (``storePathCommitLog``), its files in turn in each; nothing in
a store says so.

Law: a missing file is a value: one that is not there, or is shorter than its neighbours, is a
`Segment` with that state. Only a place without any store is an error, and one that seems to hold
one directory of several.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import zlib
from bisect import bisect_right
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import msgspec

from rocketstore.config import StoreConfig, commit_log_directories
from rocketstore.errors import ConfigError, FormatError, NotAStoreError, StoreError
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    KNOWN_ENDS_FILE_NAME,
    LOCK_FILE_NAME,
    file_name,
    parse_file_name,
)
from rocketstore.format.metadata_json import (
    ConsumerOffsets,
    Table,
    decode_table,
    offset_tables_by_age,
)
from rocketstore.format.record import FIXED_SIZE, RECORD_MAGICS
from rocketstore.message import BORN_HOST_V6_FLAG
from rocketstore.metrics.damage_map import DAMAGE_MAP_FILE_NAME, DamageMap, decode_damage_map
from rocketstore.pipeline.files import files_at, is_remote, joined, last_name, local_path, read_part
from rocketstore.pipeline.options import parse_options
from rocketstore.rules.newer import refuse_rocksdb_tables
from rocketstore.rules.table_files import NO_FILE, read_table
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocketstore.pipeline.files import FileEntry, Files
    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.rules.table_files import Content

SIGNS_OF_A_STORE: Final = frozenset({  # one that holds nothing yet, beside an empty ``commitlog``
    CHECKPOINT_FILE_NAME, LOCK_FILE_NAME, ABORT_FILE_NAME,
    CONSUME_QUEUE_DIRECTORY,
})  # fmt: skip

REBUILD_DIRECTORY: Final = "rebuild"  # in the store, where a rebuild works; gone when none runs
_HEAD_BYTES: Final = 128


class SegmentState(Enum):
    """State of a CommitLog file beside its neighbours, known without a scan."""

    WHOLE = "whole"
    TRUNCATED = "truncated"
    MISSING = "missing"
    UNWRITTEN = "unwritten"  # made in advance: zeros, and no file with messages follows


class Segment(NamedTuple):
    """A CommitLog file from physical offset `base` on, or the hole where one should be.

    It has `size` bytes (a hole: misses them) of the `file_size` that it should have. Where it
    `is_last`, nothing written follows, so its tail of zeros is no damage.
    """

    path: str
    base: int
    size: int
    file_size: int
    state: SegmentState
    is_last: bool

    @property
    def is_missing(self) -> bool:
        """Whether it is a hole."""
        return self.state is SegmentState.MISSING


class StoreFile(NamedTuple):
    """One file of a log or a queue; `base` is the offset in its name, `size` what is usable."""

    base: int
    size: int
    path: str

    @property
    def stop(self) -> int:
        """Offset past its last byte."""
        return self.base + self.size


class StorePlace(NamedTuple):
    """A store, at a path or URI.

    It `is_open` where a file ``abort`` is there: its last writer runs, or did not end in order.
    """

    location: str
    broker_name: str
    is_open: bool
    log_directories: tuple[str, ...] = ()  # none: in commitlog


def find_stores(options: ReadOptions) -> list[StorePlace]:
    """Return the stores that the locations of a query name, in order."""
    locations, logs = options.locations, options.log_directories
    if logs and len(locations) != 1:
        raise ConfigError(
            f"storePathCommitLog says where one log lies, and {len(locations)} are asked",
            key="storePathCommitLog",
            value=",".join(logs),
            hint="read one store at a time",
        )
    found = [store_with_log(locations[0], logs)] if logs else []
    for location in () if logs else itertools.chain.from_iterable(map(_matching, locations)):
        found += _stores_at(location)
    places = [
        one.location if is_remote(one.location) else os.path.realpath(one.location) for one in found
    ]
    for at in (at for at, place in enumerate(places) if place in places[:at]):
        what, hint = f"{found[at].location} is named twice", "name each store once"
        raise ConfigError(what, key="path", value=found[at].location, hint=hint)
    names = options.broker_names or [one.broker_name for one in found]
    if len(names) != len(found):
        raise ConfigError(
            f"option brokerName has {len(names)} names for {len(found)} stores",
            key="brokerName",
            value=",".join(names),
            hint=f"give one name per store: {', '.join(one.location for one in found)}",
        )
    return [one._replace(broker_name=name) for one, name in zip(found, names, strict=True)]


def _matching(location: str) -> list[str]:
    """Return the directories that a pattern such as ``/data/broker-*`` names, in order."""
    remote = is_remote(location)
    # In a URI ``?`` begins the query, and a path that is there is no pattern.
    place, mark, query = location.partition("?") if remote else (local_path(location), "", "")
    names = place.split("/")
    patterns = [at for at, name in enumerate(names) if re.search(r"[*?\[]", name)]
    if not patterns or (not remote and Path(place).exists()):
        return [location]
    found = ["/".join(names[: patterns[0]])]
    for name in names[patterns[0] :]:
        found = [
            f"{base}/{quote(entry.name) if remote else entry.name}"
            for base in found
            for files, root in [files_at(f"{base or '/'}{mark}{query}")]
            for entry in files.list(root)
            if entry.is_directory and fnmatchcase(entry.name, name)
        ]
    if not found:
        raise NotAStoreError(
            f"no directory matches {location}", hint="name stores, or a directory of stores"
        )
    return [f"{one}{mark}{query}" for one in found]


def _stores_at(location: str) -> list[StorePlace]:
    files, root = files_at(location)
    if not is_remote(location):
        # Executors may stand in another directory.
        location = root
    entries = files.list(root)
    if found := _store_of(files, entries, joined(location)) or [
        one
        for entry in entries
        if entry.is_directory
        for one in _store_of(files, files.list(entry.path), joined(location, entry.name))
    ]:
        return found
    what = "is empty or not there" if not entries else "holds no commitlog, nor do its directories"
    raise NotAStoreError(
        f"{location} is not a store: it {what}",
        hint="name the directory that holds commitlog/ (storePathRootDir), or one whose "
        "directories do; for a log that lies elsewhere set storePathCommitLog",
    )


def store_with_log(location: str, directories: tuple[str, ...]) -> StorePlace:
    """Return the store whose CommitLog files lie in some directories, which must be there."""
    if is_remote(location):
        raise ConfigError(
            f"the log of {location} lies in commitlog/: several directories are a matter of disks",
            key="storePathCommitLog",
            value=",".join(directories),
            hint="copy all CommitLog files to commitlog/: their names differ",
        )
    files, root = files_at(location)
    for directory in directories:
        if not Path(directory).is_dir():
            # To go on would read a log with holes, or the front of one.
            raise NotAStoreError(
                f"{directory} is not a directory, but storePathCommitLog of {location} names it",
                hint="mount the disk, or correct the setting; workers need the same paths",
            )
    names = {entry.name for entry in files.list(root)}
    return StorePlace(root, last_name(root), ABORT_FILE_NAME in names, directories)


def configured_log(location: str, config: StoreConfig | None) -> tuple[str, ...]:
    """Return the directories of a store's log that settings name, read-only ones among them."""
    if config is None or (
        config.store_path_commit_log is None and config.read_only_commit_log_store_paths is None
    ):
        return ()
    remote = is_remote(location)
    root = "/store" if remote else files_at(location)[1]
    writable, read_only = commit_log_directories(config, Path(root))
    found = tuple(str(path.absolute()) for path in writable + read_only)
    own = f"{root}/{COMMIT_LOG_DIRECTORY}"
    # Settings of one broker do not apply to a directory of stores.
    return () if found == (own,) and (remote or not Path(own).is_dir()) else found


def job_options(location: str, config: StoreConfig | None, max_split_bytes: int) -> ReadOptions:
    """Return the options of a job that reads the log at a location, whatever its name contains."""
    given = {"paths": json.dumps([location]), "maxSplitBytes": str(max_split_bytes)}
    if logs := configured_log(location, config):
        given["storePathCommitLog"] = json.dumps(logs)
    return parse_options(given | {"failOnDataLoss": "false"})


def _store_of(files: Files, entries: list[FileEntry], location: str) -> list[StorePlace]:
    """Return the store that a directory with these entries is, if it is one."""
    names = {entry.name for entry in entries}
    logs = [one for one in entries if one.name == COMMIT_LOG_DIRECTORY and one.is_directory]
    if not any(names & SIGNS_OF_A_STORE or offset_files(files.list(one.path)) for one in logs):
        return []
    return [StorePlace(location, last_name(location), ABORT_FILE_NAME in names)]


def list_segments(store: str | StorePlace) -> list[Segment]:
    """Return the CommitLog files of a store or location, holes between them included."""
    place = StorePlace(store, "", is_open=False) if isinstance(store, str) else store
    holes: set[int] = set()
    while True:
        # A listing is not of one moment: a file that a writer made meanwhile may be absent although
        # one made after it is there. A hole is one that is seen twice.
        segments = _listed(place)
        again = {one.base for one in segments if one.is_missing}
        if holes & again and not place.log_directories:
            _refuse_part_of_log(segments)
        if not again or holes & again:
            return segments
        holes = again


def _refuse_part_of_log(segments: list[Segment]) -> None:
    """Raise where only every n-th file is there: the others lie in directories not named."""
    bases = [one.base for one in segments if not one.is_missing]
    steps = {after - before for before, after in itertools.pairwise(bases)}
    if len(bases) > 2 and len(steps) == 1:  # two files with a hole between them are no pattern
        count = steps.pop() // segments[0].file_size
        directory = segments[0].path.rpartition("/")[0]
        raise ConfigError(
            f"{directory} has one CommitLog file of {count}, as of a log in {count} directories",
            key="storePathCommitLog",
            hint="name all of them by storePathCommitLog; if the files are lost, name this one, "
            "and what is left is read",
        )


def directories_of_log(store: StorePlace) -> tuple[str, ...]:
    """Return the directories that a store's log files lie in."""
    root = files_at(store.location)[1]
    return tuple(store.log_directories) or (f"{root}/{COMMIT_LOG_DIRECTORY}",)


def _listed(store: StorePlace) -> list[Segment]:
    files, directories = files_at(store.location)[0], directories_of_log(store)
    found = offset_files(itertools.chain.from_iterable(map(files.list, directories)))
    if not found:
        return []
    steps = [after.base - before.base for before, after in itertools.pairwise(found)]
    if 0 in steps:
        one, other = (found[steps.index(0) + after].path for after in (0, 1))
        raise StoreError(
            f"{one} and {other} have one physical offset in their names",
            hint="keep the one that belongs to the log, and move the other one away from its "
            "directories",
        )
    longest = max(one.size for one in found)
    # Names are multiples of the size. Where they are not of the longest file's, all were cut off.
    file_size = longest if not steps or min(steps) % longest == 0 else min(steps)
    last = len(found) - 1
    while last and not any(read_part(store.location, found[last].path, 0, 8)):
        last -= 1
    segments: list[Segment] = []
    reached = found[0].base
    for number, (base, size, path) in enumerate(found):
        if base > reached:
            hole, gap = f"{path.rpartition('/')[0]}/{file_name(reached)}", base - reached
            missing = SegmentState.MISSING
            segments.append(Segment(hole, reached, gap, file_size, missing, is_last=False))
        state = SegmentState.WHOLE if size >= file_size else SegmentState.TRUNCATED
        state = SegmentState.UNWRITTEN if number > last else state
        segments.append(Segment(path, base, size, file_size, state, is_last=number >= last))
        reached = base + file_size
    return segments


def store_timestamp_ms(
    location: str, file: Segment | StoreFile | None, physical_offset: int | None = None
) -> int | None:
    """Return when the record at an offset of a file, or its first one, was stored; None without it.

    Only the record's own address vouches for it: enough to leave a file out with a margin.
    """
    if file is None or (isinstance(file, Segment) and file.is_missing):
        return None
    physical_offset = file.base if physical_offset is None else physical_offset
    head = read_part(location, file.path, physical_offset - file.base, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES or head[4:8] not in RECORD_MAGICS:
        return None
    if int.from_bytes(head[28:36], "big") != physical_offset:
        return None
    at = 68 if int.from_bytes(head[36:40], "big") & BORN_HOST_V6_FLAG else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def segment_at(segments: Sequence[Segment], physical_offset: int) -> Segment | None:
    """Return the file, there or missing, that an offset of the log lies in."""
    number = bisect_right(segments, physical_offset, key=lambda one: one.base)
    for found in segments[max(0, number - 1) : number]:
        if physical_offset < found.base + max(found.size, found.file_size):
            return found
    return None


def log_bytes(store: StorePlace, segments: Sequence[Segment], offset: int, size: int) -> bytes:
    """Return up to so many bytes of the log from an offset on; nothing where no file has them."""
    one = segment_at(segments, offset)
    if one is None or one.is_missing:
        return b""
    return read_part(store.location, one.path, offset - one.base, size)


def offset_files(entries: Iterable[FileEntry]) -> list[StoreFile]:
    """Return the files that are named by an offset, in order."""
    named = ((parse_file_name(one.name), one) for one in entries if not one.is_directory)
    found = [StoreFile(base, one.size, one.path) for base, one in named if base is not None]
    return sorted(found, key=lambda one: (one.base, one.path))


def read_metadata(store: StorePlace, name: str, table: type[Table]) -> Table | None:
    """Return a table of a store's ``config``, None where there is neither it nor its backup.

    A broker that replaces the file leaves a moment without it; the backup is there. Raises
    `FormatError` as `read_table`.
    """
    files, root = files_at(store.location)
    directory = f"{root}/{CONFIG_DIRECTORY}"
    listed = {f"{directory}/{entry.name}": entry for entry in files.list(directory)}

    def content_of(path: str) -> Content:
        return small_content(store.location, listed[path]) if path in listed else None

    return read_table(f"{directory}/{name}", content_of, lambda raw: decode_table(raw, table))


def small_content(location: str, entry: FileEntry) -> Content:
    """Return the content of a small file that was listed."""
    if entry.is_directory:
        return NO_FILE
    return read_part(location, entry.path, 0, entry.size) if entry.size else b""


def read_consumer_offsets(store: StorePlace) -> ConsumerOffsets:
    """Return where each group goes on."""
    files, root = files_at(store.location)
    listed = files.list(f"{root}/{CONFIG_DIRECTORY}")
    changed = {entry.name: entry.changed_ns for entry in listed}
    refuse_rocksdb_tables(f"{store.location}/{CONFIG_DIRECTORY}", changed)
    for name in offset_tables_by_age(changed):
        table = read_metadata(store, name, ConsumerOffsets)
        if table is not None:
            return table
    return ConsumerOffsets()


def _root_file(store: StorePlace, name: str) -> bytes:
    """Return a small file of a store's root; nothing where it is missing."""
    files, root = files_at(store.location)
    size = {entry.name: entry.size for entry in files.list(root)}.get(name)
    return read_part(store.location, f"{root}/{name}", 0, size) if size else b""


def read_damage_map(store: StorePlace) -> DamageMap:
    """Return the damage known from a store's own check; none without a usable map."""
    with contextlib.suppress(FormatError):
        if content := _root_file(store, DAMAGE_MAP_FILE_NAME):
            return decode_damage_map(content)
    return DamageMap()


def read_known_ends(store: StorePlace) -> set[QueueKey] | None:
    """Return the queues that had messages by ``known-ends``; None where it does not count.

    As `KnownEnds` in ``storage``, which executors do not load, it has to be tied to this log; and
    another program has written since if the log goes on after its end, unless the file says that
    the store is open.
    """
    with contextlib.suppress(msgspec.DecodeError, ValueError, TypeError):
        content = _root_file(store, KNOWN_ENDS_FILE_NAME)
        checksum, raw = msgspec.json.decode(content, type=tuple[int, msgspec.Raw])
        version, is_closed, log_end, known, _, *ties = msgspec.json.decode(raw)
        was_open, segments = store.is_open and not is_closed, list_segments(store)
        goes_on = not was_open and any(log_bytes(store, segments, log_end, 8))
        is_tied = not (ties and log_end) or any(
            zlib.crc32(log_bytes(store, segments, at, FIXED_SIZE)) == found
            for at, found in reversed(ties[0])
        )
        if version == 1 and zlib.crc32(raw) == checksum and is_tied and not goes_on:
            return {QueueKey(*key) for key, (_, stop) in known if stop > 0}
    return None
