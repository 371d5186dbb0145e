"""A connection without a socket: bytes in, requests and replies out; commands in, bytes out.

Theory of operation: the shell that has the socket feeds `receive` and acts on what it says, sends
what `take_output` gives, says with `note_unsent` what the socket has not taken yet, and calls
`check` now and then. It reads from the socket while `is_reading`, and closes it once `state` is
`State.CLOSED`; `reason` says why.

Both sides are alike: each may ask and answers the other. An opaque number is the asking side's.

Law: everything that changes the state of a connection is `TRANSITIONS`. This file knows no socket,
no clock and no code of a request.
How derived: NettyRemotingAbstract, NettyEncoder and NettyDecoder of 4.9.8 (remoting specification,
sections 1 and 4).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.remoting.command import ONEWAY, RESPONSE, Command
from rocketstore.remoting.frame import FrameFault, FrameReader, Shortcut, encode_frame

if TYPE_CHECKING:
    from rocketstore.remoting.limits import Limits, Totals


class State(enum.Enum):
    """What a connection does."""

    OPEN = "takes requests and gives replies"
    FULL = "holds as much as it may, and is not read until it holds less"
    ENDING = "takes no request any more, and gives the replies that it owes"
    CLOSED = "neither takes nor gives"


TRANSITIONS: Final = {
    State.OPEN: {State.FULL, State.ENDING, State.CLOSED},
    State.FULL: {State.OPEN, State.ENDING, State.CLOSED},
    State.ENDING: {State.CLOSED},
    State.CLOSED: set[State](),
}
"""To which states each may change; no other is made."""


class CloseReason(enum.Enum):
    """Why a connection ended, besides the faults of a frame (`FrameFault`)."""

    PEER = "the other side closed it"
    LOST = "the system says that it broke"
    LOCAL = "this side closed it"
    IDLE = "nothing moved for too long"
    UNFINISHED_FRAME = "a frame was not whole in time"
    TAKES_NOTHING = "the other side takes no replies"
    HOLDS_MOST = "all connections held too much, and this one most"
    TOO_MANY = "there were too many connections"
    TIMED_OUT = "a request on it was not answered in time"


class Received(NamedTuple):
    """What bytes said: what the other side asks, and what it answers."""

    requests: list[tuple[Command, int]]  # with the bytes held until it is answered or dropped
    replies: list[tuple[Command, Any]]  # with the token of the request


_FIRST_OPAQUE: Final = 2**30
"""Clients count from 0, and some take whatever has the number of a request for its reply."""

# CPython 3.11 finds a member of an enumeration by a call of a function.
_CLOSED: Final = State.CLOSED
_FULL: Final = State.FULL
_ENDING: Final = State.ENDING


class Connection:
    """One connection; `totals` are those of all that share a limit.

    It counts `held_bytes` of its own in ``totals.held_bytes``; `reason` says why it is closed.
    """

    __slots__ = (
        "_awaited", "_frame_since_ms", "_limits", "_moved_ms", "_opaque", "_output", "_owed",
        "_queued", "_reader", "_taken_ms", "_totals", "_unsent", "held_bytes", "reason", "state",
    )  # fmt: skip

    def __init__(
        self, limits: Limits, totals: Totals, now_ms: int, shortcut: Shortcut | None = None
    ) -> None:
        self.state = State.OPEN
        self.reason: CloseReason | FrameFault | None = None
        self.held_bytes = 0
        self._limits = limits
        self._totals = totals
        self._reader = FrameReader(shortcut)
        self._awaited: dict[int, Any] = {}
        self._opaque = _FIRST_OPAQUE
        self._output: list[bytes] = []
        self._owed = 0  # bytes of requests that are not answered
        self._queued = 0  # bytes of `_output`
        self._unsent = 0  # bytes that the shell has, and the other side has not taken
        self._moved_ms = self._taken_ms = self._frame_since_ms = now_ms

    # --- the state ------------------------------------------------------------------------------

    def _move(self, state: State) -> None:
        if state in TRANSITIONS[self.state]:
            self.state = state

    def _weigh(self) -> None:
        """Count what is held, and see whether that is too much, or little again."""
        if self.is_closed:
            return
        totals, limits, partial = self._totals, self._limits, self._reader.kept_bytes
        own = self._owed + self._queued + self._unsent
        totals.held_bytes += own + partial - self.held_bytes
        self.held_bytes = own + partial
        is_full_for_all = totals.held_bytes >= limits.total_bytes and not partial
        if own >= limits.connection_bytes or is_full_for_all:
            self._move(_FULL)
        elif self.state is _FULL and own <= limits.connection_bytes // 2:
            self._move(State.OPEN)
        if not own and not self._awaited and self.state is _ENDING:
            self.close()

    def close(self, reason: CloseReason | FrameFault = CloseReason.LOCAL) -> None:
        """End it at once; what was not sent is not sent."""
        if self.is_closed:
            return
        self._move(_CLOSED)
        self.reason = reason
        self._totals.closed[reason] += 1
        self._totals.held_bytes -= self.held_bytes
        self.held_bytes = self._owed = self._queued = self._unsent = 0
        self._output = []
        self._reader = FrameReader()

    def finish(self) -> None:
        """End it once every request that came is answered and every reply that went is taken."""
        self._move(_ENDING)
        self._weigh()

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""
        return self.state is _CLOSED

    @property
    def is_reading(self) -> bool:
        """Whether bytes of the other side are wanted."""
        return self.state is not _FULL and self.state is not _CLOSED

    def check(self, now_ms: int) -> None:
        """Close it where something took too long."""
        limits = self._limits
        if self._unsent and now_ms - self._taken_ms >= limits.stall_ms:
            self.close(CloseReason.TAKES_NOTHING)
        elif self._reader.kept_bytes and now_ms - self._frame_since_ms >= limits.frame_ms:
            self.close(CloseReason.UNFINISHED_FRAME)
        elif now_ms - self._moved_ms >= limits.idle_ms:
            self.close(CloseReason.IDLE)

    # --- what comes -----------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> Received:
        """Take bytes; return what they say.

        Bytes that are no frame close the connection; what came before them is returned, and its
        answers go nowhere, as with 4.9.
        """
        received = Received([], [])
        if self.is_closed:
            return received
        self._moved_ms = now_ms
        had_part = self._reader.kept_bytes > 0
        frames, fault = self._reader.feed(data)
        if frames or not had_part:
            self._frame_since_ms = now_ms
        for command, size in frames:
            if command.flag & RESPONSE:
                self._totals.replies += 1
                token = self._awaited.pop(command.opaque, None)
                if token is None:
                    self._totals.unmatched += 1
                else:
                    received.replies.append((command, token))
            elif self.state is not _ENDING:
                self._totals.requests += 1
                self._owed += size
                received.requests.append((command, size))
        if fault is not None:
            self.close(fault)
        self._weigh()
        return received

    # --- what goes ------------------------------------------------------------------------------

    def ask(self, request: Command, token: object | None) -> int:
        """Send a request; its reply comes with `token`, None is for one that gets none.

        Returns its opaque number, which `forget` takes.
        """
        request.opaque = opaque = self._opaque
        self._opaque = (opaque + 1) % _FIRST_OPAQUE + _FIRST_OPAQUE  # below 2**31
        request.flag = ONEWAY if token is None else 0
        if not self.is_closed:
            self._send(request)
            if token is not None:
                self._awaited[opaque] = token
        return opaque

    def forget(self, opaque: int) -> None:
        """Wait no more for a reply; should it come, it is counted as unmatched."""
        self._awaited.pop(opaque, None)
        self._weigh()

    def take_awaited(self) -> list[Any]:
        """Return the tokens of all replies that will not come, after the end."""
        tokens, self._awaited = list(self._awaited.values()), {}
        return tokens

    def answer(self, request: Command, size: int, reply: Command | None) -> None:
        """Answer a request that came, in the kind of header that it had; None answers nothing.

        A request that wants no reply gets none. A reply longer than a frame is a `FieldRangeError`,
        and the request is not answered yet.
        """
        if self.is_closed:
            return
        if reply is not None and not request.flag & ONEWAY:
            reply.opaque = request.opaque
            reply.flag = RESPONSE
            reply.kind = request.kind
            self._send(reply)
        self._owed -= size

    def _send(self, command: Command) -> None:
        head, body = encode_frame(command)
        self._queued += len(head) + len(body)
        self._output.append(head)
        if body:
            self._output.append(body)

    def take_output(self, now_ms: int) -> list[bytes]:
        """Return what is to be sent; then `note_unsent` says how much of it was not."""
        output, self._output = self._output, []
        if output:
            self._moved_ms = now_ms
            if not self._unsent:
                self._taken_ms = now_ms
            self._unsent += self._queued
            self._queued = 0
        return output

    def note_unsent(self, unsent: int, now_ms: int) -> None:
        """Take note of how many of the bytes of `take_output` the other side has not taken.

        The end of a turn: what is held is counted, and an end that was wanted may have come.
        """
        if self.is_closed:
            return
        if unsent < self._unsent:
            self._taken_ms = self._moved_ms = now_ms
        self._unsent = unsent
        self._weigh()

    @property
    def has_unsent(self) -> bool:
        """Whether the other side has not taken all that it was sent."""
        return self._unsent > 0
