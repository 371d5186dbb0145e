"""Read old CommitLog files again and again, slowly, and report records that have rotted.

Recovery looks only at the end of the log, and a read only at the message asked for. A flipped bit
in a file that is not read is found too late, when no other copy of the message is left (K-R13).
So cold files, all but the one that is written, are checked a few bytes a second: by an open store
(`metrics.scrub_service`), and by ``rocketstore store scrub``, also for a store that another process
writes.

Law: nothing is mapped or repaired, no file is kept from retention, and the page cache keeps what it
had. What is found is kept in a `DamageMap` and logged, once for each place; what a later pass finds
intact again leaves the map.
Cost: the bytes a second that were set, and a window of memory while a turn lasts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.events import get_logger
from rocketstore.metrics.damage_map import MAX_DAMAGED_RANGES, DamagedRange, DamageMap
from rocketstore.rules import runs
from rocketstore.scan.scanner import scan_window
from rocketstore.storage.files.disk import BadSectors, Disk, fill, system_error

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.pread_files import LogFile, PreadFiles

WINDOW_BYTES: Final = 1 << 20
"""What a turn reads at a time."""

BATCH_RECORDS: Final = 1024
"""Records after which a turn looks at what it has spent."""

_log: Final = get_logger(__name__)


@dataclass(eq=False)
class Scrubber:
    """Checks the cold files of a log, some bytes a turn.

    The files are listed again at every pass. `cold_end` says up to which physical offset nothing is
    written any more, `known` where an earlier scrubber stopped, and what it knew. The file at
    `last_base`, and later ones, may end in zeros: the log goes no further.

    `map` says what is damaged, and how far the pass is; it is another object after every change.
    `checked_bytes` are those of every pass.
    """

    _files: PreadFiles
    cold_end: Callable[[], int]
    now_ms: Callable[[], int]
    known: InitVar[DamageMap | None] = None
    last_base: int = sys.maxsize

    def __post_init__(self, known: DamageMap | None) -> None:
        self.map = DamageMap() if known is None else known
        self.checked_bytes = 0
        self._steps: Iterator[int] = self._pass()

    def turn(self, budget: int) -> bool:
        """Check the next `budget` bytes, and a window more at most; True at the end of a pass."""
        spent = 0
        while spent < budget:
            checked = next(self._steps, None)
            if checked is None:
                self._steps = self._pass()
                return True
            self.checked_bytes += checked
            spent += max(checked, 1)
        return False

    @property
    def cold_files(self) -> list[LogFile]:
        """Files that are no longer written, as listed last."""
        end = self.cold_end()
        return [file for file in self._files.files if file.range.stop <= end]

    def _pass(self) -> Iterator[int]:
        """Check every cold file once; yield after each step how many bytes further it is."""
        self._files.refresh()
        is_any = False
        while cold := [file for file in self.cold_files if file.base >= self.map.position]:
            is_any = True
            try:
                yield from self._check(cold[0])
            except OSError as error:
                self._leave(cold[0])
                self._steps = self._pass()  # the next turn goes on with the next file
                raise system_error(f"cannot check {cold[0].path}", error) from error
            self._leave(cold[0])
            self._files.refresh()
        if is_any or self.map.position:
            self._end_pass()

    def _leave(self, file: LogFile) -> None:
        self.map = msgspec.structs.replace(self.map, position=file.range.stop)

    def _end_pass(self) -> None:
        """Enter missing files, forget what retention deleted, and begin again at the first file."""
        end = self.cold_end()
        for hole in self._files.holes:
            if hole.stop <= end:
                evidence = "the files before and after it are there"
                found = self._found("", hole.start, hole.size, "missing file", evidence)
                self._enter(hole.start, hole.stop, [found])
        now_ms, log_min = self.now_ms(), self._files.min_offset
        self.map = msgspec.structs.replace(
            self.map,
            position=0,
            passes=self.map.passes + 1,
            last_pass_timestamp=now_ms,
            damage=tuple(one for one in self.map.damage if one.stop > log_min),
        )

    def _check(self, file: LogFile) -> Iterator[int]:
        """Check a file, and enter its damage; a file that was deleted meanwhile is left out.

        Raises `OSError` where the system refuses to read it for a reason that is not the disk's.
        """
        name, (reached, end) = str(file.path), file.range
        found, source = list[DamagedRange](), BadSectors(partial(_read_cold, file.path))
        try:
            for batch in scan_window(
                source,
                base=file.base,
                size=file.size,
                file_size=self._files.file_size,
                batch_records=BATCH_RECORDS,
                lookback_bytes=1,
                window_bytes=WINDOW_BYTES,
            ):
                columns, before = batch.columns, reached
                if len(columns):
                    reached = max(reached, int(columns.physical_offset[-1] + columns.size[-1]))
                is_followed = file.base < self.last_base
                damage = batch.damage_up_to(end) if is_followed else batch.damage
                for place, reason, evidence in damage:
                    reached = max(reached, place.stop)
                    found.append(self._found(name, place.start, place.size, reason.value, evidence))
                yield reached - before
        except FileNotFoundError:  # retention was faster
            pass
        else:
            self._mark_bad(found, file, source)
            self._enter(file.base, end, found)
        yield max(end - reached, 0)

    def _mark_bad(self, found: list[DamagedRange], file: LogFile, bad: BadSectors) -> None:
        """Name what the disk could not read: zeros stood for it, and may have been no damage."""
        why = {"reason": "unreadable", "evidence": bad.evidence}
        for start, stop in runs.pairs(runs.joined([bad.ranges]) + file.base):
            hit = [one for one in found if one.physical_offset < stop and start < one.stop]
            found[:] = [one for one in found if one not in hit]
            hit = hit or [self._found(str(file.path), start, stop - start, "", "")]
            found += [msgspec.structs.replace(one, **why) for one in hit]

    def _found(self, file: str, at: int, size: int, reason: str, evidence: str) -> DamagedRange:
        return DamagedRange(at, size, reason, evidence, file, self.now_ms())

    def _enter(self, start: int, stop: int, found: list[DamagedRange]) -> None:
        """Replace what was known between two offsets by what was found there."""
        known = self.map.damage
        since = {(one.physical_offset, one.size): one.found_timestamp for one in known}
        entries = [one for one in known if not start <= one.physical_offset < stop]
        for one in found:
            if (first_ms := since.get((one.physical_offset, one.size))) is None:
                _log.warning(
                    "scrub.damage",
                    path=one.file,
                    physical_offset=one.physical_offset,
                    size=one.size,
                    reason=one.reason,
                    next="run `rocketstore store verify`; fetch the messages from another copy",
                )
            else:
                one = msgspec.structs.replace(one, found_timestamp=first_ms)  # noqa: PLW2901
            entries.append(one)
        entries.sort(key=lambda one: one.physical_offset)
        damage = tuple(entries[:MAX_DAMAGED_RANGES])
        if damage != known:
            self.map = msgspec.structs.replace(self.map, damage=damage)


def _read_cold(path: Path, position: int, view: memoryview) -> int:
    """Read of a file that is opened each time: what retention deletes is not held."""
    with Disk().opened(path, writable=False) as descriptor:
        total = fill(descriptor, path, position, view)
        # No reader asked for these bytes: they must not push others out of the page cache, and the
        # next pass has to ask the disk again.
        os.posix_fadvise(descriptor, position, total, os.POSIX_FADV_DONTNEED)
    return total
