"""Find the stores that locations name: a store, a directory of stores, or a pattern of these.

A log may lie in several directories (``storePathCommitLog``), its files in turn in each; nothing in
a store says so.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from rocketstore.config import StoreConfig, commit_log_directories
from rocketstore.errors import ConfigError, NotAStoreError
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    LOCK_FILE_NAME,
)
from rocketstore.places.files import files_at, offset_files, refuse_link_to_nothing
from rocketstore.places.location import is_remote, joined, last_name, local_path

if TYPE_CHECKING:
    from rocketstore.places.files import FileEntry, Files

SIGNS_OF_A_STORE: Final = frozenset({  # one that holds nothing yet, beside an empty ``commitlog``
    CHECKPOINT_FILE_NAME, LOCK_FILE_NAME, ABORT_FILE_NAME,
    CONSUME_QUEUE_DIRECTORY,
})  # fmt: skip


class StorePlace(NamedTuple):
    """A store, at a path or URI.

    It `is_open` where a file ``abort`` is there: its last writer runs, or did not end in order.
    """

    location: str
    broker_name: str
    is_open: bool
    log_directories: tuple[str, ...] = ()  # none: in commitlog


def find_stores(
    locations: Sequence[str], log_directories: tuple[str, ...], broker_names: Sequence[str]
) -> list[StorePlace]:
    """Return the stores that locations name, in order, under the names given, or their own."""
    logs = log_directories
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
    names = broker_names or [one.broker_name for one in found]
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
            if fnmatchcase(entry.name, name) and _is_directory(entry)
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
        if _is_directory(entry)
        for one in _store_of(files, files.list(entry.path), joined(location, entry.name))
    ]:
        return found
    what = (
        "holds no commitlog, nor do its directories" if entries else "is a file, empty or missing"
    )
    raise NotAStoreError(
        f"{location} is not a store: it {what}",
        hint="name the directory that holds commitlog/ (storePathRootDir), or one whose "
        "directories do; for a log that lies elsewhere set storePathCommitLog",
    )


def _is_directory(entry: FileEntry) -> bool:
    """Whether an entry is a directory; a link to nothing is refused: its disk may be missing."""
    if not (entry.is_file or entry.is_directory or entry.name.startswith(".")):
        refuse_link_to_nothing(entry.path)
    return entry.is_directory


def store_with_log(location: str, directories: tuple[str, ...]) -> StorePlace:
    """Return the store whose CommitLog files lie in directories, each of which must be mounted."""
    from rocketstore.storage.files.pread_files import OpenFiles  # noqa: PLC0415 - drivers only
    from rocketstore.storage.layout import StoreLayout  # noqa: PLC0415
    from rocketstore.storage.reading.pread_log import PreadLog  # noqa: PLC0415

    if is_remote(location):
        raise ConfigError(
            f"the log of {location} lies in commitlog/: several directories are a matter of disks",
            key="storePathCommitLog",
            value=",".join(directories),
            hint="copy all CommitLog files to commitlog/: their names differ",
        )
    files, root = files_at(location)
    layout = StoreLayout(Path(root), tuple(map(Path, directories)))
    PreadLog(layout, OpenFiles()).refuse_absent()
    for directory in (one for one in directories if not Path(one).is_dir()):
        raise NotAStoreError(
            f"{directory} is not a directory, but storePathCommitLog of {location} names it",
            hint="mount the disk, or correct the setting; workers need the same paths",
        )
    names = {entry.name for entry in files.list(root)}
    return StorePlace(root, last_name(root), ABORT_FILE_NAME in names, directories)


def configured_log(location: str, config: StoreConfig | None) -> tuple[str, ...]:
    """Return the directories of a store's log that settings name, read-only ones among them."""
    config = StoreConfig.of(config)
    if config.store_path_commit_log is None and config.read_only_commit_log_store_paths is None:
        return ()
    remote = is_remote(location)
    root = "/store" if remote else files_at(location)[1]
    writable, read_only = commit_log_directories(config, Path(root))
    found = tuple(str(path.absolute()) for path in writable + read_only)
    own = f"{root}/{COMMIT_LOG_DIRECTORY}"
    # Settings of one broker do not apply to a directory of stores.
    return () if found == (own,) and (remote or not Path(own).is_dir()) else found


def _store_of(files: Files, entries: list[FileEntry], location: str) -> list[StorePlace]:
    """Return the store that a directory with these entries is, if it is one."""
    names = {entry.name for entry in entries}
    logs = [one for one in entries if one.name == COMMIT_LOG_DIRECTORY and one.is_directory]
    if not any(names & SIGNS_OF_A_STORE or offset_files(files.list(one.path)) for one in logs):
        return []
    return [StorePlace(location, last_name(location), ABORT_FILE_NAME in names)]
