"""Compare the index with what the log calls for, and its chains with its items.

Law: nothing is written. An index is only a way to find records, so nothing in it is ever lost for
good: every finding here means "rebuild it".

How derived: IndexFile and IndexService of 4.9 (spec F10, B15). Java's own index may lack keys
(K-I1) and hold the record of a crash twice (K-I8); the first is reported, the second is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.errors import FormatError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_DTYPE,
    SLOT_SIZE_BYTES,
    IndexHeader,
    IndexLayout,
    decode_header,
    is_index_file_name,
    used_item_count,
)
from rocketstore.format.index_header import HeaderWitness, header_faults

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.storage.audit.index_expectation import ExpectedItems

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]


class IndexTrouble(NamedTuple):
    """Something wrong with one index file, or with the index as a whole (file ``""``)."""

    kind: str
    file: str
    offset: int
    reason: str


class _Items(NamedTuple):
    path: Path
    header: IndexHeader
    physical_offset: Int64Array
    key_hash: Int64Array
    last_difference_s: int
    matched: BoolArray


class IndexAudit:
    """All index files of a store.

    Parameters
    ----------
    directory
        ``index`` of the store.
    layout
        Slots and items of each file.
    is_live
        Whether a writer may be adding items.
    """

    def __init__(self, directory: Path, layout: IndexLayout, *, is_live: bool = False) -> None:
        self._layout = layout
        self._is_live = is_live
        self.troubles: list[IndexTrouble] = []
        self.item_count = 0
        self.missing_count = 0
        self.expected_count = 0
        self._first_missing = -1
        self._times: dict[int, int] = {}
        self._files: list[_Items] = []
        if directory.is_dir():
            for path in sorted(directory.iterdir()):
                self._load(path)
        self._check_order()

    @property
    def end_physical_offset(self) -> int:
        """Record of the last item; -1 without items."""
        ends = [int(f.physical_offset[-1]) for f in self._files if len(f.physical_offset)]
        return max(ends, default=-1)

    def _note(self, kind: str, path: Path | None, offset: int, reason: str) -> None:
        name = "index" if path is None else f"index/{path.name}"
        self.troubles.append(IndexTrouble(kind, name, offset, reason))

    # --- each file by itself --------------------------------------------------------------------

    def _load(self, path: Path) -> None:
        if not path.is_file() or not is_index_file_name(path.name):
            self._note("index-extra", path, 0, "no index file's name; it is passed over")
            return
        size = path.stat().st_size
        if size != self._layout.size_bytes:
            reason = f"length: expected {self._layout.size_bytes} bytes, found {size}"
            self._note("index-length", path, 0, reason)
            return
        header, items = self._read(path)
        self.item_count += len(items)
        offsets = items["physical_offset"].astype(np.int64)
        hashes = items["key_hash"].astype(np.int64)
        difference = int(items["time_difference_s"][-1]) if len(items) else 0
        matched = np.zeros(len(items), dtype=np.bool_)
        self._files.append(_Items(path, header, offsets, hashes, difference, matched))
        if header.index_count > self._layout.item_count or header.index_count < 0:
            reason = f"item count: expected at most {self._layout.item_count}"
            self._note("index-header", path, 36, f"{reason}, found {header.index_count}")
        self._check_chains(path, items, hashes)

    def _read(self, path: Path) -> tuple[IndexHeader, npt.NDArray[np.void]]:
        with path.open("rb") as file:
            try:
                header = decode_header(file.read(INDEX_HEADER_SIZE))
            except FormatError as error:
                self._note("index-header", path, 0, str(error))
                header = IndexHeader()
            count = used_item_count(header, self._layout) - FIRST_ITEM
            file.seek(self._layout.item_position(FIRST_ITEM))
            content = file.read(count * ITEM_DTYPE.itemsize)
        usable = len(content) // ITEM_DTYPE.itemsize
        return header, np.frombuffer(content, dtype=ITEM_DTYPE, count=usable)

    def _check_chains(self, path: Path, items: npt.NDArray[np.void], hashes: Int64Array) -> None:
        """Compare slots and links with those that putting the items one by one would give."""
        slot_count = self._layout.slot_count
        if (hashes < 0).any():
            at = int(np.argmax(hashes < 0))
            self._note("index-item", path, self._layout.item_position(at + 1), "negative hash")
            return
        slots = hashes % slot_count
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        expected = np.zeros(len(items), dtype=np.int64)
        same = ordered[1:] == ordered[:-1]
        expected[order[1:][same]] = order[:-1][same] + 1
        wrong = np.flatnonzero(items["previous_item"] != expected)
        if wrong.size:
            place = self._layout.item_position(int(wrong[0]) + 1)
            self._note("index-chain", path, place, f"{wrong.size} items link to a wrong one")
        newest = np.zeros(slot_count, dtype=np.int64)
        newest[slots] = np.arange(1, len(items) + 1)
        with path.open("rb") as file:
            file.seek(INDEX_HEADER_SIZE)
            content = file.read(slot_count * SLOT_SIZE_BYTES)
        found = np.frombuffer(content, dtype=">i4", count=slot_count).astype(np.int64)
        differs = found != newest
        if self._is_live:
            differs &= found <= len(items)
        bad = np.flatnonzero(differs)
        if bad.size:
            place = self._layout.slot_position(int(bad[0]))
            self._note("index-slot", path, place, f"{bad.size} slots name a wrong item")

    def _check_order(self) -> None:
        last = -1
        for file in self._files:
            offsets = file.physical_offset
            if not len(offsets):
                continue
            back = np.flatnonzero(offsets[1:] < offsets[:-1])
            if back.size or int(offsets[0]) < last:
                at = int(back[0]) + 2 if back.size else 1
                place = self._layout.item_position(at)
                self._note("index-order", file.path, place, "items are not in the log's order")
            last = int(offsets[-1])

    # --- against the log ------------------------------------------------------------------------

    def compare(self, expected: ExpectedItems) -> None:
        """Look for the items of a batch of records."""
        offsets, hashes, times = expected
        self.expected_count += len(offsets)
        if not len(offsets):
            return
        found = np.zeros(len(offsets), dtype=np.bool_)
        for file in self._files:
            if not len(file.physical_offset):
                continue
            found |= self._match(file, offsets, hashes)
            for edge in file.physical_offset[[0, -1]].tolist():
                at = int(np.searchsorted(offsets, edge))
                if at < len(offsets) and offsets[at] == edge:
                    self._times[edge] = int(times[at])
        lacking = np.flatnonzero(~found)
        if lacking.size:
            self.missing_count += lacking.size
            if self._first_missing < 0:
                self._first_missing = int(offsets[lacking[0]])

    @staticmethod
    def _match(file: _Items, offsets: Int64Array, hashes: Int64Array) -> BoolArray:
        low = np.searchsorted(file.physical_offset, offsets, side="left")
        high = np.searchsorted(file.physical_offset, offsets, side="right")
        found = np.zeros(len(offsets), dtype=np.bool_)
        for step in range(int((high - low).max(initial=0))):
            at = low + step
            inside = np.flatnonzero(at < high)
            equal = file.key_hash[at[inside]] == hashes[inside]
            found[inside[equal]] = True
            file.matched[at[inside[equal]]] = True
        return found

    def finish(self, *, log_min: int, log_end: int) -> list[IndexTrouble]:
        """Judge what no record called for, after all records were compared."""
        for file in self._files:
            if len(file.physical_offset) and not self._is_live:
                self._check_header(file)
            offsets = file.physical_offset
            expired = offsets < log_min
            stale = ~file.matched & (offsets >= log_end)
            wrong = ~file.matched & ~expired & ~stale
            if wrong.any():
                self._note_items("index-wrong", file, wrong, "name no record with that key")
            if stale.any() and not self._is_live:
                self._note_items("index-stale", file, stale, "name records behind the log's end")
        if self.missing_count and not (
            self._is_live and self._first_missing > self.end_physical_offset
        ):
            reason = f"{self.missing_count} keys are missing, the first at {self._first_missing}"
            self._note("index-missing", None, 0, reason)
        return self.troubles

    def _check_header(self, file: _Items) -> None:
        first, last = file.physical_offset[[0, -1]].tolist()
        hashes = file.key_hash
        slots = np.unique(hashes % self._layout.slot_count).size
        witness = HeaderWitness(
            first,
            last,
            file.last_difference_s if len(file.physical_offset) > 1 else None,
            self._times.get(first),
            self._times.get(last),
            None if (hashes < 0).any() else (slots, len(hashes)),
        )
        for fault in header_faults(file.header, witness):
            self._note("index-header", file.path, 0, fault)

    def _note_items(self, kind: str, file: _Items, which: BoolArray, reason: str) -> None:
        place = self._layout.item_position(int(np.argmax(which)) + 1)
        self._note(kind, file.path, place, f"{int(which.sum())} items {reason}")


NEEDS_REBUILD: Final = frozenset(
    {
        "index-length",
        "index-header",
        "index-item",
        "index-chain",
        "index-slot",
        "index-order",
        "index-wrong",
        "index-stale",
        "index-missing",
    }
)
"""Kinds of trouble that a rebuild takes away."""
