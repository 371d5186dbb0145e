"""Cut CommitLog files into byte ranges that workers can scan independently.

A record belongs to the split that its first byte is in; so does the first byte of a Blank, and of
damage every byte for itself. A worker begins at any byte: it looks for a believable record up to
``LOOKBACK_BYTES`` before its range and follows the chain from there into it. Starting before the
range costs a few milliseconds and makes the result exact: a record that a body carries, even one
that states its true place, is stepped over as long as the record around it is not longer than that.

Law: the splits of a file, put together, are the scan of the whole file.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.scan.columns import RecordColumns
from rocketstore.scan.resync import find_record
from rocketstore.scan.scanner import BATCH_RECORDS, Buffer, ScanBatch, as_bytes_array, scan_segment
from rocketstore.units import ByteRange, KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

LOOKBACK_BYTES: Final = 4 * MiB + 64 * KiB
"""How far before a split its scan begins: the longest record with 4.9's limits (a body of 4 MiB
and 64 KiB around it). Where nothing is found there, the search goes further back."""


class SegmentFile(NamedTuple):
    """A CommitLog file.

    Attributes
    ----------
    path
        Path or URI; only handed through.
    base
        Physical offset of its first byte, the number in its name.
    size
        Bytes that the file has.
    """

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

    Parameters
    ----------
    files
        In the order the splits shall have.
    max_split_bytes
        At least 1; less than some MiB is allowed but spends its time on finding the first record.

    Returns
    -------
    list of Split
        They cover each file without gap or overlap; an empty file has none.

    Raises
    ------
    ValueError
        `max_split_bytes` is below 1.
    """
    if max_split_bytes < 1:
        raise ValueError(f"max_split_bytes: expected at least 1, found {max_split_bytes}")
    splits = []
    for file in files:
        part_count = -(-file.size // max_split_bytes)
        edges = [file.size * part // part_count for part in range(part_count)] + [file.size]
        splits += [Split(file, *edge) for edge in pairwise(edges)]
    return splits


def scan_split(  # noqa: PLR0913 - keywords, each a fact of the split
    buffer: Buffer,
    *,
    base: int,
    start: int,
    stop: int,
    file_size: int | None = None,
    check_crc: bool = True,
    batch_records: int = BATCH_RECORDS,
    lookback_bytes: int = LOOKBACK_BYTES,
) -> Iterator[ScanBatch]:
    """Yield what belongs to the positions ``[start, stop)`` of a CommitLog file.

    Parameters
    ----------
    buffer
        The bytes of the whole file: what stands before and behind the range decides what it means.
    start, stop
        Any positions.
    lookback_bytes
        See ``LOOKBACK_BYTES``; longer for stores with a longer ``maxMessageSize``.

    Other parameters and the batches are those of ``scan_segment``.

    Yields
    ------
    ScanBatch
        At least one.
    """
    array = as_bytes_array(buffer)
    anchor = _anchor(array, start, base, file_size, max(lookback_bytes, 1))
    batches = scan_segment(
        array,
        base=base,
        start=anchor,
        stop=stop,
        file_size=file_size,
        check_crc=check_crc,
        batch_records=batch_records,
    )
    for batch in batches:
        yield _from(batch, base + start)


def _anchor(
    array: npt.NDArray[np.uint8], start: int, base: int, file_size: int | None, lookback_bytes: int
) -> int:
    """Return the position to follow the chain from: a believable record, or the file's first."""
    while lookback_bytes < start:
        found = find_record(
            array, start - lookback_bytes, base=base, stop=start, file_size=file_size
        )
        if found is not None:
            return found
        lookback_bytes *= 4
    return 0


def _from(batch: ScanBatch, first: int) -> ScanBatch:
    """Return the batch without what lies before a physical offset."""
    columns = batch.columns
    dropped = int(columns.physical_offset.searchsorted(first))
    damage = [
        one._replace(range=ByteRange(max(one.range.start, first), one.range.stop))
        for one in batch.damage
        if one.range.stop > first
    ]
    unwritten_at = batch.unwritten_at
    return ScanBatch(
        columns=RecordColumns(columns.buffer, columns.cols[dropped:], columns.base),
        blanks=[blank for blank in batch.blanks if blank.physical_offset >= first],
        damage=damage,
        run_starts=[row - dropped for row in batch.run_starts if row >= dropped],
        end_of_data=batch.end_of_data,
        unwritten_at=None if unwritten_at is None else max(unwritten_at, first),
    )
