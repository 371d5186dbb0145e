"""Queue offsets that were given out and that the log knows nothing of any more.

A queue made from the log alone ends behind its last record. Where the old queue went on, because
its last records were lost or deleted, a consumer may have read them: their numbers must not be
given again (decision 0014, K-C4). The new queue gets kept places for them, and a queue of which no
record is left keeps its last file.

Law: where the log has the last record of every queue, nothing is added.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    KEPT_PLACE_BYTES,
    filler_mask,
    kept_place_mask,
    written_mask,
)
from rocketstore.pipeline.jobs.rebuild.queue_files import QueueFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt


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


def keep_given_numbers(
    old_root: Path, new_root: Path, file_bytes: int, log: LogRanges
) -> dict[str, int]:
    """Let no queue end before numbers that the old one gave out.

    Returns
    -------
    dict
        How many places each queue got, by topic and queue id.
    """
    added: dict[str, int] = {}
    files = QueueFiles(str(new_root), file_bytes)
    for path in sorted(old_root.glob("*/*")):
        if not path.is_dir():
            continue
        name = path.relative_to(old_root).as_posix()
        count = _keep_of_queue(path, new_root / name, files, log)
        if count:
            added[name] = count
    files.close()
    return added


def _keep_of_queue(old: Path, new: Path, files: QueueFiles, log: LogRanges) -> int:
    bases = _bases(old)
    if not bases:
        return 0
    new_bases = _bases(new)
    if not new_bases:
        return _keep_vanished(old, new, files, log)
    per_file = files.file_bytes // ENTRY_SIZE_BYTES
    wanted = _read(new, new_bases[-1], files.file_bytes)
    end = new_bases[-1] // ENTRY_SIZE_BYTES + _last(written_mask(wanted)) + 1
    given = end
    base = end // per_file * files.file_bytes
    # Only file by file: one damaged name must not make files up to it.
    while base in bases:
        first = base // ENTRY_SIZE_BYTES
        row = _last(_is_given(_read(old, base, files.file_bytes), log))
        if row >= 0:
            given = max(given, first + row + 1)
        base += files.file_bytes
    if given > end:
        files.write(f"{new.parent.name}/{new.name}", end, KEPT_PLACE_BYTES * (given - end))
    return given - end


def _keep_vanished(old: Path, new: Path, files: QueueFiles, log: LogRanges) -> int:
    """Keep the last file of a queue that has no record left, if it says what numbers were given."""
    for base in reversed(_bases(old)):
        entries = _read(old, base, files.file_bytes)
        is_expired = written_mask(entries) & ~filler_mask(entries)
        is_expired &= entries["physical_offset"] < log.begin
        row = _last(is_expired | _is_given(entries, log))
        if row < 0:
            continue
        directory = f"{new.parent.name}/{new.name}"
        if is_expired[row] and (old / file_name(base)).stat().st_size == files.file_bytes:
            new.mkdir(parents=True)
            target = new / file_name(base)
            shutil.copyfile(old / file_name(base), target)
            with target.open("r+b") as copied:
                os.posix_fallocate(copied.fileno(), 0, files.file_bytes)
                os.fdatasync(copied.fileno())
        else:
            files.write(directory, base // ENTRY_SIZE_BYTES, KEPT_PLACE_BYTES * (row + 1))
        return row + 1
    return 0


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


def _bases(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    found = (parse_file_name(path.name) for path in directory.iterdir() if path.is_file())
    return sorted(base for base in found if base is not None)


def _read(directory: Path, base: int, file_bytes: int) -> npt.NDArray[np.void]:
    entries = np.zeros(file_bytes // ENTRY_SIZE_BYTES, ENTRY_DTYPE)
    read = np.fromfile(directory / file_name(base), ENTRY_DTYPE, len(entries))
    entries[: len(read)] = read
    return entries
