"""Compare the index of a store with the items that its log calls for.

Files are not compared byte by byte: those of a store begin where its first writer began, new ones
at the first record that is left. Items are compared record by record, times to the second, and each
file's slots and chains with those that its own items make.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    IndexLayout,
    decode_header,
    is_index_file_name,
    item_array,
    slot_array,
    used_item_count,
)
from rocketstore.pipeline.jobs.rebuild.extraction import Items
from rocketstore.pipeline.jobs.rebuild.index_files import put_all
from rocketstore.pipeline.jobs.rebuild.proof import LOST, Difference, LogFacts, as_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from rocketstore.format.index_file import IndexHeader

    ByteArray = npt.NDArray[np.uint8]
    Int64Array = npt.NDArray[np.int64]

PIECE_ITEMS: Final = 1 << 20
"""Items of a file that are looked at together: some 50 MB."""

TIME_TOLERANCE_MS = 1999
"""Two items of one record may tell times so far apart: either is rounded down to a second."""


class IndexProofTask(NamedTuple):
    """Compare all index files."""

    old_directory: str
    new_directory: str
    layout: IndexLayout
    log: LogFacts


class IndexItems(NamedTuple):
    """Items of an index, in the order in which they were put."""

    name: str
    key_hash: Int64Array
    offset: Int64Array
    time_ms: Int64Array
    number: Int64Array
    """Of the item in its file, from 1."""


def compare_index(task: IndexProofTask) -> Iterator[pa.RecordBatch]:
    """Yield the differences of the index as rows."""
    found = index_differences(task)
    if found:
        yield as_rows(found)


def index_differences(task: IndexProofTask) -> list[Difference]:
    """Return where the index differs from what the log calls for."""
    found: list[Difference] = []
    wanted = _Wanted(task)
    carried = IndexItems("", *(np.empty(0, np.int64) for _ in range(4)))
    for name in _names(task.old_directory):
        found += _shape_differences(task, name)
        file = _read(task.old_directory, name, task.layout)
        if file is None:
            continue
        expired = file.offset < task.log.begin
        if expired.any():
            count = int(expired.sum())
            found.append(Difference("index", name, "expired", int(file.offset[0]), count, ""))
        file = IndexItems(
            name,
            *(np.concatenate((a, b[~expired])) for a, b in zip(carried[1:], file[1:], strict=True)),
        )
        if not len(file.offset):
            continue
        # The items of the last record may go on in the next file.
        is_last = file.offset == file.offset.max()
        carried = IndexItems(name, *(column[is_last] for column in file[1:]))
        done = IndexItems(name, *(column[~is_last] for column in file[1:]))
        found += item_differences(task.log, done, wanted.before(int(carried.offset[0])))
    found += item_differences(task.log, carried, wanted.before(None))
    return found


class _Wanted:
    """The items that the log calls for, taken in the order of the log."""

    def __init__(self, task: IndexProofTask) -> None:
        self._task = task
        self._names = _names(task.new_directory)
        self._held: list[IndexItems] = []

    def before(self, physical_offset: int | None) -> IndexItems:
        """Take the items of records before an offset; all that are left for None."""
        taken: list[IndexItems] = []
        while True:
            if not self._held:
                if not self._names:
                    break
                name = self._names.pop(0)
                file = _read(self._task.new_directory, name, self._task.layout)
                assert file is not None
                self._held.append(file)
            file = self._held.pop()
            stop = (
                len(file.offset)
                if physical_offset is None
                else int(np.searchsorted(file.offset, physical_offset))
            )
            taken.append(IndexItems(file.name, *(column[:stop] for column in file[1:])))
            if stop < len(file.offset):
                self._held.append(IndexItems(file.name, *(column[stop:] for column in file[1:])))
                break
        if not taken:
            return IndexItems("", *(np.empty(0, np.int64) for _ in range(4)))
        columns = zip(*(file[1:] for file in taken), strict=True)
        return IndexItems(taken[0].name, *(np.concatenate(column) for column in columns))


def _names(directory: str) -> list[str]:
    if not os.path.isdir(directory):  # noqa: PTH112 - a path made of strings
        return []
    return sorted(name for name in os.listdir(directory) if is_index_file_name(name))  # noqa: PTH208


def _read(directory: str, name: str, layout: IndexLayout) -> IndexItems | None:
    raw = np.fromfile(f"{directory}/{name}", np.uint8)
    if len(raw) != layout.size_bytes:
        return None
    header = decode_header(raw[:INDEX_HEADER_SIZE].tobytes())
    items = item_array(raw, layout)[FIRST_ITEM : used_item_count(header, layout)]
    return items_in_file(name, header, items, FIRST_ITEM)


def items_in_file(
    name: str, header: IndexHeader, items: npt.NDArray[np.void], first: int
) -> IndexItems:
    """Return some neighbouring items of a file as columns; `first` is the number of the first."""
    seconds = items["time_difference_s"].astype(np.int64)
    return IndexItems(
        name,
        items["key_hash"].astype(np.int64),
        items["physical_offset"].astype(np.int64),
        header.begin_timestamp_ms + 1000 * seconds,
        np.arange(first, first + len(items)),
    )


def _shape_differences(task: IndexProofTask, name: str) -> list[Difference]:
    raw = np.fromfile(f"{task.old_directory}/{name}", np.uint8)
    if len(raw) != task.layout.size_bytes:
        return [wrong_size(name, task.layout, len(raw))]
    return chain_differences(name, task.layout, raw, np.zeros(task.layout.size_bytes, np.uint8))


def wrong_size(name: str, layout: IndexLayout, found: int) -> Difference:
    """Return the finding of a file of another length; its items are not believed."""
    detail = f"expected {layout.size_bytes} bytes, found {found}"
    return Difference("index", name, "file-size", 0, 1, detail)


def chain_differences(
    name: str, layout: IndexLayout, raw: ByteArray, made: ByteArray
) -> list[Difference]:
    """Compare a file's slots and chains with those that its items make.

    Parameters
    ----------
    raw
        The file.
    made
        As long, and zeros.
    """
    header = decode_header(raw[:INDEX_HEADER_SIZE].tobytes())
    items = item_array(raw, layout)[FIRST_ITEM : used_item_count(header, layout)]
    pieces = [items[at : at + PIECE_ITEMS] for at in range(0, len(items), PIECE_ITEMS)]
    if any((piece["key_hash"] < 0).any() for piece in pieces):
        return [Difference("index", name, "chain", 0, 1, "an item has a negative hash")]
    zeros = np.zeros(PIECE_ITEMS, np.int64)
    put_all(
        made,
        layout,
        (
            Items(piece["key_hash"].astype(np.int64), zeros[: len(piece)], zeros[: len(piece)])
            for piece in pieces
        ),
    )
    wrong_slots = int((slot_array(raw, layout) != slot_array(made, layout)).sum())
    made_items = item_array(made, layout)[FIRST_ITEM : FIRST_ITEM + len(items)]
    wrong_links = int((items["previous_item"] != made_items["previous_item"]).sum())
    if not wrong_slots + wrong_links:
        return []
    detail = f"{wrong_slots} slots and {wrong_links} links are not those of the items"
    return [Difference("index", name, "chain", 0, wrong_slots + wrong_links, detail)]


def item_differences(log: LogFacts, old: IndexItems, new: IndexItems) -> list[Difference]:
    """Compare items that are there with those that records call for; places are `old`'s name."""
    if np.array_equal(old.key_hash, new.key_hash) and np.array_equal(old.offset, new.offset):
        return _time_differences(old, new)
    pairs = np.concatenate(
        (np.stack((old.offset, old.key_hash), 1), np.stack((new.offset, new.key_hash), 1))
    )
    kinds_of, inverse = np.unique(pairs, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    in_old = np.bincount(inverse[: len(old.offset)], minlength=len(kinds_of))
    in_new = np.bincount(inverse[len(old.offset) :], minlength=len(kinds_of))
    offsets = kinds_of[:, 0]
    extra = in_old > in_new
    return [
        Difference("index", old.name or new.name, kind, int(offsets[mask][0]), int(mask.sum()), "")
        for kind, mask in (
            ("missing", in_new > in_old),
            ("K-I8", extra & (in_new > 0)),
            (LOST, extra & (in_new == 0) & log.is_damaged(offsets)),
            ("stale", extra & (in_new == 0) & (offsets >= log.end)),
            (
                "unknown",
                extra & (in_new == 0) & (offsets < log.end) & ~log.is_damaged(offsets),
            ),
        )
        if mask.any()
    ]


def _time_differences(old: IndexItems, new: IndexItems) -> list[Difference]:
    is_wrong = np.abs(old.time_ms - new.time_ms) > TIME_TOLERANCE_MS
    is_first = old.number == FIRST_ITEM
    found = []
    for kind, mask in (("K-I5", is_wrong & is_first), ("time", is_wrong & ~is_first)):
        if mask.any():
            row = int(mask.argmax())
            detail = f"found {int(old.time_ms[row])} ms, expected {int(new.time_ms[row])} ms"
            place = (old.name, kind, int(old.offset[row]), int(mask.sum()), detail)
            found.append(Difference("index", *place))
    return found
