"""The index files of a store against themselves and against the keys of the records.

Law: nothing is written. The places and hashes of all items are held in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.index_file import FIRST_ITEM, IndexLayout, is_index_file_name
from rocketstore.verification.findings import Finding, finding
from rocketstore.verification.index_rules import (
    IndexFacts,
    Lacking,
    StrayCount,
    check_index_file,
    compare_items,
    index_findings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import BinaryIO

    import numpy.typing as npt

    from rocketstore.verification.expectation import ExpectedItems

    Int64Array: TypeAlias = npt.NDArray[np.int64]


class _Items(NamedTuple):
    facts: IndexFacts
    physical_offset: Int64Array
    key_hash: Int64Array
    matched: npt.NDArray[np.bool_]


class IndexAudit:
    """All index files of a store; while it `is_live` a writer may be adding items."""

    def __init__(self, directory: Path, layout: IndexLayout, *, is_live: bool = False) -> None:
        self._layout = layout
        self._is_live = is_live
        self.findings: list[Finding] = []
        self._times: dict[int, int | None] = {}
        self._files: list[_Items] = []
        if directory.is_dir():
            for path in sorted(directory.iterdir()):
                self._load(path)

    @property
    def item_count(self) -> int:
        """Items of all files."""
        return sum(file.facts.item_count for file in self._files)

    def _load(self, path: Path) -> None:
        name, size = f"index/{path.name}", self._layout.size_bytes
        if not path.is_file() or not is_index_file_name(path.name):
            reason = "no index file's name; it is passed over"
            self.findings.append(finding("index-extra", name, reason))
            return
        with path.open("rb") as file:
            length = path.stat().st_size
            if length != size:
                reason = f"length: expected {size} bytes, found {length}"
                self.findings.append(finding("index-length", name, reason))
                return
            self._files.append(self._checked(file, name))
        facts = self._files[-1].facts
        self._times |= {facts.first: None, facts.last: None}

    def _checked(self, file: BinaryIO, name: str) -> _Items:
        def read(position: int, size: int) -> npt.NDArray[np.uint8]:
            file.seek(position)
            return np.frombuffer(file.read(size), np.uint8)

        offsets, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

        def take(items: npt.NDArray[np.void]) -> None:
            offsets.append(items["physical_offset"].astype(np.int64))
            hashes.append(items["key_hash"].astype(np.int64))

        facts = check_index_file(name, read, self._layout, is_live=self._is_live, take=take)
        matched = np.zeros(facts.item_count, dtype=np.bool_)
        return _Items(facts, np.concatenate(offsets), np.concatenate(hashes), matched)

    def compare(self, expected: ExpectedItems, start: int, stop: int) -> Lacking:
        """Compare the keys of the records from `start` up to `stop` with the items there.

        In any thread: no two compare the same place.
        """
        offsets, hashes, times = expected
        for edge in [one for one in self._times if start <= one < stop]:
            at = int(np.searchsorted(offsets, edge))
            if at < len(offsets) and offsets[at] == edge:
                self._times[edge] = int(times[at])
        spans = [
            (file, slice(*np.searchsorted(file.physical_offset, (start, stop)).tolist()))
            for file in self._files
            if file.facts.is_in_order
        ]
        none = np.empty(0, dtype=np.int64)
        found = (
            np.concatenate([none, *(file.physical_offset[span] for file, span in spans)]),
            np.concatenate([none, *(file.key_hash[span] for file, span in spans)]),
        )
        lacking, stray = compare_items((offsets, hashes), found)
        matches = np.ones(found[0].size, dtype=np.bool_)
        matches[stray] = False
        bounds = np.cumsum([span.stop - span.start for _, span in spans])[:-1]
        for (file, span), matched in zip(spans, np.split(matches, bounds), strict=bool(spans)):
            file.matched[span] = matched
        return Lacking(lacking.size, int(offsets[lacking[0]]) if lacking.size else -1)

    def finish(self, compared: Iterable[Lacking], *, log_min: int, log_end: int) -> list[Finding]:
        """Judge what no record called for, after all records were compared in log order."""
        some = [one for one in compared if one.key_count]
        lacking = Lacking(sum(one.key_count for one in some), some[0].first if some else -1)
        stray = []
        for file in self._files:
            rows = np.flatnonzero(~file.matched & (file.physical_offset >= log_min))
            is_stale = file.physical_offset[rows] >= log_end
            for late, chosen in ((False, rows[~is_stale]), (True, rows[is_stale])):
                first = FIRST_ITEM + int(chosen[0]) if chosen.size else 0
                stray.append(StrayCount(file.facts.file, late, chosen.size, first))
        self.findings += index_findings(
            [file.facts for file in self._files],
            self._layout,
            lacking,
            stray,
            self._times.get,
            is_live=self._is_live,
        )
        return self.findings
