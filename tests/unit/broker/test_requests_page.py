"""The page of requests says what the broker's table of requests does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.broker.codes import BrokerRequest
from rocketstore.nameserver.requests import NameServer
from rocketstore.remoting.codes import RequestCode
from support.page_tables import table_with, tables
from unit.nameserver.test_requests_page import cells

if TYPE_CHECKING:
    from support.broker_desk import Desk

PAGE = "reference/requests.md"
TOLD = {BrokerRequest.CHECK_TRANSACTION_STATE, BrokerRequest.NOTIFY_CONSUMER_IDS_CHANGED}
"""What a broker sends."""


def test_the_page_has_every_request_of_a_broker_with_its_fields(desk: Desk) -> None:
    page = [tuple(row.values()) for row in table_with(PAGE, "broker code", "name")]
    rows = desk.table.rows
    assert page == [
        (str(int(code)), f"`{row.code.name}`", cells(row.header), cells(row.reply))
        for code, row in sorted(rows.items())
    ]
    assert rows.keys() | NameServer().requests.rows.keys() | TOLD == {*RequestCode, *BrokerRequest}


def test_what_is_to_come_is_not_there_yet(desk: Desk) -> None:
    to_come = " ".join(row["Codes"] for row in tables(PAGE)[-1]).replace("50 to 54", "50 54")
    codes = set(map(int, to_come.split()))
    assert len(codes) > 20
    assert not codes & desk.table.rows.keys()
    assert {desk.answer(code).code for code in codes} == {3}
