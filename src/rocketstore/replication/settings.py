"""What the settings say of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.replication.protocol import Limits
from rocketstore.units import KiB, MiB

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig

_RECORD_BYTES: Final = 4 * MiB
"""4.9's default of maxMessageSize: a slave takes at least such bodies, whatever its own limit."""


def limits_of(config: StoreConfig) -> Limits:
    """Return what the settings say of a connection."""
    return Limits(
        heartbeat_ms=config.ha_send_heartbeat_interval,
        silence_ms=config.ha_housekeeping_interval,
        transfer_bytes=config.ha_transfer_batch_size,
        longest_record_bytes=max(config.max_message_size, _RECORD_BYTES) + 128 * KiB,
    )
