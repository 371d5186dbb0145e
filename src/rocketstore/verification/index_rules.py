"""An index file by itself, and its items against the keys of the records.

Law: an index only helps to find records, so every finding about it means "make it again".
Items pass by in order, and one number per slot is kept.

How derived: IndexFile and IndexService of 4.9 (spec F10, B15). Java's own index may lack keys
(K-I1) and hold the record of a crash twice (K-I8); the first is reported, the second is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
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
from rocketstore.rules.findings import Finding, LastWriter, finding
from rocketstore.rules.index_headers import HeaderWitness, header_faults
from rocketstore.scan import kernels
from rocketstore.units import counted

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.native.row import ByteArray, Int64Array

    ReadBytes: TypeAlias = Callable[[int, int], ByteArray]

CHUNK_SLOTS: Final = 1 << 20
CHUNK_ITEMS: Final = 65_536
_HASH_BITS: Final = 31


class IndexFacts(msgspec.Struct, array_like=True):
    """The content of one index file, judged by itself.

    `first` and `last` are the physical offsets of the records of its first and its last item, -1
    without items; `last_difference_s` is the time that the last one states; `slots_in_use` is None
    where a hash is negative.
    """

    file: str
    header: IndexHeader
    item_count: int
    first: int
    last: int
    last_difference_s: int
    slots_in_use: int | None
    troubles: list[Finding]


def read_items(
    read: ReadBytes, layout: IndexLayout, number: int, count: int
) -> npt.NDArray[np.void]:
    """Return whole items, fewer where the file ends."""
    content = read(layout.item_position(number), count * ITEM_SIZE_BYTES)
    return content[: content.size // ITEM_SIZE_BYTES * ITEM_SIZE_BYTES].view(ITEM_DTYPE)


def check_index_file(
    file: str,
    read: ReadBytes,
    layout: IndexLayout,
    *,
    is_live: bool,
    take: Callable[[npt.NDArray[np.void]], object] = len,
) -> IndexFacts:
    """Compare an index file with what putting its items one by one would give.

    `read` returns the bytes from a position, fewer where the file ends; `take` gets all items.
    """
    troubles, header = [], IndexHeader()
    try:
        header = decode_header(read(0, INDEX_HEADER_SIZE).tobytes())
    except FormatError as error:
        troubles.append(finding("index-header", file, str(error)))
    newest = np.zeros(layout.slot_count, dtype=np.int64)
    followed = np.array([0, 0, 0, 0, -(1 << 62)], dtype=np.int64)
    count, first, difference_s = 0, -1, 0
    stop = used_item_count(header, layout)
    for number in range(FIRST_ITEM, stop, CHUNK_ITEMS):
        items = read_items(read, layout, number, min(CHUNK_ITEMS, stop - number))
        if items.size:
            kernels.follow_items(items.view(np.uint8), number, newest, followed)
            first = first if count else int(items["physical_offset"][0])
            difference_s = int(items["time_difference_s"][-1])
            count += len(items)
            take(items)
    if not 0 <= header.index_count <= layout.item_count:
        reason = f"item count: expected 0 to {layout.item_count}, found {header.index_count}"
        troubles.append(finding("index-header", file, reason, offset=36))
    wrong_links, first_wrong, negative, back, last = followed.tolist()
    if negative:
        at = layout.item_position(negative)
        troubles.append(finding("index-item", file, "negative hash", offset=at))
    elif wrong_links:
        at = layout.item_position(first_wrong)
        reason = f"{counted(wrong_links, 'item')} with a link to a wrong one"
        troubles.append(finding("index-chain", file, reason, offset=at))
    if back and count:
        troubles.append(_out_of_order(file, layout.item_position(back)))
    slots_in_use = None
    if not negative:
        troubles += _slot_troubles(file, read, layout, newest, count if is_live else None)
        slots_in_use = int(np.count_nonzero(newest))
    last = last if count else -1
    return IndexFacts(file, header, count, first, last, difference_s, slots_in_use, troubles)


def _slot_troubles(
    file: str, read: ReadBytes, layout: IndexLayout, newest: Int64Array, live_count: int | None
) -> Iterator[Finding]:
    """Compare slots with the newest items; slots beyond the items that a live file had are new."""
    wrong, first_bad = 0, -1
    for begin in range(0, len(newest), CHUNK_SLOTS):
        expected = newest[begin : begin + CHUNK_SLOTS]
        content = np.zeros(len(expected) * SLOT_SIZE_BYTES, dtype=np.uint8)
        there = read(layout.slot_position(begin), content.size)
        content[: there.size] = there
        slots = content.view(">i4")
        differs = slots != expected
        if live_count is not None:
            differs &= slots <= live_count
        bad = np.flatnonzero(differs)
        if bad.size and first_bad < 0:
            first_bad = begin + int(bad[0])
        wrong += bad.size
    if wrong:
        at = layout.slot_position(first_bad)
        yield finding("index-slot", file, f"{wrong} slots name a wrong item", offset=at)


def _out_of_order(file: str, position: int) -> Finding:
    return finding("index-order", file, "items are not in the log's order", offset=position)


class Lacking(NamedTuple):
    """Keys without an item: how many, and the first record with one."""

    key_count: int = 0
    first: int = -1


class StrayCount(NamedTuple):
    """Items of a file that no record calls for: past the log's end, or not."""

    file: str
    is_stale: bool
    item_count: int
    first_item: int


def compare_items(
    expected: tuple[Int64Array, Int64Array], found: tuple[Int64Array, Int64Array]
) -> tuple[Int64Array, Int64Array]:
    """Return the rows of expected items that are not there, and of items that no record calls for.

    Both are physical offsets and hashes; those expected are less than 4 GiB from each other.
    """
    if all(map(np.array_equal, expected, found)):
        none = np.empty(0, dtype=np.int64)
        return none, none
    start = int(expected[0][0]) if expected[0].size else 0
    keys = [
        (np.clip(offsets - start, -1, 2**32 - 1) << _HASH_BITS) + hashes
        for offsets, hashes in (expected, found)
    ]
    lacking, stray = ~np.isin(keys[0], keys[1]), ~np.isin(keys[1], keys[0])
    return np.flatnonzero(lacking), np.flatnonzero(stray)


def index_findings(
    files: list[IndexFacts],
    layout: IndexLayout,
    lacking: Lacking,
    stray: Iterable[StrayCount],
    store_time: Callable[[int], int | None],
    writer: LastWriter,
) -> list[Finding]:
    """Return what is wrong with the items of the index; `files` are in the order of their names.

    `store_time` returns when the record at a physical offset was stored, None where none is there.
    """
    found, last, in_order, is_live = list[Finding](), -1, True, writer.is_live
    for file in files:
        is_full = file.header.index_count >= layout.item_count
        full_to = [file.header.end_physical_offset] if is_full else []
        found += writer.of_index(file.troubles, *full_to)
        is_in_order = all(one.kind != "index-order" for one in file.troubles)
        if file.item_count and file.first < last and is_in_order:
            found.append(_out_of_order(file.file, layout.item_position(1)))
            is_in_order = False
        in_order &= is_in_order
        if file.item_count:
            last = file.last
            if not is_live:
                found += writer.of_index(_header_troubles(file, store_time), *full_to)
    if not in_order:
        return found  # an item may be in a place where no search looks: a rebuild is due anyway
    for one in sorted(stray, key=lambda one: (one.is_stale, one.file)):
        kind = "index-stale" if one.is_stale else "index-wrong"
        what = "past the log's end" if one.is_stale else "that is lost or lacks the key"
        if one.item_count and not (is_live and one.is_stale):
            at = layout.item_position(one.first_item)
            reason = f"{counted(one.item_count, 'item')} of a record {what}"
            found.append(finding(kind, one.file, reason, offset=at))
    end = max((file.last for file in files if file.item_count), default=-1)
    if lacking.key_count and not (is_live and lacking.first > end):
        reason = f"{counted(lacking.key_count, 'key')} missing, the first at {lacking.first}"
        found.append(finding("index-missing", "index", reason, physical_offset=lacking.first))
    return found


def _header_troubles(file: IndexFacts, store_time: Callable[[int], int | None]) -> list[Finding]:
    witness = HeaderWitness(
        file.first, file.last, file.last_difference_s if file.item_count > 1 else None,
        store_time(file.first), store_time(file.last),
        None if file.slots_in_use is None else (file.slots_in_use, file.item_count),
    )  # fmt: skip
    faults = header_faults(file.header, witness)
    return [finding("index-header", file.file, fault) for fault in faults]
