"""What master and slave say to each other: 4.9's frames, and a greeting between our own.

A slave sends numbers of 8 bytes: first where it wants to begin, then where its log ends at the
moment, which acknowledges all bytes before that. A master sends frames: a physical offset (8
bytes), a size (4), and that many bytes of its log, never of two files; size 0 is a heartbeat.

Our slave says `HELLO` first, which a master of 4.9 takes for "no request yet": it waits for the
next number. Our master answers it with a `Welcome` at offset -1, which no log has, and the slave
then names itself and asks again, knowing what there is.

Law: this file knows no socket, no store and no clock. Impossible bytes are a `PeerError`; being
well formed is not enough to be believed.
How derived: HAConnection and HAClient of 4.9.8 (spec B21.1).
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from rocketstore.errors import StoreError
from rocketstore.units import MiB

HELLO: Final = -1
NUMBER: Final = struct.Struct(">q")
FRAME: Final = struct.Struct(">qi")

LONGEST_FRAME_BYTES: Final = 4 * MiB
"""A longer frame is no frame (HAClient.READ_MAX_BUFFER_SIZE: a slave of 4.9 could not take it)."""

_WELCOME: Final = struct.Struct(">4sIqqqqi")
_MAGIC: Final = b"RSHA"
_VERSION: Final = 1


class Trouble(enum.Enum):
    """Why a slave does not follow."""

    PROTOCOL = "the other side does not speak this protocol"
    SILENT = "the other side is silent"
    AHEAD = "the slave's log ends after the master's"
    TOO_OLD = "the master no longer has what the slave lacks"
    DIVERGED = "both logs differ before their end"
    FILE_SIZE = "master and slave have files of different sizes"
    DAMAGED = "the master sent bytes that hold no intact record"


NEEDS_NEW_LOG: Final = frozenset({Trouble.AHEAD, Trouble.TOO_OLD, Trouble.DIVERGED})
"""Causes that end only when the slave begins again with an empty log."""


_HINTS: Final = dict.fromkeys(
    NEEDS_NEW_LOG, "the slave has to begin with an empty log: `rocketstore serve slave` does so"
) | {Trouble.FILE_SIZE: "set mappedFileSizeCommitLog to the master's before the store is made"}


class PeerError(StoreError):
    """The end of a connection, and which `Trouble` it is."""

    def __init__(self, trouble: Trouble, detail: str, *, hint: str | None = None) -> None:
        super().__init__(f"{trouble.value}: {detail}", hint=hint or _HINTS.get(trouble))
        self.trouble = trouble


class Welcome(NamedTuple):
    """What a master says about its log to a slave that greeted it.

    It has the log between the physical offsets `begin` and `end`, and some slave has it up to
    `acknowledged`, -1 without any.
    """

    file_size: int
    begin: int
    end: int
    acknowledged: int
    slave_count: int

    def encode(self) -> bytes:
        """Return the frame."""
        return FRAME.pack(HELLO, _WELCOME.size) + _WELCOME.pack(_MAGIC, _VERSION, *self)

    @classmethod
    def decode(cls, body: bytes) -> Welcome:
        """Return what the body of a frame at -1 says."""
        if len(body) == _WELCOME.size:
            magic, version, *numbers = _WELCOME.unpack(body)
            if magic == _MAGIC and version == _VERSION:
                return cls._make(numbers)
        raise PeerError(
            Trouble.PROTOCOL,
            f"a welcome of {len(body)} bytes that begins with {body[:8].hex(' ')}",
            hint="use one version of rocketstore on both sides",
        )


WELCOME_BYTES: Final = _WELCOME.size


class SessionLimits(NamedTuple):
    """Time and size limits of a session.

    After `heartbeat_ms` without bytes to send a heartbeat goes out (``haSendHeartbeatInterval``),
    after `silence_ms` without a byte from the other side the session ends
    (``haHousekeepingInterval``). A frame has at most `transfer_bytes` (``haTransferBatchSize``); a
    slave keeps at most `longest_record_bytes` of a record that is not whole yet.
    """

    heartbeat_ms: int
    silence_ms: int
    transfer_bytes: int
    longest_record_bytes: int


class Signs:
    """When each side was heard last."""

    def __init__(self, limits: SessionLimits, now_ms: int) -> None:
        self._limits = limits
        self.heard_ms = self.said_ms = now_ms

    def check(self, now_ms: int) -> None:
        """Raise where the other side was silent for too long."""
        silent_ms = now_ms - self.heard_ms
        if silent_ms >= self._limits.silence_ms:
            raise PeerError(
                Trouble.SILENT,
                f"nothing for {silent_ms} ms; the limit is {self._limits.silence_ms}",
                hint="haHousekeepingInterval says how long; see that both sides have the same",
            )

    def is_heartbeat_due(self, now_ms: int) -> bool:
        """Return whether a heartbeat is to be sent."""
        return now_ms - self.said_ms >= self._limits.heartbeat_ms

    def next_due_ms(self) -> int:
        """Return when the next heartbeat or the time-out is due."""
        return min(
            self.said_ms + self._limits.heartbeat_ms, self.heard_ms + self._limits.silence_ms
        )
