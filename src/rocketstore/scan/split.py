"""Cut CommitLog files into byte ranges that workers can scan independently.

A record belongs to the split that its first byte is in; so does the first byte of a Blank, and of
damage every byte for itself. A worker begins at any byte: it looks for a believable record up to
``LOOKBACK_BYTES`` before its range and follows the chain from there into it. Starting before the
range costs a few milliseconds and makes the result exact: a record that a body carries, even one
that states its true place, is stepped over as long as the record around it is not longer than that.

Law: the splits of a file, put together, are the scan of the whole file (``scanner``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.units import KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOKBACK_BYTES: Final = 4 * MiB + 64 * KiB
"""How far before a split its scan begins: the longest record with 4.9's limits (a body of 4 MiB
and 64 KiB around it). Where nothing is found there, the search goes further back."""


class SegmentFile(NamedTuple):
    """A CommitLog file: path or URI, physical offset of its first byte, bytes that it has."""

    path: str
    base: int
    size: int


class Split(NamedTuple):
    """A range of one file for one worker; `start` and `stop` are positions in the file."""

    file: SegmentFile
    start: int
    stop: int


def plan_splits(files: Iterable[SegmentFile], max_split_bytes: int) -> list[Split]:
    """Cut each file into ranges of about equal size, none above `max_split_bytes`.

    They cover each file without gap or overlap; an empty file has none. Splits of less than some
    MiB spend their time on finding the first record. A limit below 1 is a ValueError.
    """
    if max_split_bytes < 1:
        raise ValueError(f"max_split_bytes: expected at least 1, found {max_split_bytes}")
    splits = []
    for file in files:
        part_count = -(-file.size // max_split_bytes)
        edges = [file.size * part // part_count for part in range(part_count)] + [file.size]
        splits += [Split(file, *edge) for edge in pairwise(edges)]
    return splits
