"""Check one index file by itself, and the items of a byte range against its records.

An index file is in the log's order, so the items of a byte range of the log are one run of items of
one file, or of two where a file was full. Law: an index is only a way to find records, so nothing
in it is ever lost for good; and memory does not grow with the number of items: they pass through a
window, and one number per slot is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import FormatError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE_BYTES,
    SLOT_SIZE_BYTES,
    IndexHeader,
    IndexLayout,
    decode_header,
    used_item_count,
)
from rocketstore.format.index_header import HeaderWitness, header_faults
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.audit.entry_check import passing_over_deleted
from rocketstore.pipeline.jobs.audit.facts import IndexFacts, StrayItems, Trouble
from rocketstore.scan import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.jobs.audit.runs import Runs

    Int64Array: TypeAlias = npt.NDArray[np.int64]

CHUNK_ITEMS: Final = 65_536
CHUNK_SLOTS: Final = 1 << 20
_OFFSET_AT: Final = 4
_HASH_BITS: Final = 31


class IndexPlace(NamedTuple):
    """An index file of the right length; `name` as findings show it."""

    path: str
    name: str
    layout: IndexLayout
    header: IndexHeader
    item_stop: int
    """Number behind the last used item."""


class IndexTask(NamedTuple):
    """Check one index file by itself.

    Attributes
    ----------
    covered
        Ranges of physical offsets that some task reads the records of; the first begins where the
        log does.
    """

    location: str
    place: IndexPlace
    covered: tuple[tuple[int, int], ...]
    is_live: bool


def index_place(file: OpenFile, path: str, name: str, layout: IndexLayout) -> IndexPlace | str:
    """Return what the header of an index file says, or why it cannot be read."""
    try:
        header = decode_header(file.read(0, INDEX_HEADER_SIZE))
    except FormatError as error:
        return str(error)
    return IndexPlace(path, name, layout, header, used_item_count(header, layout))


# --- a file by itself ---------------------------------------------------------------------------


def check_index_file(task: IndexTask) -> IndexFacts:
    """Compare slots and links with those that putting the items one by one would give."""
    place = task.place
    newest = np.zeros(place.layout.slot_count, dtype=np.int64)
    found = np.zeros(5, dtype=np.int64)
    found[4] = -(1 << 62)
    first = last = -1
    stray = _Uncovered(task.covered)
    files, _ = files_at(task.location)
    count = 0
    troubles: list[Trouble] = []
    with passing_over_deleted(), opened(files, place.path) as file:
        for number, items in _chunks(file, place, FIRST_ITEM):
            kernels.follow_items(items, number, newest, found)
            offsets = items.view(ITEM_DTYPE)["physical_offset"].astype(np.int64)
            first = int(offsets[0]) if count == 0 else first
            last = int(offsets[-1])
            stray.take(number, offsets)
            count += len(offsets)
        troubles = _troubles(place, found, count)
        if not found[2]:
            troubles += _slot_trouble(file, place, newest, count, is_live=task.is_live)
        if count and not task.is_live:
            used = None if found[2] else (int(np.count_nonzero(newest)), count)
            # What the records say of the times is verify's to compare.
            witness = HeaderWitness(first, last, None, None, None, used)
            faults = header_faults(place.header, witness)
            troubles += [Trouble("index-header", 0, fault) for fault in faults]
    last = int(found[4]) if count else -1
    return IndexFacts(place.name, count, first, last, troubles, stray.found(place.name))


def _chunks(
    file: OpenFile, place: IndexPlace, first: int
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield whole items with the number of the first."""
    for number in range(first, place.item_stop, CHUNK_ITEMS):
        count = min(CHUNK_ITEMS, place.item_stop - number)
        items = np.empty(count * ITEM_SIZE_BYTES, dtype=np.uint8)
        got = file.read_into(place.layout.item_position(number), items.data)
        whole = got // ITEM_SIZE_BYTES
        if whole:
            yield number, items[: whole * ITEM_SIZE_BYTES]
        if whole < count:
            return


def _troubles(place: IndexPlace, found: Int64Array, count: int) -> list[Trouble]:
    layout, troubles = place.layout, []
    if not 0 <= place.header.index_count <= layout.item_count:
        reason = f"item count: expected at most {layout.item_count}"
        troubles.append(Trouble("index-header", 36, f"{reason}, found {place.header.index_count}"))
    wrong_links, first_wrong, negative, back, _ = found.tolist()
    if negative:
        troubles.append(Trouble("index-item", layout.item_position(negative), "negative hash"))
    elif wrong_links:
        reason = f"{wrong_links} items link to a wrong one"
        troubles.append(Trouble("index-chain", layout.item_position(first_wrong), reason))
    if back and count:
        reason = "items are not in the log's order"
        troubles.append(Trouble("index-order", layout.item_position(back), reason))
    return troubles


def _slot_trouble(
    file: OpenFile, place: IndexPlace, newest: Int64Array, item_count: int, *, is_live: bool
) -> list[Trouble]:
    wrong = 0
    first_bad = -1
    for begin in range(0, len(newest), CHUNK_SLOTS):
        expected = newest[begin : begin + CHUNK_SLOTS]
        content = np.zeros(len(expected) * SLOT_SIZE_BYTES, dtype=np.uint8)
        file.read_into(place.layout.slot_position(begin), content.data)
        slots = content.view(">i4")
        differs = slots != expected
        if is_live:
            differs &= slots <= item_count
        bad = np.flatnonzero(differs)
        if bad.size and first_bad < 0:
            first_bad = begin + int(bad[0])
        wrong += bad.size
    if first_bad < 0:
        return []
    at = place.layout.slot_position(first_bad)
    return [Trouble("index-slot", at, f"{wrong} slots name a wrong item")]


class _Uncovered:
    """Items that point where no task reads records."""

    def __init__(self, covered: Sequence[tuple[int, int]]) -> None:
        self._starts = np.array([start for start, _ in covered], dtype=np.int64)
        self._stops = np.array([stop for _, stop in covered], dtype=np.int64)
        self._found: dict[int, list[int]] = {}

    def take(self, number: int, offsets: Int64Array) -> None:
        if not self._starts.size:
            before = np.full(len(offsets), -1)
            outside = np.arange(len(offsets))
        else:
            before = np.searchsorted(self._starts, offsets, side="right") - 1
            outside = np.flatnonzero((before < 0) | (offsets >= self._stops[before]))
        for group in np.unique(before[outside]).tolist():
            rows = outside[before[outside] == group]
            lowest = int(offsets[rows].min())
            known = self._found.setdefault(group, [0, number + int(rows[0]), lowest])
            known[0] += rows.size
            known[2] = min(known[2], lowest)

    def found(self, name: str) -> list[StrayItems]:
        # In front of the first range, which begins where the log does, are deleted records' items.
        return [
            StrayItems(name, count, first, lowest)
            for group, (count, first, lowest) in self._found.items()
            if group >= 0 or not self._stops.size
        ]


# --- the items of a byte range ------------------------------------------------------------------


class RangeItems:
    """The items of a byte range of the log, taken block by block.

    Parameters
    ----------
    location
        Of the store.
    places
        Its index files, in order.
    start
        Physical offset of the range's first byte.
    """

    def __init__(self, location: str, places: Sequence[IndexPlace], start: int) -> None:
        self._files, _ = files_at(location)
        self._places = places
        self._next = [-1] * len(places)
        self._begin = self._start = start
        self._stray: list[tuple[int, Int64Array, Int64Array]] = []

    def match(self, stop: int, offsets: Int64Array, hashes: Int64Array) -> Int64Array:
        """Compare the keys of the records up to `stop` with the items there.

        Returns the records of keys that have no item, one for each key.
        """
        start, self._start = self._start, stop
        parts = [self._take(at, start, stop) for at in range(len(self._places))]
        found = [(np.full(len(items), at), number, items) for at, number, items in parts]
        expected_keys = _keys(offsets, hashes, start)
        items = np.concatenate([np.empty(0, ITEM_DTYPE), *(items for _, _, items in found)])
        found_offsets = items["physical_offset"].astype(np.int64)
        found_keys = _keys(found_offsets, items["key_hash"].astype(np.int64), start)
        if np.array_equal(expected_keys, found_keys):
            return offsets[:0]
        is_stray = np.flatnonzero(~np.isin(found_keys, expected_keys))
        if is_stray.size:
            owner = np.concatenate([owner for owner, _, _ in found])
            numbers = np.concatenate([n + np.arange(len(i)) for _, n, i in found])
            for at in np.unique(owner[is_stray]).tolist():
                rows = is_stray[owner[is_stray] == at]
                self._stray.append((at, numbers[rows], found_offsets[rows]))
        return offsets[~np.isin(expected_keys, found_keys)]

    def stray(self, chains: Runs, reach: int) -> list[StrayItems]:
        """Return items that no record calls for, by what stands in front of them.

        Parameters
        ----------
        chains
            Start and stop of each chain of records in the range.
        reach
            Where the last record that begins before the range ends.
        """
        counted: dict[tuple[int, int], list[int]] = {}
        for at, numbers, offsets in self._stray:
            beyond = self._beyond(offsets, chains, reach)
            for place in np.unique(beyond).tolist():
                rows = beyond == place
                known = counted.setdefault((at, place), [0, int(numbers[rows][0])])
                known[0] += int(rows.sum())
        return [
            StrayItems(self._places[at].name, count, first, place)
            for (at, place), (count, first) in counted.items()
        ]

    def _beyond(self, offsets: Int64Array, chains: Runs, reach: int) -> Int64Array:
        """Return a place that lies behind the log's end only if the item does."""
        edges = np.concatenate(([[self._begin, max(reach, self._begin)]], chains))
        chain = np.searchsorted(edges[:, 0], offsets, side="right") - 1
        is_inside = offsets < edges[chain, 1]
        beyond: Int64Array = np.where(is_inside, edges[chain, 0], edges[chain, 1])
        return np.where((chain == 0) & ~is_inside, reach, beyond)

    def _take(self, at: int, start: int, stop: int) -> tuple[int, int, npt.NDArray[np.void]]:
        """Return the items from `start` up to `stop` of one file, and the first one's number."""
        place = self._places[at]
        nothing = np.empty(0, ITEM_DTYPE)
        if self._next[at] >= place.item_stop or place.item_stop <= FIRST_ITEM:
            return at, 0, nothing
        first, parts = self._next[at], []
        with passing_over_deleted(), opened(self._files, place.path) as file:
            if first < 0:
                first = _first_item(file, place, start)
            for _, content in _chunks(file, place, first):
                items = content.view(ITEM_DTYPE)
                inside = items["physical_offset"] < stop
                count = len(items) if inside.all() else int(np.argmin(inside))
                parts.append(items[:count])
                if count < len(items):
                    break
        taken = np.concatenate([nothing, *parts])
        self._next[at] = first + len(taken)
        # Only in a file that is out of order do others stand between.
        kept = taken["physical_offset"] >= start
        return at, first, taken if kept.all() else taken[kept]


def _first_item(file: OpenFile, place: IndexPlace, start: int) -> int:
    """Return the number of the first item at or behind a physical offset."""
    low, high = FIRST_ITEM, place.item_stop
    while low < high:
        middle = (low + high) // 2
        raw = file.read(place.layout.item_position(middle) + _OFFSET_AT, 8)
        is_before = len(raw) == 8 and int.from_bytes(raw, "big", signed=True) < start
        low, high = (middle + 1, high) if is_before else (low, middle)
    return low


def _keys(offsets: Int64Array, hashes: Int64Array, start: int) -> Int64Array:
    """Return one number for each place and hash; a block of a file is below 2**31 bytes long."""
    return ((offsets - start) << _HASH_BITS) + hashes
