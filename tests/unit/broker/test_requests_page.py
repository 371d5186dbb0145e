"""The page of requests says what the tables of requests do; the guide, what can be set."""

import json
import re

import msgspec

from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.settings import BrokerSettings
from rocketstore.nameserver.requests import NameServer
from rocketstore.remoting.codes import RequestCode
from rocketstore.remoting.fields import field_rows
from support.page_tables import table_with

PAGE = "reference/requests.md"
TOLD = {
    BrokerRequest.CHECK_TRANSACTION_STATE, BrokerRequest.NOTIFY_CONSUMER_IDS_CHANGED,
    BrokerRequest.PUSH_REPLY_MESSAGE_TO_CLIENT,
}  # fmt: skip
"""What a broker sends."""

OF_4_9 = {
    *range(10, 16), 17, *range(21, 24), *range(25, 44), 45, 46, *range(50, 54), *range(100, 107),
    *range(200, 217), *range(219, 225), *range(300, 330),
}  # fmt: skip
"""The codes of RequestCode of 4.9.8."""


def cells(header):
    rows = () if header is None else field_rows(header)
    names = [(f"**{row.name}**" if row.is_required else row.name, row.type) for row in rows]
    return ", ".join(map(" ".join, names)) or "-"


def test_the_page_has_every_request_with_its_fields(desk):
    of_broker, of_name_server = desk.table.rows, NameServer().requests.rows
    for heading, rows in (("broker code", of_broker), ("code", of_name_server)):
        assert [tuple(row.values()) for row in table_with(PAGE, heading, "name")] == [
            (str(int(code)), f"`{row.code.name}`", cells(row.header), cells(row.reply))
            for code, row in sorted(rows.items())
        ]
    assert of_broker.keys() | of_name_server.keys() | TOLD == {*RequestCode, *BrokerRequest}


def test_every_code_of_4_9_is_served_or_the_page_says_why_not(desk):
    named = " ".join(row["not served"] for row in table_with(PAGE, "not served"))
    not_served = [int(code) for code in re.findall(r"\b(\d+) `", named)]
    served = {int(code) for code in (*RequestCode, *BrokerRequest)} - {
        BrokerRequest.LITE_PULL_MESSAGE
    }  # of 5.x
    assert sorted({*not_served, *served}) == sorted(OF_4_9)
    assert not served & set(not_served)
    assert {desk.answer(code).code for code in not_served} == {3}


def test_the_guide_has_every_setting_with_its_default():
    table = table_with("guide/broker.md", "key", "default")
    fields = msgspec.structs.fields(BrokerSettings)
    defaults = {f"`{one.encode_name}`": json.dumps(one.default).strip('"') for one in fields}
    assert {row["key"]: row["default"].strip("`-") for row in table} == defaults
