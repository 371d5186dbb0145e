"""Compare an index that lies on an object store with what records call for, item by item.

The items of the index files that are there and those that the log calls for come together by turns:
ranges of the log that end where an index file ends. A turn is compared by one task, in the order of
the log and a piece at a time, so that neither a file nor a turn is ever in memory as a whole.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE_BYTES,
    IndexLayout,
    decode_header,
    used_item_count,
)
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.rebuild.extraction import Items
from rocketstore.pipeline.jobs.rebuild.index_files import index_names
from rocketstore.pipeline.jobs.rebuild.index_proof import (
    PIECE_ITEMS,
    IndexItems,
    chain_differences,
    item_differences,
    items_in_file,
    wrong_size,
)
from rocketstore.pipeline.jobs.rebuild.proof import Difference, as_rows
from rocketstore.pipeline.jobs.rebuild.shuffle import item_rows, log_rows
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from rocketstore.pipeline.files import FileEntry, OpenFile
    from rocketstore.pipeline.jobs.rebuild.proof import LogFacts
    from rocketstore.pipeline.jobs.rebuild.tasks import LogTask
    from rocketstore.scan.dispatch_state import Int64Array

_COPY_BYTES: Final = 8 * MiB
TURN_ROWS: Final = 1 << 20
"""Items that are compared at once, old and new together."""


class Turns(NamedTuple):
    """Which items are compared together.

    Attributes
    ----------
    names
        Of the index files that are there.
    cuts
        Physical offsets, as many and never falling: the record whose item ends each file. Its
        items may go on in the next one, so it belongs to that one's turn.
    """

    names: tuple[str, ...]
    cuts: tuple[int, ...]

    def of(self, physical_offsets: Int64Array) -> Int64Array:
        """Return the turn of each item."""
        return np.searchsorted(np.array(self.cuts, np.int64), physical_offsets, side="right")

    def name(self, turn: int) -> str:
        """Return the file that a turn is told by; empty where there is none."""
        return self.names[min(turn, len(self.names) - 1)] if self.names else ""


def plan_turns(location: str, entries: Iterable[FileEntry], layout: IndexLayout) -> Turns:
    """Cut the log where index files end; any cuts are right, these are of equal size."""
    files, _ = files_at(location)
    names: list[str] = []
    cuts: list[int] = []
    for entry in entries:
        if entry.size == layout.size_bytes:
            with opened(files, entry.path) as file:
                header = decode_header(file.read(0, INDEX_HEADER_SIZE))
            names.append(entry.name)
            cuts.append(max([header.end_physical_offset, *cuts[-1:]]))
    return Turns(tuple(names), tuple(cuts))


# --- index files --------------------------------------------------------------------------------


class IndexObject(NamedTuple):
    """An index file that is there.

    Attributes
    ----------
    begin
        Where the log begins: items of records before it have expired.
    staging
        Directory for a copy of it; None: where temporary files go.
    """

    location: str
    name: str
    path: str
    size: int
    layout: IndexLayout
    begin: int
    turns: Turns
    staging: str | None


def check_index_object(task: IndexObject) -> Iterator[pa.RecordBatch]:
    """Yield what an index file tells alone: its length, its chains, its expired items, as rows."""
    found: list[Difference] = []
    if task.size != task.layout.size_bytes:
        found.append(wrong_size(task.name, task.layout, task.size))
    else:
        found += _check_chains(task)
        expired = 0
        first = -1
        for items in _items_of(task):
            expired += int((items.offset < task.begin).sum())
            first = int(items.offset[0]) if first < 0 else first
        if expired:
            found.append(Difference("index", task.name, "expired", first, expired, ""))
    if found:
        yield as_rows(found)


def _check_chains(task: IndexObject) -> list[Difference]:
    """Compare chains with those that the items make, in two files on a disk of this worker."""
    size = task.layout.size_bytes
    with (
        tempfile.TemporaryFile(dir=task.staging) as copy,
        tempfile.TemporaryFile(dir=task.staging) as new,
        opened(files_at(task.location)[0], task.path) as file,
    ):
        for at in range(0, size, _COPY_BYTES):
            copy.write(file.read(at, min(_COPY_BYTES, size - at)))
        copy.truncate(size)
        new.truncate(size)
        raw, made = (np.frombuffer(mmap.mmap(one.fileno(), size), np.uint8) for one in (copy, new))
        return chain_differences(task.name, task.layout, raw, made)


def _items_of(task: IndexObject) -> Iterator[IndexItems]:
    """Yield the items of an index file piece by piece."""
    with opened(files_at(task.location)[0], task.path) as file:
        header = decode_header(file.read(0, INDEX_HEADER_SIZE))
        stop = used_item_count(header, task.layout)
        for first in range(FIRST_ITEM, stop, PIECE_ITEMS):
            items = _read_items(file, task.layout, first, min(PIECE_ITEMS, stop - first))
            yield items_in_file(task.name, header, items, first)


def _read_items(
    file: OpenFile, layout: IndexLayout, first: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    content = file.read(layout.item_position(first), count * ITEM_SIZE_BYTES)
    return np.frombuffer(content, ITEM_DTYPE)


# --- rows ---------------------------------------------------------------------------------------


class WantedRows(NamedTuple):
    """Read splits of the log into rows."""

    log: LogTask
    turns: Turns


def emit_both(task: WantedRows | IndexObject) -> Iterator[pa.RecordBatch]:
    """Yield rows of what the log calls for, or of an index file that is there.

    An item's row has as size its number in its file, 0 for one that the log calls for.
    """
    if isinstance(task, WantedRows):
        for rows, items in log_rows(task.log):
            if rows is not None:
                yield rows
            if len(items.key_hashes):
                zeros = np.zeros(len(items.key_hashes), np.int64)
                yield item_rows(items, task.turns.of(items.physical_offsets), zeros)
    elif task.size == task.layout.size_bytes:
        for found in _items_of(task):
            left = found.offset >= task.begin
            if left.any():
                kept = Items(found.key_hash[left], found.offset[left], found.time_ms[left])
                yield item_rows(kept, task.turns.of(kept.physical_offsets), found.number[left])


# --- turns --------------------------------------------------------------------------------------


def compare_turn(
    log: LogFacts, turns: Turns, turn: int, pieces: Iterable[Sequence[Int64Array]]
) -> tuple[list[Difference], int]:
    """Compare the items of a turn; return the differences, and how many items the log calls for.

    Parameters
    ----------
    pieces
        Columns of rows, by physical offset.
    """
    found: dict[str, Difference] = {}
    count = 0
    for physical, hashes, numbers, times in _whole_records(pieces):
        is_wanted = numbers == 0
        name = turns.name(turn) or index_names([int(times[0])])[0]
        old, new = (
            IndexItems(name, hashes[some], physical[some], times[some], numbers[some])
            for some in (~is_wanted, is_wanted)
        )
        count += len(new.offset)
        for one in item_differences(log, old, new):
            known = found.get(one.kind)
            found[one.kind] = (
                known._replace(row_count=known.row_count + one.row_count) if known else one
            )
    return list(found.values()), count


def _whole_records(pieces: Iterable[Sequence[Int64Array]]) -> Iterator[list[Int64Array]]:
    """Yield columns of about `TURN_ROWS` rows, cut between records."""
    held: list[Sequence[Int64Array]] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece[0])
        if count >= TURN_ROWS:
            columns = _joined(held)
            stop = int(np.searchsorted(columns[0], columns[0][-1]))
            if stop:
                yield [column[:stop] for column in columns]
            held = [[column[stop:] for column in columns]]
            count -= stop
    if count:
        yield _joined(held)


def _joined(pieces: Sequence[Sequence[Int64Array]]) -> list[Int64Array]:
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]
