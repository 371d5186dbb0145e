"""Single records of a log as a stream's planner looks at them, and whether saved evidence holds.

Law: a record counts only if magic, length, own address, inner lengths and body CRC agree (the
walk's judgement). A record that was saved as evidence must besides be the same bytes.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.format.blank import BLANK_MAGIC
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import SegmentState
from rocketstore.pipeline.streaming.offsets import Evidence
from rocketstore.scan import kernels
from rocketstore.scan.columns import RecordColumns, StopReason, new_columns
from rocketstore.scan.scanner import describe_break

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.files import OpenFile
    from rocketstore.pipeline.stores import Segment, StorePlace

_HEAD_BYTES: Final = 128
"""More than the fixed part of any record."""


class Seen(NamedTuple):
    """What stands at a physical offset.

    Attributes
    ----------
    columns
        One row when an intact record stands there, none otherwise.
    crc
        CRC-32 of the whole record, 0 when there is none.
    what
        What was found, for people.
    """

    columns: RecordColumns
    crc: int
    what: str

    @property
    def is_record(self) -> bool:
        """Whether an intact record stands there."""
        return len(self.columns) == 1

    @property
    def stop(self) -> int:
        """Physical offset behind the record."""
        return int(self.columns.physical_offset[0] + self.columns.size[0])


def segment_at(segments: Sequence[Segment], offset: int) -> Segment | None:
    """Return the file, there or missing, that a physical offset lies in."""
    for one in segments:
        if one.base <= offset < one.base + max(one.size, one.file_size):
            return one
    return None


def record_at(store: StorePlace, segments: Sequence[Segment], offset: int) -> Seen:
    """Look at a physical offset.

    Raises
    ------
    StoreError
        The file cannot be read.
    """
    segment = segment_at(segments, offset)
    if segment is None or segment.state is SegmentState.MISSING or offset < 0:
        return _nothing("no file holds it")
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        return read_record(file, segment, offset)


def read_record(file: OpenFile, segment: Segment, offset: int) -> Seen:
    """Look at a physical offset of an open file."""
    position = offset - segment.base
    left = segment.file_size - position
    data = file.read(position, min(_HEAD_BYTES, left))
    total = int.from_bytes(data[:4], "big", signed=True)
    if len(data) < total <= left:
        data = file.read(position, total)
    cols = new_columns(1)
    array = np.frombuffer(data, dtype=np.uint8)
    found, _, code = kernels.walk(array, 0, 1, offset, left, True, cols)  # noqa: FBT003
    if found:
        size = int(cols[0, 1])
        columns = RecordColumns(array, cols, offset)
        crc = zlib.crc32(data[:size])
        return Seen(columns, crc, f"a record with CRC {crc:08x}")
    reason = StopReason(code)
    if not data:
        return _nothing("the end of the file")
    if reason is StopReason.UNWRITTEN:
        return _nothing("zeros")
    if reason is StopReason.BLANK:
        return _nothing("the filler of the file's end")
    return _nothing(f"no record ({describe_break(array, 0, reason, offset, left)})")


def _nothing(what: str) -> Seen:
    return Seen(RecordColumns(np.empty(0, dtype=np.uint8), new_columns(0), 0), 0, what)


def evidence_of(seen: Seen) -> Evidence:
    """Return the evidence that a record was there."""
    return Evidence(int(seen.columns.physical_offset[0]), seen.crc)


def past_blank(store: StorePlace, segment: Segment, offset: int) -> int:
    """Return where the next file begins if only the filler of this one follows, else `offset`."""
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        head = file.read(offset - segment.base, 8)
    stop = segment.base + segment.file_size
    filler = (stop - offset).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
    return stop if head == filler else offset
