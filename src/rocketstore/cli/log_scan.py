"""Rows of ``store scan``: every record, blank and damaged range, in physical order."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.errors import NotAStoreError
from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.native.decode import decode
from rocketstore.scan.scanner import DamageReason, ScanBatch, scan_window
from rocketstore.storage.files.disk import Disk, fill
from rocketstore.storage.files.lock import writer_pid
from rocketstore.storage.files.pread_files import LogFile, PreadFiles
from rocketstore.storage.layout import StoreLayout
from rocketstore.units import ByteRange
from rocketstore.verification.file_rules import FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.config import StoreConfig
    from rocketstore.scan.scanner import Damage


_WRONG_FILES: Final = frozenset(
    {
        FileProblem.WRONG_SIZE,
        FileProblem.MISPLACED,
        FileProblem.DUPLICATE,
        FileProblem.DANGLING_LINK,
        FileProblem.NOT_A_FILE,
    }
)

LOOKS: Final = 3
"""How often a range that a writer changes is read again before it is called damaged."""


class LogScan:
    """One pass over a CommitLog that somebody else may be writing to.

    Parameters
    ----------
    root
        Directory of the store.
    begin, end
        Physical offsets; what starts before `begin` or at or after `end` is left out.

    Attributes
    ----------
    damaged_bytes
        Bytes of damage met so far.
    """

    def __init__(self, root: Path, config: StoreConfig, begin: int | None, end: int | None) -> None:
        layout = StoreLayout.of(root, config)
        directories = layout.log_directories
        self.files = PreadFiles(directories, file_size=config.mapped_file_size_commit_log)
        # A store that was opened and has no message yet has no file either.
        is_new = layout.commit_log_directories[0].is_dir() and not any(
            layout.consume_queue.glob("*/*/*")
        )
        if not self.files.files and not is_new:
            raise NotAStoreError(
                f"{root} is not a store: no CommitLog file in {', '.join(map(str, directories))}",
                hint="name the directory that holds commitlog/, or --set storePathCommitLog=…",
            )
        self.begin = 0 if begin is None else begin
        self.end = end
        self.damaged_bytes = 0
        self._is_live = writer_pid(layout.lock) is not None
        # What only is damage if the log goes on after it; files made ahead are zeros too.
        self._pending: list[Iterator[dict[str, Any]]] = []

    def rows(self, *, damage_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready row per record, blank and damaged range."""
        wrong = sorted(self._file_rows(), key=_offset_of)
        return heapq.merge(wrong, self._log_rows(damage_only=damage_only), key=_offset_of)

    def _log_rows(self, *, damage_only: bool) -> Iterator[dict[str, Any]]:
        holes = {hole.stop: hole for hole in self.files.holes}
        pending = self._pending
        for before, file in zip([None, *self.files.files], self.files.files, strict=False):
            if before is not None and file.base in holes:
                pending.append(self._hole_rows(holes[file.base], before, file))
            is_past = self.end is not None and file.base >= self.end
            if file.base + file.size <= self.begin or (is_past and not pending):
                continue
            try:
                content = _read(file)
            except FileNotFoundError:  # expired since the directory was listed
                continue
            if is_past:
                if content.any():
                    yield from itertools.chain.from_iterable(pending)
                    pending.clear()
                continue
            for batch in self._scan(content, file):
                if len(batch.columns) or batch.blanks or batch.damage:
                    yield from itertools.chain.from_iterable(pending)
                    pending.clear()
                yield from self._batch_rows(batch, file, content, damage_only=damage_only)
                if batch.unwritten_at is not None:
                    pending.append(
                        self._unwritten_rows(file, batch.unwritten_at, damage_only=damage_only)
                    )

    def _file_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each file that is not what its name and the other files say.

        One that is missing, empty or cut off with others after it is a hole of the log.
        """
        size = self.files.file_size
        last = self.files.files[-1] if self.files.files else None
        for found in self.files.findings:
            base = parse_file_name(found.path.name)
            if base is None or found.problem not in _WRONG_FILES:
                continue
            length = found.path.stat().st_size if found.path.is_file() else 0
            extent = ByteRange(base, base + length)
            reason = found.problem.value.lower().replace("_", " ")
            if found.problem is FileProblem.WRONG_SIZE:
                if length <= size and not (last and base == last.base and self._is_cut(last)):
                    continue
                extent = ByteRange(base + min(length, size), base + max(length, size))
                if length < size:
                    reason = "truncated"
            evidence = f"expected {found.expected}, found {found.found}"
            if self._is_wanted(extent.start):
                yield self._damage_row(extent, found.path, reason, evidence)

    def _is_cut(self, last: LogFile) -> bool:
        """Whether the last file lost its end, and is not one that a writer was just making."""
        return not self._is_live and bool(_read(last).any())

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
        if self._is_wanted(hole.start):
            yield self._damage_row(
                hole, path, "truncated" if is_short else "missing file", evidence
            )

    def _unwritten_rows(
        self, file: LogFile, start: int, *, damage_only: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the row of a file's end that was never written though the log goes on after it.

        A writer may have written there since the file was read, so it is read again first.
        """
        content = _read(file)
        scan = self._scan(content, file, start - file.base)
        for batch in scan:
            yield from self._batch_rows(batch, file, content, damage_only=damage_only)
            gap = batch.unwritten_at
            if gap is not None and self._is_wanted(gap):
                yield self._damage_row(
                    ByteRange(gap, file.base + file.size),
                    file.path,
                    DamageReason.UNWRITTEN_HOLE.value,
                    "zeros up to the file's end, where a BLANK should be; the log goes on",
                )

    def count(self) -> tuple[int, int]:
        """Scan without making rows; return how many records there are and the bytes scanned."""
        records = size = 0
        for file in self.files.files:
            content = _read(file)
            size += len(content)
            for batch in self._scan(content, file):
                records += len(batch.columns)
                self.damaged_bytes += sum(damage.range.size for damage in batch.damage)
        return records, size

    def _batch_rows(
        self,
        batch: ScanBatch,
        file: LogFile,
        content: npt.NDArray[np.uint8],
        *,
        damage_only: bool,
    ) -> Iterator[dict[str, Any]]:
        parts: list[Iterator[tuple[int, dict[str, Any]]]] = []
        for damage in batch.damage:
            is_tail = self._is_live and batch.end_of_data <= damage.range.start
            rows = self._damage_rows(
                damage, file, content, damage_only=damage_only, is_tail=is_tail
            )
            parts.append(rows)
        if not damage_only:
            parts.append(_record_rows(batch, file, content.data))
        for offset, row in heapq.merge(*parts, key=lambda part: part[0]):
            if self._is_wanted(offset):
                yield row

    def _damage_rows(
        self,
        damage: Damage,
        file: LogFile,
        content: npt.NDArray[np.uint8],
        *,
        damage_only: bool,
        is_tail: bool,
        looks: int = LOOKS,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what a damaged range holds: a writer may have been writing there as it was read.

        At the end of a log with a writer it stays unsaid: a record that is not finished yet.
        """
        start, stop = damage.range.start - file.base, damage.range.stop - file.base
        now = _read(file) if self._is_live and looks else content
        if now is content or np.array_equal(now[start:stop], content[start:stop]):
            row = self._sure_row(damage, file)
            if is_tail:
                self._pending.append(row)
            else:
                yield from ((damage.range.start, one) for one in row)
            return
        scan = self._scan(now, file, start, stop)
        for batch in scan:
            rows = _record_rows(batch, file, now.data)
            if not damage_only:
                yield from rows
            for inner in batch.damage:
                yield from self._damage_rows(
                    inner, file, now, damage_only=damage_only, is_tail=is_tail, looks=looks - 1
                )

    def _sure_row(self, damage: Damage, file: LogFile) -> Iterator[dict[str, Any]]:
        yield self._damage_row(damage.range, file.path, damage.reason.value, damage.evidence)

    def _damage_row(
        self, extent: ByteRange, path: Path, reason: str, evidence: str
    ) -> dict[str, Any]:
        if self._is_wanted(extent.start):
            self.damaged_bytes += extent.size
        return {
            "kind": "damage",
            "physicalOffset": extent.start,
            "size": extent.size,
            "file": str(path),
            "reason": f"{reason}: {evidence}",
        }

    def _scan(
        self, content: npt.NDArray[np.uint8], file: LogFile, start: int = 0, stop: int | None = None
    ) -> Iterator[ScanBatch]:
        size = self.files.file_size
        return scan_window(
            content, base=file.base, start=start, stop=stop, file_size=size, lookback_bytes=0
        )

    def _is_wanted(self, offset: int) -> bool:
        return offset >= self.begin and (self.end is None or offset < self.end)


def _offset_of(row: dict[str, Any]) -> int:
    offset: int = row["physicalOffset"]
    return offset


def _message(view: memoryview, offset: int, base: int) -> dict[str, Any]:
    message = decode(view, offset - base, base, check_crc=False)
    assert message is not None  # the scanner found it intact
    return message.to_dict()


def _record_rows(
    batch: ScanBatch, file: LogFile, view: memoryview
) -> Iterator[tuple[int, dict[str, Any]]]:
    messages = (
        (offset, {"kind": "message", **_message(view, offset, file.base)})
        for offset in batch.columns.physical_offset.tolist()
    )
    return heapq.merge(messages, _blank_rows(batch, file), key=lambda part: part[0])


def _blank_rows(batch: ScanBatch, file: LogFile) -> Iterator[tuple[int, dict[str, Any]]]:
    for blank in batch.blanks:
        yield (
            blank.physical_offset,
            {
                "kind": "blank",
                "physicalOffset": blank.physical_offset,
                "size": blank.size,
                "file": str(file.path),
            },
        )


def _read(file: LogFile) -> npt.NDArray[np.uint8]:
    """Return the bytes of a file, by read calls: a map of a file that is cut short kills."""
    content = np.zeros(file.size, dtype=np.uint8)
    with Disk().opened(file.path, writable=False) as descriptor:
        return content[: fill(descriptor, file.path, 0, content.data)]
