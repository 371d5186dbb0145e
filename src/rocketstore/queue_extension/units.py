"""Read the units of one queue's extension, with ``pread``, beside a process that writes it.

Law: a unit is derived from its record and less believed than it: where none stands, nothing is
said, and the record is asked.

How derived: ConsumeQueueExt.get of 4.9, ConsumeQueue.getExt (spec F7, B13).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rocketstore.format.queue_entry import (
    ENTRY_DTYPE,
    ENTRY_SIZE_BYTES,
    MAX_EXT_ADDRESS,
    entry_array,
)
from rocketstore.format.queue_extension import (
    LEAST_UNIT_BYTES,
    MOST_UNIT_BYTES,
    ExtensionUnit,
    decode_unit,
    position_of,
)
from rocketstore.queue_extension.tags_codes import resolved
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles
from rocketstore.units import Window

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.native.row import Int64Array


class UnitReader:
    """Reads the units in `directory`, which need not exist."""

    def __init__(self, directory: Path, open_files: OpenFiles) -> None:
        self.directory = directory
        self._open_files = open_files

    @cached_property
    def _files(self) -> PreadFiles:
        return PreadFiles((self.directory,), open_files=self._open_files)

    def unit_at(self, address: int) -> ExtensionUnit | None:
        """Return what an entry's tags code refers to; None where it refers to no unit."""
        position = position_of(address)
        if position is None:
            return None
        raw = self._files.read(position, LEAST_UNIT_BYTES) or b""
        size = int.from_bytes(raw[:2], signed=True)
        if LEAST_UNIT_BYTES < size <= MOST_UNIT_BYTES:
            raw = self._files.read(position, size) or b""
        return decode_unit(raw)

    def tags_codes(self, codes: Int64Array) -> Int64Array:
        """Return the tags codes that entries mean; an address without a unit stays as it is."""
        return resolved(codes, self._files.read)

    def with_tags_codes(self, window: Window, start: int, limit: int) -> Window:
        """Return entries of a queue (`QueueSearch.bytes_at`) with the tags codes that they mean."""
        base = start * ENTRY_SIZE_BYTES
        low, high = base - window.base, base - window.base + limit * ENTRY_SIZE_BYTES
        held = memoryview(window.buffer)[low : min(high, window.size)]
        entries = np.array(entry_array(held), ENTRY_DTYPE)
        codes = entries["tags_code"].astype(np.int64)
        if not (codes <= MAX_EXT_ADDRESS).any():
            return window._replace(file=None)
        entries["tags_code"] = self.tags_codes(codes)
        return Window(entries.tobytes(), base, entries.nbytes)
