"""The CommitLog files of a store, in order, with the holes where files are missing.

Law: a missing file is a value: one that is not there, or is shorter than its neighbours, is a
`Segment` with that state. An error is only a log of which a part seems to lie elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from rocketstore.errors import ConfigError, StoreError
from rocketstore.format.file_name import (
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    KNOWN_ENDS_FILE_NAME,
    file_name,
)
from rocketstore.format.known_ends import decode_known_ends
from rocketstore.format.record import RECORD_MAGICS
from rocketstore.message import BORN_HOST_V6_FLAG
from rocketstore.places.files import StoreFile, files_at, offset_files, read_part, root_file
from rocketstore.places.queue_files import files_of, list_queues
from rocketstore.places.stores import StorePlace
from rocketstore.rules.files import lost_log, usual_place, usual_size
from rocketstore.scan.queue_search import last_up_to

_HEAD_BYTES: Final = 128


class SegmentState(Enum):
    """State of a CommitLog file beside its neighbours, known without a scan."""

    WHOLE = "whole"
    TRUNCATED = "truncated"
    MISSING = "missing"
    UNWRITTEN = "unwritten"  # made in advance: zeros, and no file with messages follows


class Segment(NamedTuple):
    """A CommitLog file from physical offset `base` on, or the hole where one should be.

    It has `size` bytes (a hole: misses them) of the `file_size` that it should have. Where it
    `is_last`, nothing written follows, so its tail of zeros is no damage.
    """

    path: str
    base: int
    size: int
    file_size: int
    state: SegmentState
    is_last: bool

    @property
    def is_missing(self) -> bool:
        """Whether it is a hole."""
        return self.state is SegmentState.MISSING


def list_segments(store: str | StorePlace) -> list[Segment]:
    """Return the CommitLog files of a store or location, holes between them included."""
    place = StorePlace(store, "", is_open=False) if isinstance(store, str) else store
    holes: set[int] = set()
    while True:
        # A listing is not of one moment: a file that a writer made meanwhile may be absent although
        # one made after it is there. A hole is one that is seen twice.
        segments = _listed(place)
        again = {one.base for one in segments if one.is_missing}
        if holes & again and not place.log_directories:
            _refuse_part_of_log(segments)
        if not again or holes & again:
            return segments
        holes = again


def segments_of_job(
    store: StorePlace, listed: Callable[[StorePlace], list[Segment]] = list_segments
) -> list[Segment]:
    """Return the files as `listed`; raise where there was a log and none of them has a byte."""
    segments, location = listed(store), store.location
    if any(one.size for one in segments):
        return segments
    files = (files_of(location, CONSUME_QUEUE_DIRECTORY, one) for one in list_queues(location))
    if any(files) or known_log_end(location):
        segments = listed(store)  # a writer makes its first file before that of a queue
        if not any(one.size for one in segments):
            raise lost_log(location)
    return segments


def known_log_end(location: str) -> int:
    """Return how far a log went by ``known-ends``, whichever log that was; 0 where nothing says."""
    known = decode_known_ends(root_file(location, KNOWN_ENDS_FILE_NAME))
    return known.log_end if known else 0


def _refuse_part_of_log(segments: list[Segment]) -> None:
    """Raise where only every n-th file is there: the others lie in directories not named."""
    bases = [one.base for one in segments if not one.is_missing]
    steps = {after - before for before, after in itertools.pairwise(bases)}
    if len(bases) > 2 and len(steps) == 1:  # two files with a hole between them are no pattern
        count = steps.pop() // segments[0].file_size
        directory = segments[0].path.rpartition("/")[0]
        raise ConfigError(
            f"{directory} has one CommitLog file of {count}, as of a log in {count} directories",
            key="storePathCommitLog",
            hint="name all of them by storePathCommitLog; if the files are lost, name this one, "
            "and what is left is read",
        )


def directories_of_log(store: StorePlace) -> tuple[str, ...]:
    """Return the directories that a store's log files lie in."""
    root = files_at(store.location)[1]
    return tuple(store.log_directories) or (f"{root}/{COMMIT_LOG_DIRECTORY}",)


def _listed(store: StorePlace) -> list[Segment]:
    files, directories = files_at(store.location)[0], directories_of_log(store)
    found = offset_files(itertools.chain.from_iterable(map(files.list, directories)))
    if not found:
        return []
    for one, other in itertools.pairwise(found):
        if one.base == other.base:
            raise StoreError(
                f"{one.path} and {other.path} have one physical offset in their names",
                hint="keep the one that belongs to the log, and move the other one away from its "
                "directories",
            )
    file_size = usual_size(found)
    # A stray file of another place is left out, as by every other reader.
    place = usual_place(found, file_size)
    found = [one for one in found if not file_size or one.base % file_size == place]
    last = len(found) - 1
    while last and not any(read_part(store.location, found[last].path, 0, 8)):
        last -= 1
    segments: list[Segment] = []
    reached = found[0].base
    for number, (base, size, path) in enumerate(found):
        if base > reached:
            hole, gap = f"{path.rpartition('/')[0]}/{file_name(reached)}", base - reached
            missing = SegmentState.MISSING
            segments.append(Segment(hole, reached, gap, file_size, missing, is_last=False))
        state = SegmentState.WHOLE if size >= file_size else SegmentState.TRUNCATED
        state = SegmentState.UNWRITTEN if number > last else state
        segments.append(Segment(path, base, size, file_size, state, is_last=number >= last))
        reached = base + file_size
    return segments


def store_timestamp_ms(
    location: str, file: Segment | StoreFile | None, physical_offset: int | None = None
) -> int | None:
    """Return when the record at an offset of a file, or its first one, was stored; None without it.

    Only the record's own address vouches for it: enough to leave a file out with a margin.
    """
    if file is None or (isinstance(file, Segment) and file.is_missing):
        return None
    physical_offset = file.base if physical_offset is None else physical_offset
    head = read_part(location, file.path, physical_offset - file.base, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES or head[4:8] not in RECORD_MAGICS:
        return None
    if int.from_bytes(head[28:36], "big") != physical_offset:
        return None
    at = 68 if int.from_bytes(head[36:40], "big") & BORN_HOST_V6_FLAG else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def segment_at(segments: Sequence[Segment], physical_offset: int) -> Segment | None:
    """Return the file, there or missing, that an offset of the log lies in."""
    found = last_up_to(segments, physical_offset)
    stop = 0 if found is None else found.base + max(found.size, found.file_size)
    return found if physical_offset < stop else None


def log_bytes(store: StorePlace, segments: Sequence[Segment], offset: int, size: int) -> bytes:
    """Return up to so many bytes of the log from an offset on; nothing where no file has them."""
    one = segment_at(segments, offset)
    if one is None or one.is_missing:
        return b""
    return read_part(store.location, one.path, offset - one.base, size)
