"""The slave's side of one connection: asks from its log's end, appends and acknowledges.

It asks a little before its end, at a record that it has. The first bytes that come must be those:
so a master that has another log is noticed, whatever its version, instead of being followed. A
master that has nothing from there on sends only heartbeats, and after two of them it is clear
that this log is ahead of it or too old (K-H2).

Law: bytes are appended at the log's end only, after `Intake` found them intact. What is
acknowledged is in the log, and was compared with the master's before.
How derived: HAClient of 4.9.8 (spec B21.3).
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Final

from rocketstore.replication.intake import Intake
from rocketstore.replication.protocol import (
    FRAME,
    HELLO,
    LONGEST_FRAME_BYTES,
    NUMBER,
    WELCOME_BYTES,
    PeerError,
    Signs,
    Trouble,
    Welcome,
)
from rocketstore.tables.positions import known_start

if TYPE_CHECKING:
    from rocketstore.replication.protocol import SessionLimits
    from rocketstore.storage.replicated_log import ReplicatedLog

_SIGNS_WITHOUT_BYTES: Final = 2
"""A master of 4.9 may send one heartbeat before the bytes it was asked for."""

_SIGNS_MS: Final = 2000
"""Nor does one that is being closed send bytes; it is so for a second."""


@dataclass(eq=False)
class SlaveSession:
    """One connection to a master; `identity` names this slave to a master of ours.

    `is_following` once both logs were found to agree; `master_end` is where the master's log ended
    when it last said so, -1 unknown.
    """

    _log: ReplicatedLog
    _limits: SessionLimits
    identity: int
    from_last_file: bool
    now_ms: InitVar[int]

    def __post_init__(self, now_ms: int) -> None:
        log = self._log
        self._began_ms = now_ms
        self._signs = Signs(self._limits, now_ms)
        self.next_due_ms = self._signs.next_due_ms
        # The beginning of a frame, and how long that is; 0 unknown.
        self._part = bytearray()
        self._part_size = 0
        self._is_empty = log.is_new
        # Where the next byte belongs, -1 in an empty log that no master has begun.
        self._next = -1 if self._is_empty else log.end
        if log.end > log.begin:
            # A master of 4.9 takes 0 for "has nothing"; from 1 on all but one byte is compared.
            self._next = max(known_start(log.read, log.file_size, log.end), 1)
        self._intake = self._intake_at(log.end)
        self._has_heard = False
        self._signs_without_bytes = 0
        self._reported = 0 if self._is_empty else self._next
        self._greeting = NUMBER.pack(HELLO) + NUMBER.pack(self._reported)
        self.is_following = self._next == log.end  # a file without a record: nothing to compare
        self.master_end = -1

    def _intake_at(self, end: int) -> Intake:
        return Intake(end, self._log.file_size, self._limits.longest_record_bytes, self._log.append)

    # --- what comes -----------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take frames, or parts of them."""
        if len(self._part) + len(data) < self._part_size:
            self._part += data
            return
        self._part_size = 0
        with memoryview(self._part + data if self._part else data) as view:
            position = self._take_frames(view, now_ms)
            self._part = bytearray(view[position:])
        if self.is_following:
            self._intake.append_whole()

    def _take_frames(self, data: memoryview, now_ms: int) -> int:
        """Take the whole frames; return where the first other one begins."""
        position = 0
        while len(data) - position >= FRAME.size:
            offset, size = FRAME.unpack_from(data, position)
            self._check_head(offset, size)
            start = position + FRAME.size
            if len(data) < start + size:
                self._part_size = FRAME.size + size
                break
            with data[start : start + size] as body:
                if offset == HELLO:
                    self._answer(Welcome.decode(bytes(body)))
                else:
                    self._take(offset, body, now_ms)
            position = start + size
            self._signs.heard_ms = now_ms  # not for a part of one: it may come byte by byte
            self._has_heard = True
        return position

    def _check_head(self, offset: int, size: int) -> None:
        longest = WELCOME_BYTES if offset == HELLO else LONGEST_FRAME_BYTES
        if offset < HELLO or not 0 <= size <= longest or (offset == HELLO and self._has_heard):
            raise PeerError(
                Trouble.PROTOCOL,
                f"a frame of {size} bytes at physical offset {offset}",
                hint="see that haMasterAddress names the haListenPort of a master",
            )

    def _answer(self, master: Welcome) -> None:
        """Choose where to begin in the log of a master of ours."""
        self.master_end = master.end
        if master.file_size != self._log.file_size:
            what = f"{self._log.file_size} bytes here, {master.file_size} there"
            raise PeerError(Trouble.FILE_SIZE, what)
        end = self._log.end
        if self._is_empty:
            last = master.end - master.end % master.file_size
            self._begin(max(master.begin, last if self.from_last_file else 0))
        elif end > master.end:
            raise PeerError(Trouble.AHEAD, f"it ends at {end}, the master's at {master.end}")
        elif end < master.begin:
            raise PeerError(Trouble.TOO_OLD, f"it ends at {end}, master's begins at {master.begin}")
        elif self._next < master.begin:
            self._next = end  # retention deleted it: nothing is left to compare
            self.is_following = True
        if not self._is_empty:
            self._reported = self._next
        self._greeting += NUMBER.pack(self.identity) + NUMBER.pack(self._next)

    def _take(self, offset: int, body: memoryview, now_ms: int) -> None:
        if self._next < 0:
            self._begin(offset)
        if offset != self._next:
            # Asked for 0, a master of 4.9 sends its last file.
            trouble = Trouble.PROTOCOL if self._next else Trouble.TOO_OLD
            raise PeerError(trouble, f"bytes of physical offset {offset}, expected {self._next}")
        if not body:
            self._note_sign_without_bytes(now_ms)
            return
        if offset % self._log.file_size + len(body) > self._log.file_size:
            raise PeerError(
                Trouble.FILE_SIZE,
                f"{len(body)} bytes at {offset} leave a file of {self._log.file_size} bytes",
            )
        self._next += len(body)
        self.master_end = max(self.master_end, self._next)
        old = self._compared(offset, body)
        if old < len(body):
            self._intake.add(body[old:])

    def _begin(self, offset: int) -> None:
        """Begin an empty log; a master of 4.9 begins with its last file (K-H4)."""
        if offset % self._log.file_size:
            raise PeerError(
                Trouble.FILE_SIZE,
                f"it begins at {offset}, where no file of {self._log.file_size} bytes does",
            )
        self._next = offset
        self._intake = self._intake_at(offset)
        self.is_following = True

    def _compared(self, offset: int, body: memoryview) -> int:
        """Compare what this log has already; return how many bytes that are."""
        if self.is_following:
            return 0
        size = min(len(body), self._intake.end - offset)
        if size and self._log.read(offset, size) != body[:size]:
            raise PeerError(
                Trouble.DIVERGED, f"between physical offset {offset} and {offset + size}"
            )
        self.is_following = offset + size >= self._intake.end
        return size

    def _note_sign_without_bytes(self, now_ms: int) -> None:
        """Give up a master of 4.9 that does not send the bytes at this log's end."""
        if self.is_following:
            return
        self._signs_without_bytes += 1
        is_late = now_ms - self._began_ms >= _SIGNS_MS
        if is_late and self._signs_without_bytes >= _SIGNS_WITHOUT_BYTES:
            raise PeerError(
                Trouble.AHEAD,
                f"the master sends nothing from {self._next} on, where this log, which ends at "
                f"{self._log.end}, has a record; or it no longer has anything so old",
            )

    # --- what goes ------------------------------------------------------------------------------

    def outgoing(self, now_ms: int) -> bytes:
        """Return what is to be sent: the greeting, and how far this log is."""
        self._signs.check(now_ms)
        data, self._greeting = self._greeting, b""
        # In an empty log nothing is acknowledged before there is something.
        has_more = self.is_following and self._log.end > self._reported and not data
        # Before its first byte the master may have less, and 4.9.8 then ends the connection.
        may_speak = self._has_heard and (self.is_following or self._next > self._reported)
        if has_more or (may_speak and self._signs.is_heartbeat_due(now_ms)):
            if has_more:
                self._reported = self._log.end
            data += NUMBER.pack(self._reported)
        if data:
            self._signs.said_ms = now_ms
        return data
