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
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.scan.scanner import scan_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.scan.scanner import Damage
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


class Scrubber:
    """Checks the cold files of a log, some bytes a turn.

    Attributes
    ----------
    passes, checked_bytes
        Over all cold files, and bytes of them in each pass, since the store was opened.
    damaged_ranges
        Places without an intact record, each counted once.
    """

    def __init__(
        self, files: MappedFileQueue, *, bytes_per_turn: int, durable_offset: Callable[[], int]
    ) -> None:
        self.passes = self.checked_bytes = self.damaged_ranges = 0
        self._files = files
        self._bytes_per_turn = bytes_per_turn
        self._durable_offset = durable_offset
        self._known: set[ByteRange] = set()
        self._steps: Iterator[int] = self._pass()

    def turn(self) -> None:
        """Check the next bytes; a whole pass ends a turn too."""
        spent = 0
        while spent < self._bytes_per_turn:
            checked = next(self._steps, None)
            if checked is None:
                self._steps = self._pass()
                return
            self.checked_bytes += checked
            spent += max(checked, 1)

    def _pass(self) -> Iterator[int]:
        """Check every cold file once; yield after each step how many bytes further it is."""
        following = -1
        while cold := [
            file
            for file in self._files.files[:-1]
            if file.base >= following and file.base + file.size <= self._durable_offset()
        ]:
            following = cold[0].base + cold[0].size
            yield from self._check(cold[0])
        if following >= 0:
            self.passes += 1
            # What retention deleted is not met again.
            log_min = self._files.min_offset
            self._known = {place for place in self._known if place.start >= log_min}

    def _check(self, file: MappedFile) -> Iterator[int]:
        reached, end = file.base, file.base + file.size
        batches = scan_window(
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
        try:
            for batch in batches:
                columns, before = batch.columns, reached
                if len(columns):
                    reached = max(reached, int(columns.physical_offset[-1] + columns.size[-1]))
                for damage in batch.damage:
                    reached = max(reached, damage.range.stop)
                    self._note(file, damage)
                yield reached - before
        except FileNotFoundError:  # retention was faster
            pass
        except (OSError, StoreError) as error:
            _log.warning("scrub.unreadable", path=str(file.path), error=str(error))
        yield max(end - reached, 0)

    def _note(self, file: MappedFile, damage: Damage) -> None:
        if damage.range in self._known:
            return
        self._known.add(damage.range)
        self.damaged_ranges += 1
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
