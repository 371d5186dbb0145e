"""Queue offsets that were given out and that the log knows nothing of any more.

A queue made from the log alone ends behind its last record. Where the old queue went on, because
its last records were lost or deleted, a consumer may have read them: their numbers must not be
given again (decision 0014, K-C4). The new queue gets kept places for them, and a queue of which no
record is left keeps its last file.

Law: where the log has the last record of every queue, nothing is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from rocketstore.format.file_name import parse_file_name
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    KEPT_PLACE_BYTES,
    filler_mask,
    kept_place_mask,
    written_mask,
)
from rocketstore.pipeline.files import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.files import FileEntry, Files


class LogRanges(NamedTuple):
    """Physical offsets of a log.

    Attributes
    ----------
    begin, end
        The first file's start, the end of the last record.
    damaged
        Ranges in between whose records are lost.
    leftovers
        Ranges of records of an earlier log, which gave out nothing in this one.
    """

    begin: int
    end: int
    damaged: Sequence[tuple[int, int]]
    leftovers: Sequence[tuple[int, int]]


class QueueWriter(Protocol):
    """Writes entries into the new queues."""

    file_bytes: int

    def write(self, directory: str, queue_offset: int, entries: bytes) -> None:
        """Write entries from a queue offset on into the queue of a directory."""
        ...

    def close(self) -> None:
        """Make what was written durable."""
        ...


class QueueTops(NamedTuple):
    """Where ``consumequeue`` lies, as it was and as it is made."""

    files: Files
    old: str
    new: str


def keep_given_numbers(tops: QueueTops, writer: QueueWriter, log: LogRanges) -> dict[str, int]:
    """Let no queue end before numbers that the old one gave out.

    Returns
    -------
    dict
        How many places each queue got, by topic and queue id.
    """
    added: dict[str, int] = {}
    for topic in _directories(tops.files, tops.old):
        for queue in _directories(tops.files, topic.path):
            name = f"{topic.name}/{queue.name}"
            count = _keep_of_queue(tops, name, writer, log)
            if count:
                added[name] = count
    writer.close()
    return added


def _keep_of_queue(tops: QueueTops, name: str, writer: QueueWriter, log: LogRanges) -> int:
    old = _QueueFiles(tops.files, f"{tops.old}/{name}", writer.file_bytes)
    if not old.entries:
        return 0
    new = _QueueFiles(tops.files, f"{tops.new}/{name}", writer.file_bytes)
    if not new.entries:
        return _keep_vanished(old, name, writer, log)
    per_file = writer.file_bytes // ENTRY_SIZE_BYTES
    last = max(new.entries)
    end = last // ENTRY_SIZE_BYTES + _last(written_mask(new.read(last))) + 1
    given = end
    base = end // per_file * writer.file_bytes
    # Only file by file: one damaged name must not make files up to it.
    while base in old.entries:
        first = base // ENTRY_SIZE_BYTES
        row = _last(_is_given(old.read(base), log))
        if row >= 0:
            given = max(given, first + row + 1)
        base += writer.file_bytes
    if given > end:
        writer.write(name, end, KEPT_PLACE_BYTES * (given - end))
    return given - end


def _keep_vanished(old: _QueueFiles, name: str, writer: QueueWriter, log: LogRanges) -> int:
    """Keep the last file of a queue that has no record left, if it says what numbers were given."""
    for base in sorted(old.entries, reverse=True):
        entries = old.read(base)
        is_expired = written_mask(entries) & ~filler_mask(entries)
        is_expired &= entries["physical_offset"] < log.begin
        row = _last(is_expired | _is_given(entries, log))
        if row < 0:
            continue
        is_whole = old.entries[base].size == writer.file_bytes
        kept = entries.tobytes() if is_expired[row] and is_whole else KEPT_PLACE_BYTES * (row + 1)
        writer.write(name, base // ENTRY_SIZE_BYTES, kept)
        return row + 1
    return 0


class _QueueFiles:
    """The files of one queue by the position of their first byte."""

    def __init__(self, files: Files, directory: str, file_bytes: int) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self.entries = {
            base: one
            for one in files.list(directory)
            if (base := parse_file_name(one.name)) is not None and not one.is_directory
        }

    def read(self, base: int) -> npt.NDArray[np.void]:
        """Return the entries of a file, and zeros behind its end."""
        entries = np.zeros(self._file_bytes // ENTRY_SIZE_BYTES, ENTRY_DTYPE)
        view = entries.view(np.uint8).data
        with opened(self._files, self.entries[base].path) as file:
            read = file.read_into(0, view)
        # The rest of an entry that was cut off is none.
        view[read - read % ENTRY_SIZE_BYTES : read] = bytes(read % ENTRY_SIZE_BYTES)
        return entries


def _directories(files: Files, path: str) -> list[FileEntry]:
    return [one for one in files.list(path) if one.is_directory]


def _is_given(entries: npt.NDArray[np.void], log: LogRanges) -> npt.NDArray[np.bool_]:
    """Return which entries stand for numbers that were given out and have no record."""
    offsets = entries["physical_offset"].astype(np.int64)
    is_lost = offsets >= log.end
    for start, stop in log.damaged:
        is_lost |= (offsets >= start) & (offsets < stop)
    for start, stop in log.leftovers:
        is_lost &= (offsets < start) | (offsets >= stop)
    is_message = written_mask(entries) & ~filler_mask(entries)
    given: npt.NDArray[np.bool_] = (is_message & is_lost) | kept_place_mask(entries)
    return given


def _last(mask: npt.NDArray[np.bool_]) -> int:
    """Return the last row that is set, -1 for none."""
    rows = np.flatnonzero(mask)
    return int(rows[-1]) if rows.size else -1
