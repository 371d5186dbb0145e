"""Small files of a store, of which any may be absent: JSON tables, known ends, damage map."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from rocketstore.errors import FormatError
from rocketstore.format.file_name import CONFIG_DIRECTORY, KNOWN_ENDS_FILE_NAME
from rocketstore.format.known_ends import decode_known_ends
from rocketstore.format.metadata_json import (
    ConsumerOffsets,
    Table,
    decode_table,
    offset_tables_by_age,
)
from rocketstore.metrics.damage_map import DAMAGE_MAP_FILE_NAME, DamageMap, decode_damage_map
from rocketstore.places.files import FileEntry, files_at, read_part, root_file
from rocketstore.places.log_files import list_segments, log_bytes
from rocketstore.rules.newer import refuse_rocksdb_tables
from rocketstore.rules.table_files import NO_FILE, Content, read_table

if TYPE_CHECKING:
    from rocketstore.places.stores import StorePlace
    from rocketstore.units import QueueKey


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

    return read_table(f"{directory}/{name}", content_of, partial(decode_table, table=table))


def small_content(location: str, entry: FileEntry) -> Content:
    """Return the content of a small file that was listed."""
    if not entry.is_file:
        return NO_FILE
    return read_part(location, entry.path, 0, entry.size) if entry.size else b""


def read_consumer_offsets(store: StorePlace) -> ConsumerOffsets:
    """Return where each group goes on."""
    files, root = files_at(store.location)
    listed = files.list(f"{root}/{CONFIG_DIRECTORY}")
    changed = {entry.name: entry.changed_ns for entry in listed}
    refuse_rocksdb_tables(f"{store.location}/{CONFIG_DIRECTORY}", changed)
    names = offset_tables_by_age(changed)
    found = (read_metadata(store, name, ConsumerOffsets) for name in names)
    return next(filter(None, found), ConsumerOffsets())


def read_damage_map(store: StorePlace) -> DamageMap:
    """Return the damage known from a store's own check; none without a usable map."""
    with contextlib.suppress(FormatError):
        if content := root_file(store.location, DAMAGE_MAP_FILE_NAME):
            return decode_damage_map(content)
    return DamageMap()


def read_known_ends(store: StorePlace) -> set[QueueKey] | None:
    """Return the queues that had messages by ``known-ends``; None where it does not count.

    It has to be tied to this log; and another program has written since if the log goes on after
    its end, unless the file says that the store is open.
    """
    known = decode_known_ends(root_file(store.location, KNOWN_ENDS_FILE_NAME))
    if known is None:
        return None
    segments = list_segments(store)
    read = partial(log_bytes, store, segments)
    by_others = known.is_by_others(read, segments, ended=not store.is_open)
    if known.tied_up_to(read) is None or by_others:
        return None
    return {key for key, ends in known.queues if ends.next > 0}
