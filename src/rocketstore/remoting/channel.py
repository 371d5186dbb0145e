"""A connection with its socket, in an event loop; and the turns in which requests are handled.

All that came in one pass of the loop is handled in the next: requests of all channels are handed to
the processor together, then each channel that has something to send sends it with one call; where
they are many, after one half of them too.

Law: everything here runs in the thread of the loop. What waits for a reply is a future; what waits
for an answer is no task.
How derived: NettyRemotingAbstract and the handlers of NettyRemotingServer and NettyRemotingClient
of 4.9.8.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final, cast

from rocketstore.errors import RemotingError
from rocketstore.events import get_logger
from rocketstore.format.host import address_text
from rocketstore.process import leaves_descriptors
from rocketstore.remoting.connection import CloseReason, Connection
from rocketstore.remoting.limits import DEFAULT_LIMITS, Limits, Totals
from rocketstore.remoting.requests import Call, RequestTable
from rocketstore.units import awake_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketstore.remoting.command import Command
    from rocketstore.remoting.frame import FrameFault

SWEEP_S: Final = 1.0
"""How often times and limits are looked at."""

MANY_CALLS: Final = 8
"""From so many on, a turn is answered by halves: one is read while the other is made."""

_log: Final = get_logger(__name__)

_USUAL: Final = frozenset({CloseReason.PEER, CloseReason.LOCAL, CloseReason.LOST})
"""Ends that are not worth a line above ``debug``."""


class Channel(asyncio.Protocol):
    """One connection; processors know it as their `requests.Peer`."""

    __slots__ = ("_transport", "_turns", "address", "connection", "is_touched")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.connection = Connection(turns.limits, turns.totals, turns.clock(), turns.shortcut)
        self.address = "?"
        self.is_touched = False

    # --- called by the loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        # Whatever the socket does not take at once is counted, and its end is told.
        self._transport.set_write_buffer_limits(high=0)
        self.address = address_text(*(transport.get_extra_info("peername") or ("?", 0))[:2])
        self._turns.begin(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the requests in them are handled with all others of this pass."""
        turns = self._turns
        now_ms = turns.clock()
        requests, replies = self.connection.receive(data, now_ms)
        for reply, future in replies:
            if not future.done():
                future.set_result(reply)
        if requests:
            turns.add(Call(command, size, self, now_ms) for command, size in requests)
        turns.relieve(now_ms)
        self.settle()

    def eof_received(self) -> None:
        """Take the end of the other side's requests for the end of all, as netty does."""
        self.close(CloseReason.PEER)

    def resume_writing(self) -> None:
        """Take note that everything was sent."""
        self.note_sent(self._turns.clock())

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.connection.close(CloseReason.PEER if exc is None else CloseReason.LOST)
        reason = cast("CloseReason | FrameFault", self.connection.reason)
        for future in self.connection.take_awaited():
            if not future.done():
                future.set_exception(RemotingError(f"{self.address}: {reason.value}"))
        level = _log.debug if reason in _USUAL else _log.warning
        level("connection.closed", peer=self.address, reason=reason.value)
        self._turns.end(self)

    @property
    def descriptor(self) -> int:
        """That of its socket, -1 where it has none any more."""
        return int(self._transport.get_extra_info("socket").fileno())

    # --- called by processors and clients -------------------------------------------------------

    def answer(self, request: Command, size: int, reply: Command | None) -> None:
        """Answer a request at the end of this turn; see `Connection.answer`."""
        self.connection.answer(request, size, reply)
        if not self.is_touched:  # a call less for all answers of a turn but the first
            self._turns.touch(self)

    def tell(self, request: Command) -> None:
        """Send a request that wants no reply; one to a closed connection goes nowhere."""
        self.connection.ask(request, None)
        self._turns.touch(self)

    async def ask(self, request: Command, timeout_ms: int) -> Command:
        """Return the reply to a request, or raise `RemotingError` where none came in time."""
        if self.connection.is_closed:
            raise RemotingError(f"{self.address}: the connection was closed")
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        opaque = self.connection.ask(request, future)
        self._turns.touch(self)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError as error:
            raise RemotingError(
                f"{self.address} did not answer request {request.code} within {timeout_ms} ms"
            ) from error
        finally:
            self.connection.forget(opaque)

    def close(self, reason: CloseReason = CloseReason.LOCAL) -> None:
        """End it at once."""
        self.connection.close(reason)
        self.settle()

    # --- called by turns ------------------------------------------------------------------------

    def flush(self, now_ms: int) -> None:
        """Send what there is."""
        self.is_touched = False
        output = self.connection.take_output(now_ms)
        if output:
            self._transport.writelines(output)
        self.note_sent(now_ms)

    def note_sent(self, now_ms: int) -> None:
        """Let the connection know what the socket has not taken, and go on as it says."""
        self.connection.note_unsent(self._transport.get_write_buffer_size(), now_ms)
        self.settle()

    def check(self, now_ms: int) -> None:
        """Look at the times."""
        if self.connection.has_unsent:
            self.note_sent(now_ms)
        self.connection.check(now_ms)
        self.settle()

    def settle(self) -> None:
        """Do with the socket what the state of the connection says."""
        if self.connection.is_closed:
            self._transport.abort()
        elif self.connection.is_reading != self._transport.is_reading():
            if self.connection.is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


class Turns:
    """What the channels of one server or client share: their limits, their totals, their turn."""

    def __init__(
        self, processor: RequestTable, limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], int] = awake_ms,
    ) -> None:  # fmt: skip
        self.limits = limits
        self.totals = Totals()
        self.clock = clock
        self.channels: set[Channel] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._processor = processor
        self.shortcut = processor.shortcut
        self._calls: list[Call] = []
        self._touched: list[Channel] = []
        self._is_due = False
        self._full_since_ms: int | None = None
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def begin(self, channel: Channel) -> None:
        """Take in a channel, unless there are too many; a store needs descriptors too."""
        self.channels.add(channel)
        self._empty.clear()
        count = len(self.channels)
        if count > self.limits.most_connections or not leaves_descriptors(count):
            channel.close(CloseReason.TOO_MANY)

    def end(self, channel: Channel) -> None:
        """Forget a channel."""
        self.channels.discard(channel)
        if not self.channels:
            self._empty.set()
        self._processor.disconnected(channel)

    def add(self, calls: Iterable[Call]) -> None:
        """Have requests handled in the next turn."""
        self._calls.extend(calls)
        self._need_turn()

    def touch(self, channel: Channel) -> None:
        """Have a channel send what it has at the end of this turn."""
        if not channel.is_touched:
            channel.is_touched = True
            self._touched.append(channel)
            self._need_turn()

    def _need_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        calls, self._calls = self._calls, []
        half = len(calls) // 2 if len(calls) >= MANY_CALLS else 0
        try:
            if half:
                self._processor.process(calls[:half])
                self._flush()
            if calls:
                self._processor.process(calls[half:])
        finally:
            self._is_due = False
            self.relieve(self._flush())

    def _flush(self) -> int:
        """Have the channels send what they have; return the time."""
        touched, self._touched = self._touched, []
        now_ms = self.clock()
        for channel in touched:
            channel.flush(now_ms)
        return now_ms

    def relieve(self, now_ms: int) -> None:
        """Close who holds most where all hold too much; read on where they do not any more."""
        limit, held = self.limits.total_bytes, self.totals.held_bytes
        if held < limit:
            if self._full_since_ms is not None and held < limit // 4 * 3:
                self._full_since_ms = None
                for channel in self.channels:
                    channel.note_sent(now_ms)
            return
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        if held >= 2 * limit or now_ms - self._full_since_ms >= self.limits.full_ms:
            self._full_since_ms = now_ms
            most = max(self.channels, key=lambda channel: channel.connection.held_bytes)
            most.close(CloseReason.HOLDS_MOST)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        now_ms = self.clock()
        for channel in list(self.channels):
            channel.check(now_ms)
        self.relieve(now_ms)

    def forget(self) -> None:
        """Let go of all connections in a forked child."""
        let_go(channel.descriptor for channel in self.channels)

    async def close(self, drain_ms: int) -> None:
        """End all channels, within `drain_ms` after what is owed was answered and taken."""
        for channel in list(self.channels):
            channel.connection.finish()
            channel.settle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_ms / 1000):
                await self._empty.wait()
        for channel in list(self.channels):
            channel.close()
        await self._empty.wait()
        self._sweeper.cancel()


def let_go(descriptors: Iterable[int]) -> None:
    """Close a forked child's copies of sockets: the other side would wait for the last copy's end.

    Their numbers stay taken, by nothing: objects here that know them may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
