"""Tell from the log how far an interrupted commit came.

The bytes that a commit was about to write follow from its intent and the staged files
(`placement`), so each record is found in its place, in part, or not at all. In part are those that
lost a page with the power, or stand where such a page was: all that is there is theirs, or zero.
Recovery keeps such a record when its body is whole, since nothing else is under a checksum, and
steps over others.

Law: nothing is called "in part", and so nothing will be overwritten, when anything in the batch's
range is somebody else's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE, encode_blank
from rocketstore.pipeline.sink.placement import LogEnd, numbers_outside, place_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.sink.intent import Intent
    from rocketstore.pipeline.sink.staging import Chunk

    ByteArray = npt.NDArray[np.uint8]
    Read = Callable[[int, int], memoryview | None]
    """Returns written bytes of the log, None where not all are written."""


class Piece(NamedTuple):
    """A record, or the BLANK that closes a file (`is_record` is false), and where it goes."""

    offset: int
    data: ByteArray
    is_record: bool


class Comparison(NamedTuple):
    """How far a commit came.

    Attributes
    ----------
    present
        Numbers of the records that are wholly there, as ranges.
    has_parts
        Whether pieces are there in part, and everything else is theirs or missing.
    """

    present: list[tuple[int, int]]
    has_parts: bool


def compare(intent: Intent, chunks: Iterable[Chunk], read: Read) -> Comparison:
    """Compare the log with what an intent announced.

    Parameters
    ----------
    chunks
        Of its staged files, without the records that it skips.
    """
    numbers = numbers_outside(intent.skipped)
    present: list[tuple[int, int]] = []
    has_parts = is_foreign = False
    for piece in pieces_of(intent, chunks):
        found = _found(piece, read)
        is_whole = found is not None and np.array_equal(found, piece.data)
        if found is not None and not is_whole:
            has_parts = True
            is_foreign |= bool(np.any((found != piece.data) & (found != 0)))
        if not piece.is_record:
            continue
        number = next(numbers)
        if is_whole and present and present[-1][1] == number:
            present[-1] = (present[-1][0], number + 1)
        elif is_whole:
            present.append((number, number + 1))
    is_last = read(intent.start + intent.length, 1) is None
    return Comparison(present, has_parts and is_last and not is_foreign)


def parts_of(intent: Intent, chunks: Iterable[Chunk], read: Read) -> Iterator[Piece]:
    """Yield the pieces that are there in part."""
    for piece in pieces_of(intent, chunks):
        found = _found(piece, read)
        if found is not None and not np.array_equal(found, piece.data):
            yield piece


def pieces_of(intent: Intent, chunks: Iterable[Chunk]) -> Iterator[Piece]:
    """Yield what a commit was about to write, in order."""
    first_offsets = {(topic, queue): offset for topic, queue, offset in intent.first_offsets}
    end = LogEnd(
        intent.start,
        intent.file_start,
        intent.file_size,
        intent.store_timestamp_ms,
        first_offsets.__getitem__,
    )
    reached = intent.start
    for run in place_chunks(chunks, end):
        if run.offset - reached >= END_FILE_MIN_BLANK_SIZE:
            yield Piece(reached, _blank(run.offset - reached), is_record=False)
        for start, size in zip(run.starts.tolist(), run.sizes.tolist(), strict=True):
            yield Piece(run.offset + start, run.data[start : start + size], is_record=True)
        reached = run.offset + len(run.data)


def _found(piece: Piece, read: Read) -> ByteArray | None:
    found = read(piece.offset, len(piece.data))
    return None if found is None else np.frombuffer(found, np.uint8)


def _blank(size: int) -> ByteArray:
    return np.frombuffer(encode_blank(size), np.uint8)
