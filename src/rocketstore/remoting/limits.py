"""How much and how long a connection bears, and what all of one process hold together.

Law: what is held is counted in bytes: of requests that nobody has answered, of replies that the
other side has not taken, of frames that are not whole. One connection holds so much and is then
not read until it holds half; of all together too much has the one that holds most go.
How derived: 4.9 has only idle times and, per code, a length of its queues (NettyServerConfig,
IdleStateHandler, BrokerFastFailure); the limits by bytes are ours.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.remoting.frame import LONGEST_FRAME
from rocketstore.units import MiB

if TYPE_CHECKING:
    from enum import Enum


class Limits(NamedTuple):
    """Limits of each connection, and of all; times in ms.

    Attributes
    ----------
    frame_bytes
        Largest ``length`` of a frame that is taken (com.rocketmq.remoting.frameMaxLength).
    connection_bytes
        What one connection holds at most before it is not read any more; at least a frame fits.
    total_bytes
        What all hold before only those are read that are in the middle of a frame. Of twice as
        much, or of so much for `full_ms`, the connection that holds most is closed.
    most_connections
        More are closed as they come; each costs a descriptor.
    idle_ms
        A connection on which nothing moves for so long is closed
        (serverChannelMaxIdleTimeSeconds, clientChannelMaxIdleTimeSeconds: 120 s).
    frame_ms
        A frame has to be whole so long after its first byte.
    stall_ms
        What takes no byte of its replies for so long is closed.
    full_ms
        How long the limit of all may be reached.
    """

    frame_bytes: int = LONGEST_FRAME
    connection_bytes: int = 32 * MiB
    total_bytes: int = 256 * MiB
    most_connections: int = 65_535
    idle_ms: int = 120_000
    frame_ms: int = 60_000
    stall_ms: int = 30_000
    full_ms: int = 5_000


DEFAULT_LIMITS: Final = Limits()


class Totals:
    """What all connections of a server or a client hold and did.

    Of replies that came, `unmatched` answer no request: it was given up, or there was none. Of
    requests, by code, nobody serves those `refused`, and those `failed` raised. Connections that
    ended are `closed`, by `connection.CloseReason`.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.requests = self.replies = self.unmatched = 0
        self.refused: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.closed: Counter[Enum] = Counter()
