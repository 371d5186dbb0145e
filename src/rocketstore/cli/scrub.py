"""``rocketstore store scrub``: check a log's records at a rate, and print what is damaged."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from rocketstore.cli.log_scan import log_files_of
from rocketstore.errors import ConfigError
from rocketstore.metrics.scrub import Scrubber
from rocketstore.storage.files.lock import may_have_writer
from rocketstore.storage.files.whole_file import holds_data
from rocketstore.units import counted, system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.metrics.damage_map import DamagedRange

TURNS_PER_S: Final = 10
"""The rate is kept over each tenth of a second, so that the disk is used evenly."""

_RATE: Final = re.compile(r"([0-9]{1,15})([KMG]?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_rate(text: str) -> int:
    """Return bytes a second.

    >>> parse_rate("50M"), parse_rate("0")
    (52428800, 0)
    """
    match = _RATE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--rate {text}: not a number of bytes a second",
            key="rate",
            value=text,
            hint="write 50M, 800K or 1G; 0 is as fast as it goes",
        )
    return int(match[1]) * _UNITS[match[2].upper()]


class ColdCheck:
    """One pass over the log of a store that any process may own.

    If a process may be writing, the file that it writes is left out; otherwise all are checked.
    """

    def __init__(self, root: Path, config: StoreConfig) -> None:
        layout, files = log_files_of(root, config)
        # Files made ahead hold zeros only.
        last = next((file for file in reversed(files.files) if holds_data(file.path)), None)
        end = 0 if last is None else last.base
        if last is not None and not may_have_writer(layout.lock):
            end = last.range.stop
        self.scrubber = Scrubber(
            files,
            cold_end=lambda: end,
            now_ms=system_clock_ms,
            last_base=sys.maxsize if last is None else last.base,
        )
        self.file_count = len(self.scrubber.cold_files)
        self.total_bytes = sum(file.size for file in self.scrubber.cold_files)

    @property
    def damage(self) -> tuple[DamagedRange, ...]:
        """What is damaged, by place."""
        return self.scrubber.map.damage

    def run(
        self,
        rate: int,
        advance: Callable[[int], None],
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check every cold file, `rate` bytes a second, 0 being as fast as it goes."""
        budget = max(1, rate // TURNS_PER_S) if rate else 1 << 26
        started = monotonic()
        is_over = False
        while not is_over:
            before = self.scrubber.checked_bytes
            is_over = self.scrubber.turn(budget)
            advance(self.scrubber.checked_bytes - before)
            if rate and not is_over:
                ahead_s = self.scrubber.checked_bytes / rate - (monotonic() - started)
                sleep(max(0.0, ahead_s))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each damaged range, as ``store scan`` has them."""
        return [
            {
                "kind": "damage",
                "physicalOffset": one.physical_offset,
                "size": one.size,
                "file": one.file,
                "reason": one.reason,
                "evidence": one.evidence,
            }
            for one in self.damage
        ]

    def summary(self) -> str:
        """Return in one line what was checked and what is wrong."""
        lost = sum(one.size for one in self.damage)
        checked = f"{self.scrubber.checked_bytes:,} bytes in {counted(self.file_count, 'file')}"
        if not self.damage:
            return f"{checked}: no damage"
        return f"{checked}: DAMAGED: {counted(len(self.damage), 'range')} of {lost:,} bytes"
