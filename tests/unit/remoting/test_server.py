"""Server and client over the loopback, with Python's event loop and with uvloop's."""

import asyncio
import inspect
import socket
import time
from concurrent.futures import Future

import pytest

from rocketstore import units
from rocketstore.broker.topics import Topics
from rocketstore.errors import RemotingError
from rocketstore.format.host import address_text
from rocketstore.nameserver.requests import NameServer
from rocketstore.nameserver.service import serving
from rocketstore.process import new_event_loop
from rocketstore.remoting.channel import Turns
from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.codes import RequestCode
from rocketstore.remoting.command import ONEWAY, RESPONSE, Command, HeaderKind, reply
from rocketstore.remoting.connection import CloseReason, State
from rocketstore.remoting.fields import Header
from rocketstore.remoting.frame import FrameFault, FrameReader
from rocketstore.remoting.limits import Limits
from rocketstore.remoting.requests import LATER, RequestTable, Row
from rocketstore.units import AwakeClock, awake_ms
from support.patience import PATIENCE_MS, PATIENCE_S
from support.said import capture_logs
from support.wire import frame, framed, opened

ECHO, HOLD, BACK = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_KV_CONFIG, RequestCode.PUT_KV_CONFIG,
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("loop_factory")


class Echo(RequestTable):
    """Gives bodies back, keeps what it is to hold, and asks back who wants that."""

    def __init__(self):
        self.turns, self.held, self.gone = [], [], []
        super().__init__(
            [
                Row(ECHO, Header, None, lambda _, call: reply(body=call.command.body)),
                Row(HOLD, Header, None, self.hold),
                Row(BACK, Header, None, self.ask_back),
            ],
            disconnected=[self.gone.append],
        )

    def hold(self, _header, call):
        self.held.append(call)
        return LATER

    def ask_back(self, _header, call):
        call.peer.tell(Command(ECHO, body=b"back"))
        return reply()

    def process(self, calls):
        self.turns.append(len(calls))
        super().process(calls)


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request):
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
        return new_event_loop
    return asyncio.SelectorEventLoop


async def until(condition):
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.001)


def connected(server, *data):
    """Return a plain socket, over which `data` was sent."""
    client = socket.create_connection(server.address)
    client.settimeout(0)
    for each in data:
        client.sendall(each)
    return client


async def read_commands(client, count):
    reader, found = FrameReader(), []
    loop = asyncio.get_running_loop()
    while len(found) < count:
        data = await loop.sock_recv(client, 65536)
        assert data, found
        found += [command for command, _ in reader.feed(data)[0]]
    return found


async def assert_closed(client):
    try:
        while await asyncio.get_running_loop().sock_recv(client, 65536):
            pass
    except ConnectionError:
        pass
    client.close()


@pytest.mark.parametrize("kind", HeaderKind)
async def test_a_client_asks_and_is_answered(kind):
    async with await opened(Echo()) as server, RemotingClient() as client:
        host, port = server.address
        assert host == "127.0.0.1"
        bodies = [b"", b"x", b"y" * 3_000_000]
        commands = [Command(ECHO, body=body, kind=kind) for body in bodies]
        asked = [client.ask(f"{host}:{port}", one) for one in commands]
        found = await asyncio.gather(*asked)
        assert [(one.code, one.kind, one.body) for one in found] == [
            (0, kind, body) for body in bodies
        ]
        assert len(server._turns.channels) == 1
        await client.tell(f"{host}:{port}", Command(ECHO))
        await until(lambda: server.totals.requests == 4)
    assert client.totals.replies == 3


async def test_what_is_ready_in_a_turn_is_handled_together():
    echo = Echo()
    async with await opened(echo) as server:
        clients = [connected(server) for _ in range(5)]
        await until(lambda: len(server._turns.channels) == 5)
        for number, client in enumerate(clients):
            client.sendall(framed(Command(ECHO, number, body=b"b")) * 16)
        for number, client in enumerate(clients):
            found = await read_commands(client, 16)
            assert {(one.opaque, one.body) for one in found} == {(number, b"b")}
            client.close()
        assert sum(echo.turns) == 80
        assert max(echo.turns) > 8


@pytest.mark.parametrize(
    ("count", "parts"), [(7, [(7, 0)]), (8, [(4, 0), (4, 4)]), (9, [(4, 0), (5, 4)])]
)
async def test_a_large_turn_is_answered_by_halves(count, parts):
    seen = []

    class Watching(Echo):
        def process(self, calls):
            try:
                data = client.recv(65536, socket.MSG_PEEK)
            except BlockingIOError:
                data = b""
            seen.append((len(calls), len(FrameReader().feed(data)[0])))
            super().process(calls)

    async with await opened(Watching()) as server:
        client = connected(server, framed(Command(ECHO)) * count)
        await read_commands(client, count)
        client.close()
    assert seen == parts


async def test_held_requests_are_rows_and_no_tasks_and_later_ones_pass_them():
    echo = Echo()
    async with await opened(echo) as server:
        tasks = len(asyncio.all_tasks())
        client = connected(server, b"".join(framed(Command(HOLD, n)) for n in range(1000)))
        client.sendall(framed(Command(ECHO, -1)))
        assert [one.opaque for one in await read_commands(client, 1)] == [-1]
        assert len(echo.held) == 1000
        assert len(asyncio.all_tasks()) == tasks
        sizes = [len(framed(call.command)) for call in echo.held]
        await until(lambda: server.totals.held_bytes == sum(sizes))
        for call in reversed(echo.held):
            call.answer(reply())
        found = await read_commands(client, 1000)
        assert [one.opaque for one in found] == list(reversed(range(1000)))
        await until(lambda: not server.totals.held_bytes)
        client.close()


async def test_a_server_asks_back_on_the_connection_of_its_client():
    asked = Echo()
    async with await opened(Echo()) as server, RemotingClient(asked) as client:
        address = "{}:{}".format(*server.address)
        assert (await client.ask(address, Command(BACK))).code == 0
        await until(lambda: asked.turns == [1])
        [channel] = server._turns.channels
        found = await channel.ask(Command(ECHO, body=b"sync"), PATIENCE_MS)
        assert found.body == b"sync"
        found = await channel.ask(Command(9999), PATIENCE_MS)
        assert (found.code, found.remark) == (3, " request type 9999 not supported")
        waits = asyncio.create_task(channel.ask(Command(HOLD), PATIENCE_MS))
        await until(lambda: asked.held)
        waits.cancel()  # its reply comes before it goes on
        channel.data_received(framed(Command(0, asked.held[0].command.opaque, RESPONSE)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(b"{}", length=-1), FrameFault.NEGATIVE_LENGTH),
        (frame(b"{}", length=16_777_213), FrameFault.TOO_LONG),
        (frame(b"{", b""), FrameFault.BAD_HEADER),
        (frame(b"{}", header_size=9), FrameFault.HEADER_PAST_FRAME),
        (bytes.fromhex("16030100c8010000c4"), FrameFault.TLS),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_bad_bytes_close_their_connection_without_a_word(caplog, data, reason):
    echo = Echo()
    async with await opened(echo) as server:
        other = connected(server, framed(Command(ECHO, 1)))
        await assert_closed(connected(server, data))
        assert server.totals.closed == {reason: 1}
        assert reason.value in caplog.text
        assert len(await read_commands(other, 1)) == 1
        await until(lambda: len(echo.gone) == 1)
        other.close()


async def test_a_frame_of_the_limit_is_answered():
    async with await opened(Echo()) as server:
        client = connected(server)
        header = b'{"code":%d,"opaque":5,"flag":0}' % HOLD.GET_ROUTEINFO_BY_TOPIC
        data = frame(header, bytes(16_777_212 - 4 - len(header)))
        assert data.startswith((16_777_212).to_bytes(4, "big"))
        sent = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, data))
        [found] = await read_commands(client, 1)
        # The body would not fit beside the longer header of a reply.
        assert (found.opaque, found.code) == (5, 1)
        await sent
        client.close()


async def test_a_client_that_never_reads_is_not_read_and_in_the_end_given_up():
    now = [0]
    limits = Limits(connection_bytes=2_000_000)
    echo = Echo()
    async with await opened(echo, limits=limits, clock=lambda: now[0]) as server:
        deaf = connected(server)
        request = framed(Command(ECHO, 1, body=bytes(100_000)))
        sent = asyncio.create_task(asyncio.get_running_loop().sock_sendall(deaf, request * 1000))
        await until(lambda: len(server._turns.channels) == 1)
        [channel] = server._turns.channels
        await until(lambda: channel.connection.state is State.FULL)
        other = connected(server, framed(Command(ECHO, 2)))
        assert len(await read_commands(other, 1)) == 1
        assert server.totals.requests < 500
        assert server.totals.held_bytes < 2_400_000
        now[0] = 30_000
        server._turns._sweep()
        assert server.totals.closed == {CloseReason.TAKES_NOTHING: 1}
        with pytest.raises(ConnectionError):
            await sent
        await until(lambda: server.totals.held_bytes == 0)
        deaf.close()
        other.close()


async def test_slow_and_silent_clients_are_closed_in_their_time():
    now = [0]
    async with await opened(Echo(), clock=lambda: now[0]) as server:
        clients = [connected(server, framed(Command(ECHO))[:7]), connected(server)]
        await until(lambda: server.totals.held_bytes == 7 and len(server._turns.channels) == 2)
        with capture_logs() as logs:
            for now[0] in range(0, 60_000, 1000):
                server._turns._sweep()
            clients[0].send(b"\0")  # a frame that comes byte by byte has no longer
            await until(lambda: server.totals.held_bytes == 8)
            assert server.totals.closed == {}
            now[0] = 60_000
            server._turns._sweep()
            assert server.totals.closed == {CloseReason.UNFINISHED_FRAME: 1}
            for now[0] in range(61_000, 121_000, 1000):
                server._turns._sweep()
            reasons = [CloseReason.UNFINISHED_FRAME, CloseReason.IDLE]
            assert server.totals.closed == dict.fromkeys(reasons, 1)
            await until(lambda: not server._turns.channels)
        addresses = [address_text(*client.getsockname()) for client in clients]
        ends = [(log["peer"], log["reason"]) for log in logs if log["event"] == "connection.closed"]
        assert ends == [*zip(addresses, [one.value for one in reasons], strict=True)]
        for client in clients:
            await assert_closed(client)


async def test_who_was_stopped_itself_calls_nobody_silent(monkeypatch):
    """``docker pause``: what clients sent meanwhile is not read yet at the first look."""
    now = [1_000_000]
    monkeypatch.setattr(units, "monotonic_ms", lambda: now[0])
    async with await opened(Echo(), clock=AwakeClock()) as server:
        clients = [connected(server, framed(Command(ECHO))[:7]), connected(server)]
        await until(lambda: server.totals.held_bytes == 7 and len(server._turns.channels) == 2)
        now[0] += 600_000
        server._turns._sweep()
        assert not server.totals.closed
        for _ in range(115):
            assert CloseReason.IDLE not in server.totals.closed
            now[0] += 1000
            server._turns._sweep()
        assert server.totals.closed == {CloseReason.UNFINISHED_FRAME: 1, CloseReason.IDLE: 1}
        for client in clients:
            client.close()


@pytest.mark.parametrize("part", [Turns, NameServer, Topics, serving])
def test_all_limits_of_silence_are_by_one_clock(part):
    clocks = {"clock", "monotonic"} & inspect.signature(part).parameters.keys()
    assert [inspect.signature(part).parameters[name].default for name in clocks] == [awake_ms]


async def test_of_clients_that_hold_too_much_the_one_that_holds_most_has_to_go():
    now = [0]
    limits = Limits(total_bytes=500_000)
    echo = Echo()
    async with await opened(echo, limits=limits, clock=lambda: now[0]) as server:
        small = connected(server, framed(Command(HOLD, 1, body=bytes(200_000))))
        await until(lambda: len(echo.held) == 1)
        large = connected(server, framed(Command(HOLD, 2, body=bytes(400_000))))
        await until(lambda: len(echo.held) == 2)
        late = connected(server, framed(Command(ECHO, 3)), framed(Command(ECHO, 4)))
        await until(lambda: server.totals.requests >= 3)
        assert server.totals.closed == {}
        now[0] = 5000
        server._turns._sweep()
        await assert_closed(large)
        assert server.totals.closed == {CloseReason.HOLDS_MOST: 1}
        assert len(await read_commands(late, 2)) == 2
        huge = connected(server, framed(Command(HOLD, 5, body=bytes(900_000))))
        await assert_closed(huge)
        assert server.totals.closed == {CloseReason.HOLDS_MOST: 2}
        for client in (small, late):
            client.close()


async def test_more_connections_than_the_limit_are_closed_as_they_come():
    limits = Limits(most_connections=2)
    async with await opened(Echo(), limits=limits) as server:
        clients = [connected(server, framed(Command(ECHO))) for _ in range(2)]
        for client in clients:
            await read_commands(client, 1)
        await assert_closed(connected(server))
        assert server.totals.closed == {CloseReason.TOO_MANY: 1}
        clients.pop().close()
        await until(lambda: len(server._turns.channels) == 1)
        last = connected(server, framed(Command(ECHO)))
        await read_commands(last, 1)
        for client in (*clients, last):
            client.close()


async def test_limits_and_totals_are_those_of_all_addresses_of_a_server():
    async with await opened(Echo(), limits=Limits(most_connections=1)) as server:
        await server.listen("127.0.0.1", 0)
        second = server._listeners[1].sockets[0].getsockname()
        first = connected(server, framed(Command(ECHO)))
        await read_commands(first, 1)
        other = socket.create_connection(second)
        other.settimeout(0)
        await assert_closed(other)
        assert server.totals.closed == {CloseReason.TOO_MANY: 1}
        first.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(second)


async def test_a_server_that_ends_answers_what_it_owes():
    echo = Echo()
    server = await opened(echo)
    client = connected(server, framed(Command(HOLD, 3)), framed(Command(ECHO, 4)))
    idle = connected(server, framed(Command(ECHO)))
    await read_commands(client, 1)
    await read_commands(idle, 1)
    ending = asyncio.create_task(server.close(drain_ms=100_000))
    await until(lambda: not server._listeners[0].sockets)
    with pytest.raises(ConnectionRefusedError):
        connected(server)
    await assert_closed(idle)
    echo.held[0].answer(reply())
    assert [one.opaque for one in await read_commands(client, 1)] == [3]
    await ending
    await assert_closed(client)
    assert server.totals.closed == {CloseReason.LOCAL: 2}


async def test_a_server_does_not_wait_for_ever_for_clients_that_keep_it():
    server = await opened(Echo())
    client = connected(server, framed(Command(HOLD)), framed(Command(ECHO)))
    await read_commands(client, 1)
    began = time.monotonic()
    await server.close(drain_ms=10)
    assert time.monotonic() - began < PATIENCE_S
    await assert_closed(client)


async def test_a_client_that_connects_as_a_server_ends_is_let_go_like_all_others():
    for turns in range(8):  # asyncio takes one in within three or four turns of its loop
        async with await opened(Echo()) as server:
            client = connected(server)
            for _ in range(turns):
                await asyncio.sleep(0)
        await assert_closed(client)


async def test_an_address_that_is_taken_is_an_error_with_a_hint():
    async with await opened(Echo()) as server:
        with pytest.raises(RemotingError, match=r"cannot listen at 127\.0\.0\.1.*another port"):
            await opened(Echo(), port=server.address[1])


async def test_a_client_that_gets_no_answer_says_so_and_connects_again():
    echo = Echo()
    async with await opened(echo) as server, RemotingClient() as client:
        address = "{}:{}".format(*server.address)
        with pytest.raises(RemotingError, match="did not answer request 101 within 20 ms"):
            await client.ask(address, Command(HOLD), timeout_ms=20)
        assert (await client.ask(address, Command(ECHO, body=b"again"))).body == b"again"
        assert client.totals.closed == {CloseReason.TIMED_OUT: 1}
        # What was given up with its connection goes nowhere.
        await until(lambda: len(echo.gone) == 1)
        echo.held[0].answer(reply())


async def test_a_caller_that_waits_is_told_what_ended(monkeypatch):
    server = await opened(Echo())
    address = "{}:{}".format(*server.address)
    async with RemotingClient() as client:
        waits = asyncio.create_task(client.ask(address, Command(HOLD)))
        await until(lambda: server.totals.requests == 1)
        await server.close(drain_ms=0)
        with pytest.raises(RemotingError, match=r"closed|broke"):
            await waits
        with pytest.raises(RemotingError, match=f"cannot connect to {address}.*host:port"):
            await client.ask(address, Command(ECHO))
        async with await opened(Echo(), port=int(address.split(":")[1])):
            assert (await client.ask(address, Command(ECHO))).code == 0
        monkeypatch.setattr("rocketstore.remoting.client.looked_up", lambda _host: Future())
        waits = asyncio.create_task(client.ask("nowhere:1", Command(ECHO)))
        await until(lambda: "nowhere:1" in client._channels)
    with pytest.raises(RemotingError, match="this client was closed"):
        await waits


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:x", "127.0.0.1:99999", "[::1"])
async def test_what_is_no_address_is_an_error_with_a_hint(address):
    async with RemotingClient() as client:
        with pytest.raises(RemotingError, match="an address is host:port"):
            await client.tell(address, Command(ECHO))


async def test_a_oneway_flood_is_handled_and_answered_to_nobody():
    echo = Echo()
    async with await opened(echo) as server:
        flood = framed(Command(9999, flag=ONEWAY)) * 5000 + framed(Command(ECHO, 77))
        client = connected(server)
        sent = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, flood))
        assert [one.opaque for one in await read_commands(client, 1)] == [77]
        await sent
        assert server.totals.requests == 5001
        await until(lambda: server.totals.held_bytes == 0)
        client.close()
