"""Requests that came, and the table in which code, header type and processor meet.

Requests that are ready in one turn of the event loop are handed over together. A row of the table
answers its request at once, or keeps the `Call` and answers it later (`LATER`): when a sync is
over, or a held pull is woken. What is kept is a row in a table of its owner, not a task.

Law: every request ends: answered, dropped where no reply is wanted, or kept by its row.
How derived: NettyRemotingAbstract.processRequestCommand and NettyRemotingServer.registerProcessor
of 4.9.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from rocketstore.errors import FormatError, ResponseError, RocketStoreError
from rocketstore.events import get_logger
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import AnyHeader, Header, decode_fields, encode_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from enum import IntEnum

    from rocketstore.remoting.frame import Shortcut

_log: Final = get_logger(__name__)


class Peer(Protocol):
    """The other side of a connection, as processors see it; one object as long as it lasts."""

    address: str
    """Where it is, ``host:port``."""

    def answer(self, request: Command, size: int, reply: Command | None) -> None:
        """See `connection.Connection.answer`."""

    def tell(self, request: Command) -> None:
        """Send a request that wants no reply."""

    async def ask(self, request: Command, timeout_ms: int) -> Command:
        """See `channel.Channel.ask`."""


class Call(msgspec.Struct, eq=False):
    """A request that came and is not answered yet: what is asked, by whom, and since when."""

    command: Command
    size: int
    peer: Peer
    received_ms: int

    def answer(self, reply: Command | None) -> None:
        """Answer it, or drop it; once, in the thread of the event loop."""
        self.peer.answer(self.command, self.size, reply)


class Later:
    """What a handler returns that keeps its call: `LATER`."""


LATER: Final = Later()


class Row(NamedTuple):
    """One kind of request: the types of its custom header and of its reply's, and who answers it.

    `handle` returns the reply, None for none, or `LATER`.
    """

    code: IntEnum
    header: type[Header]
    reply: type[Header] | None
    handle: Callable[[Any, Call], Command | Later | None]


def note_refused(call: Call, reason: str) -> None:
    """Log what was refused to whom."""
    _log.info("request.refused", code=call.command.code, peer=call.peer.address, reason=reason)


def not_supported(call: Call) -> Command:
    """Return what a broker answers to a code that it does not know."""
    # Compatible: the blank in front is 4.9's.
    remark = f" request type {call.command.code} not supported"
    return reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def failure(error: BaseException, call: Call) -> Command:
    """Return what is answered where a handler raised, and log it unless the request is at fault."""
    if isinstance(error, FormatError):  # of its header or body
        note_refused(call, str(error))
        return reply(ResponseCode.SYSTEM_ERROR, str(error))
    remark = f"{type(error).__name__}: {error}"
    shown = None if isinstance(error, RocketStoreError) else error
    code, peer = call.command.code, call.peer.address
    _log.error("request.failed", code=code, peer=peer, error=remark, exc_info=shown)
    return reply(ResponseCode.SYSTEM_ERROR, remark)


class RequestTable:
    """Hands each request to the row of its code, and any other to `unknown`.

    `disconnected` are called for each connection that ends; `shortcut` reads some requests.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        unknown: Callable[[Call], Command | None] = not_supported,
        failed: Callable[[BaseException, Call], Command] = failure,
        disconnected: Sequence[Callable[[Peer], None]] = (),
        shortcut: Shortcut | None = None,
    ) -> None:
        self.rows: dict[int, Row] = {}
        for row in rows:
            if row.code in self.rows:
                raise ValueError(f"two rows for {row.code!r}")
            self.rows[row.code] = row
        self._unknown = unknown
        self._failed = failed
        self._disconnected = disconnected
        self.shortcut = shortcut

    def process(self, calls: Sequence[Call]) -> None:
        """Let each row handle its calls, in the order in which they came."""
        for call in calls:
            self.handle(call)

    def handle(self, call: Call) -> None:
        """Let the row of a call handle it; a reply longer than a frame is a failure too."""
        if (row := self.rows.get(call.command.code)) is None:
            note_refused(call, "nobody serves this code")
            call.answer(self._unknown(call))
            return
        try:
            header = call.command.header
            if header is None:
                header = decode_fields(call.command.fields, row.header)
            answer = row.handle(header, call)
            if not isinstance(answer, Later):
                call.answer(answer)
        except Exception as error:  # noqa: BLE001 - it fails one request, and not the server
            self._fail(error, call)

    def _fail(self, error: BaseException, call: Call) -> None:
        call.answer(self._failed(error, call))

    def disconnected(self, peer: Peer) -> None:
        """Tell each owner of something that belongs to a connection."""
        for tell in self._disconnected:
            tell(peer)


def request(code: int, header: Header | None = None, body: bytes = b"") -> Command:
    """Return a request; `remoting.client.RemotingClient.ask` sends it."""
    return Command(code, fields=None if header is None else encode_fields(header), body=body)


def answered(header: Header | None = None, body: bytes = b"") -> Command:
    """Return the reply to a request that was done."""
    return reply(fields=None if header is None else encode_fields(header), body=body)


def reply_header(found: Command, header: type[AnyHeader]) -> AnyHeader:
    """Return the custom header of a reply that says success; any other is a `ResponseError`."""
    if found.code != ResponseCode.SUCCESS:
        what = f"answered with code {found.code}: {found.remark}"
        raise ResponseError(what, code=found.code, remark=found.remark)
    return decode_fields(found.fields, header)
