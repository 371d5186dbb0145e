"""The master's side of one connection: sends its log from where a slave asks, learns its progress.

Law: only bytes that readers may see are sent, and a number of a slave is believed only if it can be
true: it asks for bytes that are there, and acknowledges bytes that were sent (K-H1). A slave that
asks for anything else is refused at once, with the reason in the log, instead of getting heartbeats
for ever (K-H2). How derived: HAConnection.ReadSocketService and WriteSocketService of 4.9.8 (spec
B21.2).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Final

from rocketstore.replication.protocol import (
    FRAME,
    HELLO,
    NUMBER,
    PeerError,
    SessionLimits,
    Signs,
    Trouble,
    Welcome,
)

if TYPE_CHECKING:
    from rocketstore.storage.replicated_log import ReplicatedLog

FRAMES_AT_ONCE: Final = 8
"""Frames that go out by one call of the system: 256 KiB, what a socket's buffer takes."""


class _Wants(enum.Enum):
    """What the next number of the slave means."""

    REQUEST = enum.auto()
    NOTHING = enum.auto()
    IDENTITY = enum.auto()
    REQUEST_OF_OURS = enum.auto()
    ACKNOWLEDGEMENT = enum.auto()


@dataclass(eq=False)
class MasterSession:
    """One slave; `welcome` makes its greeting, `on_acknowledged` is called when it has more.

    `position` is where the next frame begins, -1 before a request; the slave has everything before
    `acknowledged`, -1 unless it said so. `identity` is how a slave of ours names itself. `ahead` is
    kept for the next session of its host: where a slave ended that was ahead.
    """

    _log: ReplicatedLog
    _limits: SessionLimits
    _: KW_ONLY
    welcome: Callable[[], Welcome]
    on_acknowledged: Callable[[], None] = lambda: None
    ahead: list[int] = field(default_factory=list)
    now_ms: InitVar[int]

    def __post_init__(self, now_ms: int) -> None:
        self._signs = Signs(self._limits, now_ms)
        self.next_due_ms = self._signs.next_due_ms
        self._wants = _Wants.REQUEST
        self._part = b""
        self._greeting = b""
        self.position = self.acknowledged = self.identity = -1

    # --- what comes -----------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take numbers of the slave."""
        data = self._part + data
        whole = len(data) - len(data) % NUMBER.size
        self._part = data[whole:]
        before = self.acknowledged
        for (number,) in NUMBER.iter_unpack(data[:whole]):
            self._signs.heard_ms = now_ms
            self._take(number)
        if self.acknowledged > before:
            self.on_acknowledged()

    def _take(self, number: int) -> None:
        if self._wants is _Wants.ACKNOWLEDGEMENT:
            self._acknowledge(number)
        elif self._wants is _Wants.IDENTITY:
            self.identity = number
            self._wants = _Wants.REQUEST_OF_OURS
        elif self._wants is _Wants.NOTHING:
            # What it would ask of a master of 4.9; it asks again after the greeting.
            self._greeting = self.welcome().encode()
            self._wants = _Wants.IDENTITY
        elif number == HELLO and self._wants is _Wants.REQUEST:
            self._wants = _Wants.NOTHING
        else:
            self._begin_at(number)

    def _begin_at(self, number: int) -> None:
        """Begin where a slave asks; one of 4.9 asks for 0 when it is empty."""
        begin, end = self._log.begin, self._log.end
        is_of_4_9 = self._wants is _Wants.REQUEST
        if number == 0 and is_of_4_9:
            number = end - end % self._log.file_size
        elif number > end:
            self.ahead[:] = [number]
            raise PeerError(Trouble.AHEAD, f"it asks for {number}, the log here ends at {end}")
        elif is_of_4_9 and number in self.ahead:  # it cannot compare its bytes with those here
            raise PeerError(Trouble.DIVERGED, f"it ended at {number} when the log here did not")
        elif number < 0:
            raise PeerError(Trouble.PROTOCOL, f"it asks for the physical offset {number}")
        elif number < begin:
            raise PeerError(Trouble.TOO_OLD, f"it asks for {number}, the log begins at {begin}")
        elif is_of_4_9:
            self.acknowledged = number
        self.position = number
        self._wants = _Wants.ACKNOWLEDGEMENT

    def _acknowledge(self, number: int) -> None:
        if not max(self.acknowledged, 0) <= number <= self.position:
            raise PeerError(
                Trouble.PROTOCOL,
                f"it acknowledges {number}; it was sent all before {self.position}, and had "
                f"acknowledged {self.acknowledged}",
            )
        self.acknowledged = number

    # --- what goes ------------------------------------------------------------------------------

    def outgoing(self, now_ms: int) -> bytes:
        """Return the next frames."""
        self._signs.check(now_ms)
        parts = [self._greeting]
        self._greeting = b""
        if self.position >= 0:
            parts += self._frames()
            if len(parts) == 1 and self._signs.is_heartbeat_due(now_ms):
                parts.append(FRAME.pack(self.position, 0))
        data = b"".join(parts)
        if data:
            self._signs.said_ms = now_ms
        return data

    def _frames(self) -> list[bytes]:
        parts: list[bytes] = []
        for _ in range(FRAMES_AT_ONCE):
            data = self._log.read(self.position, self._limits.transfer_bytes)
            if not data:
                break
            parts += (FRAME.pack(self.position, len(data)), data)
            self.position += len(data)
        if not parts and self.position < self._log.begin:
            raise PeerError(
                Trouble.TOO_OLD,
                f"it is at {self.position}, retention deleted all before {self._log.begin} here",
            )
        return parts
