"""A connection without a socket: its states, what it matches, what it bears."""

import pytest

from rocketstore.remoting.command import ONEWAY, RESPONSE, Command, HeaderKind, reply
from rocketstore.remoting.connection import TRANSITIONS, CloseReason, Connection, State
from rocketstore.remoting.frame import FrameFault, FrameReader
from rocketstore.remoting.limits import Limits, Totals
from support.wire import frame, framed

SMALL = Limits(
    connection_bytes=1000, total_bytes=3000, idle_ms=120_000, frame_ms=60_000, stall_ms=30_000
)
REQUEST = Command(105, 7, fields={"topic": "T"})
FRAME = framed(REQUEST)


def opened(totals=None, limits=SMALL):
    return Connection(limits, totals or Totals(), 0)


@pytest.fixture
def connection():
    return opened()


def sent(connection, now_ms=0, unsent=0):
    """Return the commands of what is to be sent, of which the socket leaves so much."""
    data = b"".join(connection.take_output(now_ms))
    connection.note_unsent(unsent, now_ms)
    frames, error = FrameReader().feed(data)
    assert error is None
    return [command for command, _ in frames]


def test_the_table_of_states_is_whole():
    assert set(TRANSITIONS) == set(State)
    for state, others in TRANSITIONS.items():
        assert state not in others
        assert (State.CLOSED in others) == (state is not State.CLOSED)
    assert TRANSITIONS[State.ENDING] == {State.CLOSED}


@pytest.mark.parametrize("kind", HeaderKind)
def test_a_reply_has_the_number_and_the_kind_of_its_request(kind, connection):
    data = framed(Command(105, -5, kind=kind, body=b"b"))
    [request] = connection.receive(data, 0).requests
    connection.answer(*request, reply(17, "none", fields={"a": "b"}))
    [answer] = sent(connection)
    assert (answer.code, answer.opaque, answer.kind, answer.flag) == (17, -5, kind, RESPONSE)
    assert (answer.remark, answer.fields) == ("none", {"a": "b"})
    assert connection.held_bytes == 0


@pytest.mark.parametrize("answer", [None, reply()])
def test_a_request_that_wants_no_reply_gets_none(answer, connection):
    [request] = connection.receive(framed(Command(34, 1, flag=ONEWAY)), 0).requests
    connection.answer(*request, answer)
    assert sent(connection) == []
    assert connection.held_bytes == 0


def test_replies_find_what_was_asked_in_any_order():
    totals = Totals()
    one, two = opened(), opened(totals)
    numbers = [two.ask(Command(code), token=f"token {code}") for code in (11, 12, 13)]
    assert numbers == [2**30, 2**30 + 1, 2**30 + 2]
    asked = one.receive(b"".join(two.take_output(0)), 0)
    for command, size in reversed(asked.requests):
        one.answer(command, size, reply(remark=str(command.code)))
    two.forget(numbers[1])
    received = two.receive(b"".join(one.take_output(0)), 0)
    assert asked.replies == received.requests == []
    found = [(token, command.remark) for command, token in received.replies]
    assert found == [("token 13", "13"), ("token 11", "11")]
    assert (totals.replies, totals.unmatched) == (3, 1)
    assert two.take_awaited() == []


def test_requests_of_a_broker_have_numbers_where_no_client_counts_and_within_java_s_int(connection):
    assert connection.ask(Command(40), None) == 2**30
    connection._opaque = 2**31 - 1
    assert [connection.ask(Command(11), token=n) for n in (1, 2)] == [2**31 - 1, 2**30]


def test_what_is_told_to_a_client_waits_for_nothing(connection):
    connection.ask(Command(40), None)
    [command] = sent(connection)
    assert command.flag == ONEWAY
    assert connection.take_awaited() == []


def test_a_bad_frame_ends_the_connection_and_is_counted_by_name():
    totals = Totals()
    connection = opened(totals)
    [(command, size)] = connection.receive(FRAME + frame(b"{", b""), 0).requests
    assert command == REQUEST
    assert (connection.state, connection.reason) == (State.CLOSED, FrameFault.BAD_HEADER)
    connection.answer(command, size, reply())
    assert connection.take_output(0) == []
    assert connection.receive(FRAME, 0) == ([], [])
    connection.close(CloseReason.LOCAL)
    assert totals.closed == {FrameFault.BAD_HEADER: 1}
    assert totals.held_bytes == 0


def test_what_is_not_answered_is_held_and_too_much_of_it_is_not_read_on():
    totals = Totals()
    connection = opened(totals)
    held = []
    while connection.is_reading:
        held += connection.receive(FRAME, 0).requests
    assert connection.state is State.FULL
    assert totals.held_bytes == connection.held_bytes == len(held) * len(FRAME) >= 1000
    while connection.state is State.FULL:
        connection.answer(*held.pop(), None)
        connection.note_unsent(0, 0)
    assert connection.held_bytes == len(held) * len(FRAME) <= 500


def test_replies_that_nobody_takes_are_held(connection):
    [request] = connection.receive(FRAME, 0).requests
    connection.answer(*request, reply(body=bytes(2000)))
    size = sum(map(len, connection.take_output(0)))
    connection.note_unsent(size, 0)
    assert (connection.state, connection.held_bytes) == (State.FULL, size)
    connection.note_unsent(501, 10)
    assert connection.state is State.FULL
    connection.note_unsent(500, 20)
    assert connection.state is State.OPEN


def test_a_frame_of_the_limit_is_read_to_its_end_whatever_all_hold():
    totals = Totals()
    others = [opened(totals) for _ in range(2)]
    for other in others:
        other.receive(framed(Command(310, body=bytes(1500))), 0)
    assert totals.held_bytes >= SMALL.total_bytes
    late = opened(totals)
    late.receive(FRAME[:10], 0)
    assert late.is_reading
    assert totals.held_bytes == sum(one.held_bytes for one in (*others, late))
    late.receive(FRAME[10:], 0)
    assert not late.is_reading
    for other in others:
        other.close()
    late.note_unsent(0, 0)
    assert late.is_reading
    assert totals.held_bytes == late.held_bytes == len(FRAME)


@pytest.mark.parametrize(("now_ms", "reason"), [(119_999, None), (120_000, CloseReason.IDLE)])
def test_a_connection_on_which_nothing_moves_is_closed_after_120_s(now_ms, reason, connection):
    connection.receive(FRAME, 5000)
    connection.check(5000 + now_ms)
    assert connection.reason is reason


def test_replies_keep_a_connection_alive(connection):
    connection.ask(Command(40), None)
    sent(connection, 100_000)
    connection.check(219_999)
    assert connection.state is State.OPEN


def test_a_frame_that_comes_byte_by_byte_is_not_waited_for_longer_than_a_minute(connection):
    for second, byte in enumerate(FRAME[:60]):
        connection.check(second * 1000)
        assert connection.state is State.OPEN
        connection.receive(bytes([byte]), second * 1000)
    connection.check(60_000)
    assert connection.reason is CloseReason.UNFINISHED_FRAME


def test_whole_frames_among_parts_are_progress(connection):
    data = FRAME * 100
    for second, at in enumerate(range(0, len(data), 61)):
        connection.check(second * 1000)
        for request in connection.receive(data[at : at + 61], second * 1000).requests:
            connection.answer(*request, None)
    assert connection.state is State.OPEN


def test_a_client_that_never_reads_is_given_up_after_half_a_minute(connection):
    [request] = connection.receive(FRAME, 10_000).requests
    connection.answer(*request, reply())
    sent(connection, 100_000, unsent=10)
    connection.check(129_999)
    assert connection.state is State.OPEN
    connection.receive(FRAME, 129_999)  # it goes on asking
    connection.note_unsent(10, 130_000)
    connection.check(130_000)
    assert connection.reason is CloseReason.TAKES_NOTHING


def test_a_client_that_reads_slowly_is_not_given_up(connection):
    [request] = connection.receive(FRAME, 0).requests
    connection.answer(*request, reply(body=bytes(400)))
    sent(connection, 0, unsent=400)
    for turn in range(1, 10):
        connection.note_unsent(400 - turn, turn * 29_000)
        connection.check(turn * 29_000)
    assert connection.state is State.OPEN


def test_an_end_waits_for_what_is_owed_and_takes_no_request_meanwhile(connection):
    [request] = connection.receive(FRAME, 0).requests
    connection.finish()
    assert connection.state is State.ENDING
    assert connection.receive(FRAME, 0) == ([], [])
    connection.answer(*request, reply())
    [answer] = sent(connection, unsent=5)
    assert answer.opaque == 7
    assert connection.state is State.ENDING
    connection.note_unsent(0, 0)
    assert (connection.state, connection.reason) == (State.CLOSED, CloseReason.LOCAL)


def test_an_end_of_nothing_is_at_once(connection):
    connection.finish()
    assert connection.state is State.CLOSED
    connection.ask(Command(11), token=1)
    assert connection.take_awaited() == []
    assert connection.take_output(0) == []
