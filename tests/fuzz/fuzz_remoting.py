"""frames and headers: any bytes are commands that say the same when written again, or a fault."""

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.remoting import binary_header, json_header
from rocketstore.remoting.command import RESPONSE, Command, HeaderKind
from rocketstore.remoting.connection import Connection, State
from rocketstore.remoting.frame import FrameReader
from rocketstore.remoting.limits import DEFAULT_LIMITS, Totals
from support.wire import frame, framed, recorded_headers

HEADERS = tuple(header for _by, header in recorded_headers())
BINARY = tuple(
    framed(Command(code, 9, fields={"topic": "T1", "k": "v" * code}, kind=HeaderKind.ROCKETMQ))
    for code in (0, 30, 300)
)
GOLDEN = (*map(frame, HEADERS), *BINARY, frame(HEADERS[0], b"body") + BINARY[0])
ANY = st.binary(max_size=200) | st.binary(max_size=100).map(frame)


def check(data: bytes) -> None:
    """Feed the bytes whole and in pieces, and read them as a header of each kind."""
    frames, fault = FrameReader().feed(data)
    for command, size in frames:
        assert 8 <= size <= len(data)
        check_written_again(command)
    check_connection(data, [command for command, _ in frames], fault)
    for kind, codec in enumerate((json_header, binary_header)):
        try:
            command = codec.decode(data)
        except FormatError as refused:
            str(refused)
            continue
        assert command.kind == kind
        check_written_again(command)


def check_written_again(command: Command) -> None:
    try:
        data = framed(command)
    except FormatError:
        return  # a number that one kind of header has no room for
    [(again, _)], error = FrameReader().feed(data)
    assert error is None
    again.language, language = command.language, again.language
    assert again == command
    assert language is command.language or command.language is None


def check_connection(data: bytes, commands: list[Command], fault: object) -> None:
    """A connection that gets the bytes in two pieces ends alike, and holds nothing afterwards."""
    totals = Totals()
    connection = Connection(DEFAULT_LIMITS, totals, 0)
    at = len(data) // 3
    parts = connection.receive(data[:at], 0), connection.receive(data[at:], 0)
    requests = [command for part in parts for command, _ in part.requests]
    assert requests == [command for command in commands if not command.flag & RESPONSE]
    assert (connection.state is State.CLOSED) == (fault is not None)
    assert totals.requests + totals.replies == len(commands)
    assert totals.unmatched == totals.replies
    assert 0 <= totals.held_bytes <= len(data)
    connection.close()
    assert totals.held_bytes == 0
