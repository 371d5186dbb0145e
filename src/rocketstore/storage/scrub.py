"""Read old CommitLog files again and again, slowly, and say when a record in them has rotted.

Recovery looks at the end of the log only, and a read at what is asked for. A bit that flips in a
file that nobody reads is found when it is too late to fetch the message from anywhere else (K-R13).
So an open store can check its cold files, all but the one that is written, a few bytes a second.

Law: nothing is written, mapped or repaired, and no file is kept from retention. What is found is
counted and logged, once for each place.
Cost: the bytes a second that were set, and a window of memory while a turn lasts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.events import get_logger
from rocketstore.scan.scanner import scan_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.scan.scanner import Damage, ScanBatch
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.units import ByteRange

TURN_INTERVAL_S: Final = 1.0
"""A turn a second: its share of the disk is spread, and a stop waits for one turn at most."""

WINDOW_BYTES: Final = 1 << 20
"""What a turn reads at a time."""

BATCH_RECORDS: Final = 1024
"""Records after which a turn looks at what it has spent."""

_log: Final = get_logger(__name__)


class ScrubCounts(NamedTuple):
    """What was checked since the store was opened.

    `passes` over all cold files, bytes of them in each pass, and places without an intact record,
    each counted once.
    """

    passes: int = 0
    checked_bytes: int = 0
    damaged_ranges: int = 0


class Scrubber:
    """Checks the cold files of a log, some bytes a turn."""

    def __init__(
        self,
        files: MappedFileQueue,
        *,
        bytes_per_turn: int,
        durable_offset: Callable[[], int],
    ) -> None:
        self.counts = ScrubCounts()
        self._files = files
        self._bytes_per_turn = bytes_per_turn
        self._durable_offset = durable_offset
        self._known: set[ByteRange] = set()
        self._next_base = -1
        self._file: MappedFile | None = None
        self._scan: Iterator[ScanBatch] = iter(())
        self._reached = 0

    def turn(self) -> None:
        """Check the next bytes; a whole pass ends a turn too."""
        spent = 0
        while spent < self._bytes_per_turn:
            if self._file is None and not self._take_next():
                return
            spent += self._step()

    def _take_next(self) -> bool:
        """Take the next cold file; False at the end of a pass."""
        limit = self._durable_offset()
        cold = [
            file
            for file in self._files.files[:-1]
            if file.base >= self._next_base and file.base + file.size <= limit
        ]
        if not cold:
            if self._next_base >= 0:
                self.counts = self.counts._replace(passes=self.counts.passes + 1)
                # What retention deleted is not met again.
                log_min = self._files.min_offset
                self._known = {place for place in self._known if place.start >= log_min}
            self._next_base = -1
            return False
        file = self._file = cold[0]
        self._next_base = file.base + file.size
        self._reached = file.base
        self._scan = scan_window(
            _FileBytes(file),
            base=file.base,
            size=file.size,
            start=0,
            stop=file.size,
            batch_records=BATCH_RECORDS,
            lookback_bytes=1,
            window_bytes=WINDOW_BYTES,
            whole_damage=True,
        )
        return True

    def _step(self) -> int:
        """Check one batch of a file; return how many bytes further that is."""
        file = self._file
        assert file is not None
        try:
            batch = next(self._scan, None)
        except FileNotFoundError:  # retention was faster
            batch = None
        if batch is None:
            stop = file.base + file.size
            self._file = None
        else:
            stop = self._reached
            if len(batch.columns):
                last = len(batch.columns) - 1
                stop = int(batch.columns.physical_offset[last] + batch.columns.size[last])
            for damage in batch.damage:
                stop = max(stop, damage.range.stop)
                self._note(file, damage)
        checked = max(stop - self._reached, 0)
        self._reached = max(stop, self._reached)
        self.counts = self.counts._replace(checked_bytes=self.counts.checked_bytes + checked)
        return max(checked, 1)

    def _note(self, file: MappedFile, damage: Damage) -> None:
        if damage.range in self._known:
            return
        self._known.add(damage.range)
        self.counts = self.counts._replace(damaged_ranges=self.counts.damaged_ranges + 1)
        _log.warning(
            "scrub.damage",
            path=str(file.path),
            offset=damage.range.start - file.base,
            size=damage.range.size,
            reason=damage.reason.value,
            next="run `rocketstore store verify`; fetch the messages from another copy",
        )


class _FileBytes:
    """Bytes of one file by `preadv`, even if others map or close it."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        with self._file.descriptor() as descriptor:
            count = os.preadv(descriptor, [view], position)
        if not self._file.is_mapped:
            self._file.close_descriptor()
        return count
