"""The table of requests: whom a turn is handed to, and how every request ends."""

import pytest

from rocketstore.errors import ResponseError, StoreError
from rocketstore.remoting.codes import RequestCode, ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32
from rocketstore.remoting.frame import LONGEST_FRAME, encode_frame
from rocketstore.remoting.requests import (
    LATER,
    Call,
    RequestTable,
    Row,
    answered,
    reply_header,
    request,
)
from support.said import capture_logs


class Number(Header):
    number: Int32


class Client:
    """What was answered, in order."""

    address = "127.0.0.1:1"

    def __init__(self):
        self.answers = []

    def answer(self, request, size, reply):
        if reply is not None:
            encode_frame(reply)
        self.answers.append((request.opaque, size, reply))

    def tell(self, request):
        raise AssertionError


ROUTE, CLUSTER = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO


def calls_of(*commands):
    client = Client()
    calls = [Call(one, 10, client, 0) for one in commands]
    for opaque, call in enumerate(calls):
        call.command.opaque = opaque
    return client, calls


def answers(table, *commands):
    client, calls = calls_of(*commands)
    table.process(calls)
    return [found for _opaque, _size, found in client.answers]


def number(value):
    return request(ROUTE, Number(value))


def test_a_row_gets_its_typed_header_and_answers():
    table = RequestTable([Row(ROUTE, Number, Number, lambda h, _: answered(Number(h.number + 1)))])
    [found] = answers(table, number(4))
    assert reply_header(found, Number) == Number(5)


def test_a_code_without_a_row_is_not_supported():
    [found] = answers(RequestTable([]), Command(CLUSTER))
    assert (found.code, found.remark) == (3, " request type 106 not supported")


def test_a_call_that_is_kept_is_answered_when_its_keeper_likes():
    held = []
    table = RequestTable([Row(ROUTE, Header, None, lambda _, call: held.append(call) or LATER)])
    client, calls = calls_of(Command(ROUTE), Command(ROUTE))
    table.process(calls)
    assert client.answers == []
    held.pop().answer(reply())
    held.pop().answer(None)
    assert [(opaque, size) for opaque, size, _ in client.answers] == [(1, 10), (0, 10)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (None, "the custom field <number> is null"),
        ({"number": "x"}, "the custom field <number> is no number: 'x'"),
        ({"number": "2147483648"}, "2147483647"),
    ],
)
def test_a_bad_header_is_answered_with_its_field_and_logged(fields, said):
    table = RequestTable([Row(ROUTE, Number, None, lambda *_: reply())])
    with capture_logs() as logs:
        [found] = answers(table, Command(ROUTE, fields=fields))
    assert found.code == ResponseCode.SYSTEM_ERROR
    assert said in found.remark
    assert [(log["event"], log["code"]) for log in logs] == [("request.refused", ROUTE)]


def test_a_handler_that_raises_fails_its_request_alone(caplog):
    def handle(header, _call):
        return answered(Number(6 // header.number))

    table = RequestTable([Row(ROUTE, Number, Number, handle)])
    found = answers(table, number(3), number(0), number(2))
    assert [one.code for one in found] == [0, ResponseCode.SYSTEM_ERROR, 0]
    assert found[1].remark.startswith("ZeroDivisionError: ")
    assert caplog.text.count("request.failed code=105") == 1


def test_what_the_server_cannot_do_is_said_in_its_log_too(caplog):
    def handle(_header, _call):
        raise StoreError("topics.json cannot be read")

    [found] = answers(RequestTable([Row(ROUTE, Header, None, handle)]), Command(ROUTE))
    assert (found.code, found.remark) == (1, "StoreError: topics.json cannot be read")
    [line] = [one.getMessage() for one in caplog.records]
    assert line.startswith("request.failed ")
    assert "StoreError: topics.json cannot be read" in line


def test_a_reply_longer_than_a_frame_is_an_error_and_no_silence():
    table = RequestTable([Row(ROUTE, Header, None, lambda *_: reply(body=bytes(LONGEST_FRAME)))])
    [found] = answers(table, Command(ROUTE))
    assert found.code == ResponseCode.SYSTEM_ERROR
    assert "at most 16777212" in found.remark


@pytest.mark.parametrize("unknown", [None, reply(3, "no")])
def test_the_owner_of_the_table_says_what_an_unknown_code_gets(unknown):
    table = RequestTable([], unknown=lambda _call: unknown)
    with capture_logs() as logs:
        assert answers(table, Command(9999), Command(9999)) == [unknown, unknown]
    said = [(one["event"], one["code"], one["reason"]) for one in logs]
    assert said == [("request.refused", 9999, "nobody serves this code")] * 2


def test_two_rows_for_one_code_are_a_mistake():
    row = Row(ROUTE, Header, None, lambda *_: reply())
    with pytest.raises(ValueError, match="GET_ROUTEINFO_BY_TOPIC"):
        RequestTable([row, row])


def test_what_keeps_something_of_a_client_is_told_of_its_end():
    gone = []
    table = RequestTable([], disconnected=[gone.append])
    table.disconnected("peer")
    assert gone == ["peer"]


def test_a_reply_that_says_no_is_an_error_with_its_code():
    with pytest.raises(ResponseError, match="code 17: none") as error:
        reply_header(reply(17, "none"), Header)
    assert (error.value.code, error.value.remark) == (17, "none")
