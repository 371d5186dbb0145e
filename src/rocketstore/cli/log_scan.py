"""Rows of ``store scan``: every record, blank and damaged range, in physical order."""

from __future__ import annotations

import contextlib
import heapq
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.native.decode import decode
from rocketstore.rules.files import FileProblem
from rocketstore.scan.scanner import ScanBatch, scan_window
from rocketstore.storage.files.lock import writer_pid
from rocketstore.storage.files.pread_files import LogFile, OpenFiles, PreadFiles
from rocketstore.storage.files.whole_file import holds_data
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.reading.pread_log import PreadLog
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketstore.config import StoreConfig

_offset_of: Final = itemgetter("physicalOffset")
"""Of a row."""


def log_files_of(root: Path, config: StoreConfig) -> tuple[StoreLayout, PreadFiles]:
    """Return a store's directories and its log's files; raises `NotAStoreError` without a log."""
    layout = StoreLayout.of(root, config)
    PreadLog(layout, OpenFiles()).refuse_no_log()
    return layout, PreadFiles(layout.log_directories, file_size=config.mapped_file_size_commit_log)


class LogScan:
    """One pass over a CommitLog that another process may be writing.

    What starts before `begin` or at or after `end`, physical offsets, is left out. `damaged_bytes`
    were met so far.
    """

    def __init__(self, root: Path, config: StoreConfig, begin: int | None, end: int | None) -> None:
        layout, self.files = log_files_of(root, config)
        self.begin = 0 if begin is None else begin
        self.end = end
        self.damaged_bytes = 0
        self._lock = layout.lock
        self._was_live = writer_pid(self._lock) is not None

    @property
    def _is_live(self) -> bool:
        """Whether a process writes to the log, or one did as the scan began."""
        return self._was_live or writer_pid(self._lock) is not None

    def rows(self, *, damage_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready row per record, blank and damaged range."""
        wrong = sorted(self._file_rows(), key=_offset_of)
        found = heapq.merge(wrong, self._log_rows(damage_only=damage_only), key=_offset_of)
        for row in found:
            at = _offset_of(row)
            if at >= self.begin and (self.end is None or at < self.end):
                self.damaged_bytes += row["size"] if row["kind"] == "damage" else 0
                yield row

    def _log_rows(self, *, damage_only: bool) -> Iterator[dict[str, Any]]:
        holes = {hole.stop: hole for hole in self.files.holes}
        files = self.files.files
        # An empty file is damage if the log continues after it; files made ahead are zeros too.
        last = next((file for file in reversed(files) if _holds_data(file)), None)
        for before, file in zip([None, *files], files, strict=False):
            if last is None or file.base > last.base:
                return
            if before is not None and file.base in holes:
                yield from self._hole_rows(holes[file.base], before, file)
            if self.end is not None and file.base >= self.end:
                return
            if file.base + file.size > self.begin:
                with contextlib.suppress(FileNotFoundError):  # expired since it was listed
                    yield from self._rows_of(file, is_last=file is last, damage_only=damage_only)

    def _file_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each file that does not fit its name and the other files.

        A file that is missing, empty or cut off, with others after it, is a hole of the log.
        """
        size = self.files.file_size
        last = self.files.files[-1] if self.files.files else None
        for found in self.files.findings:
            base = parse_file_name(found.path.name)
            if base is None or found.problem in {FileProblem.EMPTY, FileProblem.MISSING}:
                continue
            length = found.path.stat().st_size if found.path.is_file() else 0
            extent = ByteRange(base, base + length)
            reason = found.problem.kind.replace("-", " ")
            if found.problem is FileProblem.WRONG_SIZE:
                if length <= size and not (last and base == last.base and self._is_cut(last)):
                    continue
                extent = ByteRange(base + min(length, size), base + max(length, size))
                if length < size:
                    reason = "truncated"
            evidence = f"expected {found.expected}, found {found.found}"
            yield _damage_row(extent, found.path, reason, evidence)

    def _is_cut(self, last: LogFile) -> bool:
        """Whether the last file lost its end; one that a writer is just making did not."""
        return not self._is_live and _holds_data(last)

    def _hole_rows(
        self, hole: ByteRange, before: LogFile, after: LogFile
    ) -> Iterator[dict[str, Any]]:
        """Yield the row of a range that no file holds, though files after it are there."""
        is_short = hole.start < before.base + self.files.file_size
        path = before.path if is_short else after.path.with_name(file_name(hole.start))
        evidence = f"no file for physical offsets [{hole.start}, {hole.stop})"
        if is_short:
            evidence = f"expected {self.files.file_size} bytes, found {before.size}"
        elif path.exists():
            evidence = f"expected {self.files.file_size} bytes, found 0"
        yield _damage_row(hole, path, "truncated" if is_short else "missing file", evidence)

    def _rows_of(
        self, file: LogFile, start: int = 0, stop: int | None = None, *, is_last: bool,
        damage_only: bool, is_second_look: bool = False,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """Yield what begins in a range of a file; a file that `is_last` may end in zeros.

        A writer may have been at work meanwhile: damage is what a second look finds too. At the end
        of the log it is then an unfinished record, and not reported.
        """
        for batch in self._scan(file, start, stop):
            rows = [] if damage_only else [*_message_rows(batch), *_blank_rows(batch, file)]
            for one in batch.damage if is_last else batch.damage_up_to(file.range.stop):
                if is_last and self._is_live and one.range.stop == batch.unwritten_at:
                    continue
                if self._is_live and not is_second_look:
                    begin, end = (at - file.base for at in one.range)
                    rows += self._rows_of(
                        file,
                        begin,
                        end,
                        is_last=is_last,
                        damage_only=damage_only,
                        is_second_look=True,
                    )
                else:
                    rows.append(_damage_row(one.range, file.path, one.reason.value, one.evidence))
            yield from sorted(rows, key=_offset_of)

    def count(self) -> tuple[int, int]:
        """Scan without making rows; return how many records there are and the bytes scanned."""
        records = size = 0
        for file in self.files.files:
            size += file.data_stop()
            for batch in self._scan(file):
                records += len(batch.columns)
                self.damaged_bytes += sum(damage.range.size for damage in batch.damage)
        return records, size

    def _scan(self, file: LogFile, start: int = 0, stop: int | None = None) -> Iterator[ScanBatch]:
        return scan_window(
            file,
            base=file.base,
            size=file.size,
            start=start,
            stop=stop,
            file_size=self.files.file_size,
            data_stop=file.data_stop(),
            lookback_bytes=0,
        )


def _damage_row(extent: ByteRange, path: Path, reason: str, evidence: str) -> dict[str, Any]:
    return {
        "kind": "damage",
        "physicalOffset": extent.start,
        "size": extent.size,
        "file": str(path),
        "reason": f"{reason}: {evidence}",
    }


def _holds_data(file: LogFile) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return holds_data(file.path)
    return False


def _message_rows(batch: ScanBatch) -> Iterator[dict[str, Any]]:
    columns = batch.columns
    for offset in columns.physical_offset.tolist():
        at = offset - columns.base
        message = decode(columns.buffer.data, at, columns.base, check_crc=False)
        assert message is not None  # the scanner found it intact
        yield {"kind": "message", **message.to_dict()}


def _blank_rows(batch: ScanBatch, file: LogFile) -> Iterator[dict[str, Any]]:
    for offset, size in batch.blanks:
        yield {"kind": "blank", "physicalOffset": offset, "size": size, "file": str(file.path)}
