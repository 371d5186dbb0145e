"""Let a CommitLog end where recovery says: keep copies, zero, and delete what lies behind.

Law: a file is never shrunk; what is cut was copied first (`Evidence`); files go from the last to
the first, and the tail after them, so that an interruption leaves a log that recovery ends at the
same place again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.storage.files.written import has_data
from rocketstore.verification.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.recovery.evidence import Evidence
    from rocketstore.units import ByteRange


def cut_log(
    log: MappedFileQueue,
    end: int,
    *,
    evidence: Evidence,
    now_ms: int,
    data_stop: Callable[[int], int] | None = None,
) -> list[Finding]:
    """Make `end` the end of the log; say what was cut.

    Parameters
    ----------
    log
        Loaded files; afterwards the file of `end` has its write position there and none follows.
    end
        Physical offset behind the last record or BLANK that stays.
    evidence
        Keeps copies.
    now_ms
        The time.
    data_stop
        Tells of the file that begins at an offset behind which position it is zeros.
    """

    def stop_of(file: MappedFile) -> int:
        return file.size if data_stop is None else data_stop(file.base)

    findings = []
    for file in reversed([file for file in log.files if file.base >= end and file.writable]):
        if file.base == end and file.base == log.files[0].base:
            continue  # an empty log keeps its first file
        stop = stop_of(file)  # may close the descriptor, so it is asked first
        if has_data(file.fd, 0, stop):
            file.close_descriptor()
            evidence.take_file(file.path)
            findings.append(_cut(file, 0, file.size, "the whole file lies behind the log's end"))
        log.remove([file], now_ms=now_ms)
    last = log.find(end) or (log.last() if log.max_offset == end else None)
    if last is not None and last.writable and last.base <= end < last.base + last.size:
        start = end - last.base
        size = evidence.cut_range(last.path, start, stop_of(last))
        if size:
            findings.append(_cut(last, start, size, "bytes behind the log's last record"))
    log.truncate_after(end, now_ms=now_ms)
    return findings


def cut_leftovers(
    log: MappedFileQueue, ranges: Sequence[ByteRange], *, evidence: Evidence
) -> list[Finding]:
    """Zero old records inside the log, so that no reader takes them for messages."""
    findings = []
    for place in sorted(ranges, reverse=True):
        file = log.find(place.start)
        if file is None or not file.writable:
            continue
        start = place.start - file.base
        size = evidence.cut_range(file.path, start, start + place.size)
        if size:
            findings.append(_cut(file, start, size, "records that an earlier log left behind"))
    return findings


def _cut(file: MappedFile, offset: int, size: int, reason: str) -> Finding:
    return Finding(
        Severity.WARNING,
        "log-cut",
        relative_name(file.path),
        offset,
        size,
        reason,
        "kept below repair/, then zeroed" if offset or size < file.size else "moved to repair/",
    )


def relative_name(path: Path) -> str:
    """Return directory and name of a log file, as findings show it."""
    return f"{path.parent.name}/{path.name}"
