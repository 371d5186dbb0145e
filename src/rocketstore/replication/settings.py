"""Where a slave begins to compare its log with its master's, and what the settings say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.replication.protocol import Limits
from rocketstore.scan import kernels
from rocketstore.units import KiB, MiB

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.replication.protocol import TargetLog

COMPARED_BYTES: Final = 64 * KiB
"""How much of a slave's log, from its end back, is compared with the master's at each connection:
what was lost in an accident of the master is newer than that, or it is not small either."""

_RECORD_BYTES: Final = 4 * MiB
"""4.9's default of maxMessageSize: a slave takes at least such bodies, whatever its own limit."""


def known_start(log: TargetLog) -> int:
    """Return where a record begins, not far before the end of a log that is not empty.

    It is never 0, which for a master of 4.9 means that there is nothing; so it is the end itself
    where the log has one record.
    """
    end, back = log.end, COMPARED_BYTES
    base = end - 1 - (end - 1) % log.file_size
    while (start := max(base, end - back)) > base:
        data = np.frombuffer(log.read(start, end - start), np.uint8)
        found = int(kernels.resync(data, 0, len(data), start, base + log.file_size - start))
        if found >= 0:
            return start + found
        back *= 4
    return base or int.from_bytes(log.read(0, 4), "big")


def limits_of(config: StoreConfig) -> Limits:
    """Return what the settings say of a connection."""
    return Limits(
        heartbeat_ms=config.ha_send_heartbeat_interval,
        silence_ms=config.ha_housekeeping_interval,
        transfer_bytes=config.ha_transfer_batch_size,
        longest_record_bytes=max(config.max_message_size, _RECORD_BYTES) + 128 * KiB,
    )


def monotonic_ms() -> int:
    """Return a time that never goes back."""
    return time.monotonic_ns() // 1_000_000
