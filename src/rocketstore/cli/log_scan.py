"""Rows of ``store scan``: every record, blank and damaged range, in physical order."""

from __future__ import annotations

import heapq
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.errors import NotAStoreError
from rocketstore.format.record import decode_record
from rocketstore.scan.scanner import ScanBatch, scan_segment
from rocketstore.storage.files.pread_files import LogFile, PreadFiles
from rocketstore.storage.layout import StoreLayout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.config import StoreConfig


class LogScan:
    """One pass over a CommitLog that somebody else may be writing to.

    Parameters
    ----------
    root
        Directory of the store.
    begin, end
        Physical offsets; what starts before `begin` or at or behind `end` is left out.

    Attributes
    ----------
    damaged_bytes
        Bytes of damage met so far.
    """

    def __init__(self, root: Path, config: StoreConfig, begin: int | None, end: int | None) -> None:
        layout = StoreLayout.of(root, config)
        directories = layout.commit_log_directories + layout.read_only_directories
        self.files = PreadFiles(directories)
        if not self.files.files:
            raise NotAStoreError(
                f"{root} is no store: no CommitLog file in {', '.join(map(str, directories))}",
                hint="name the directory that holds commitlog/, or --set storePathCommitLog=…",
            )
        self.begin = 0 if begin is None else begin
        self.end = end
        self.damaged_bytes = 0

    def rows(self, *, damage_only: bool = False) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready row per record, blank and damaged range (DESIGN 8)."""
        for file in self.files.files:
            if file.base + file.size <= self.begin or (
                self.end is not None and file.base >= self.end
            ):
                continue
            content = _read(file)
            for batch in scan_segment(content, base=file.base, file_size=file.size):
                yield from self._batch_rows(batch, file, content, damage_only=damage_only)

    def count(self) -> tuple[int, int]:
        """Scan without making rows; return how many records there are and the bytes scanned."""
        records = size = 0
        for file in self.files.files:
            content = _read(file)
            size += len(content)
            for batch in scan_segment(content, base=file.base, file_size=file.size):
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
        view = content.data
        parts: list[Iterator[tuple[int, dict[str, Any]]]] = [self._damage_rows(batch, file)]
        if not damage_only:
            parts.append(_blank_rows(batch, file))
            parts.append(
                (offset, {"kind": "message", **_message(view, offset, file.base)})
                for offset in batch.columns.physical_offset.tolist()
            )
        for offset, row in heapq.merge(*parts, key=lambda part: part[0]):
            if self._is_wanted(offset):
                yield row

    def _damage_rows(self, batch: ScanBatch, file: LogFile) -> Iterator[tuple[int, dict[str, Any]]]:
        for damage in batch.damage:
            start = damage.range.start
            if self._is_wanted(start):
                self.damaged_bytes += damage.range.size
            yield (
                start,
                {
                    "kind": "damage",
                    "physicalOffset": start,
                    "size": damage.range.size,
                    "file": str(file.path),
                    "reason": f"{damage.reason.value}: {damage.evidence}",
                },
            )

    def _is_wanted(self, offset: int) -> bool:
        return offset >= self.begin and (self.end is None or offset < self.end)


def _message(view: memoryview, offset: int, base: int) -> dict[str, Any]:
    return decode_record(view, offset - base, base=base).to_dict()


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
    view = content.data
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = 0
        while position < file.size:
            count = os.preadv(descriptor, [view[position:]], position)
            if count == 0:
                break
            position += count
    finally:
        os.close(descriptor)
    return content[:position]
