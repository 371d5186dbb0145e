"""How much and how long a connection bears, and what all of one process hold together.

Law: what is held is counted in bytes: requests that are not answered, replies that the other side
has not taken, frames that are not whole. One connection holds so much and is then not read until it
holds half; where all together hold too much, the one that holds most goes.
How derived: 4.9 has only idle times and, per code, a length of its queues (NettyServerConfig,
IdleStateHandler, BrokerFastFailure); the limits by bytes are ours.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.units import MiB

if TYPE_CHECKING:
    from enum import Enum


class Limits(NamedTuple):
    """Limits of each connection, and of all."""

    connection_bytes: int = 32 * MiB  # that one holds before it is not read; a frame fits
    total_bytes: int = 256 * MiB  # that all hold before only frames that began are read
    full_ms: int = 5_000  # for which all may hold so much, or never twice as much
    most_connections: int = 65_535  # and no more than half of the descriptors
    idle_ms: int = 120_000  # without a byte either way (serverChannelMaxIdleTimeSeconds)
    frame_ms: int = 60_000  # from the first byte of a frame to its last one
    stall_ms: int = 30_000  # in which no byte of what was sent is taken


DEFAULT_LIMITS: Final = Limits()


class Totals:
    """What all connections of a server or a client hold and did.

    Replies that answer no request, as it was given up or there was none, are `unmatched`.
    Connections that ended are `closed`, by `connection.CloseReason`.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.requests = self.replies = self.unmatched = 0
        self.closed: Counter[Enum] = Counter()
