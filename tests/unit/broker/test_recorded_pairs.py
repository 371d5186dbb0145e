"""Every request that the genuine broker was recorded with has its answer here, field by field.

The requests of ``tests/golden/wire/broker.jsonl`` go to one broker in their order; offsets in the
log come out as they were recorded.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstore.broker.testing import Broker
from support.broker_wire import Wire
from support.oracle.record import decode_record
from support.wire import recorded

PAIRS = recorded("broker")

SQL = "enablePropertyFilter is off here, as it is by default in 4.9; it was on there"
OTHER: dict[str, tuple[int, str]] = {
    "pull bad sql": (1, SQL),
    "pull sql": (1, SQL),
    "chk client": (1, SQL),
    "hb 2": (0, "recorded was the notice, which comes first: the test of client_manage has it"),
    "send 4M+1 body": (13, "4.9.3 says a limit that it does not have, 4.9.8 and this one theirs"),
    "props > 32767": (13, "the same"),
    "batch truncated": (1, "a Java client fails itself on a reply to a send without fields"),
}
"""Requests that are answered otherwise: the code, and why."""

FIELDS = {
    ("pull overflow", "nextBeginOffset"): "5",  # K-O1: the end, and not the beginning
    ("qmsg", "indexLastUpdatePhyoffset"): "651",  # the newest that was found, not all
}
"""Fields that have another value."""

NEVER_SAME = {"neg queue random": ("queueId", "queueOffset"), "earliest": ("timestamp",)}
"""Fields that are others each time."""


def request_of(pair: dict[str, Any]) -> tuple[int, dict[str, Any] | None, bytes]:
    fields, body = pair["fields"], pair["body"]
    long = fields and {
        name: one["begin"].ljust(one["size"], "v") for name, one in fields.items()
        if isinstance(one, dict)
    }  # fmt: skip
    made = b"x" * body["size"] if isinstance(body, dict) else bytes.fromhex(body)
    return pair["code"], fields and {**fields, **long}, made


@pytest.fixture(scope="module")
def answers():
    with (
        Broker(listen_port=10911, namesrv_addr="127.0.0.1:1") as broker,
        Wire(broker.address) as wire,
    ):
        found = {}
        for pair in PAIRS:
            broker.store.wait_dispatched()
            found[pair["name"]] = wire.ask(*request_of(pair))
        yield found


def shown(body: bytes) -> Any:
    """Return what a body says, without what differs from run to run."""
    if body[4:8] == bytes.fromhex("daa320a7"):
        return list(records(body))
    text = body.decode()
    return json.loads(quoted(text)) if text.startswith("{") else text


def records(body: bytes) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        record = body[at : at + size]
        message = decode_record(memoryview(record), 0, base=int.from_bytes(record[28:36], "big"))
        yield message.to_dict() | {"storeTimestamp": 0, "bornHost": ""}
        at += size


def quoted(text: str) -> str:
    """Return text as strict JSON: numbers and objects that are keys become texts."""
    text = re.sub(r"([{,])(\d+):", r'\1"\2":', text)
    return re.sub(r"([{,])(\{[^{}]*\}):", lambda one: f"{one[1]}{json.dumps(one[2])}:", text)


def without(value: Any, *names: str) -> Any:
    """Return a value without some members, and lists whose order says nothing sorted."""
    if isinstance(value, dict):
        return {key: without(one, *names) for key, one in value.items() if key not in names}
    return value


TIMES = ("timestamp", "lastUpdateTimestamp", "lastTimestamp")
NOT_YET = ("RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
"""Topics that a broker of 4.9 makes when it first checks, or discards, half messages."""
JAVA = re.compile(r"^(org\.apache|java\.|com\.alibaba)")
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


@pytest.mark.parametrize("name", [pair["name"] for pair in PAIRS])
def test_answer_is_the_recorded_one(name, answers):
    wanted = next(pair for pair in PAIRS if pair["name"] == name)["reply"]
    found = answers[name]
    if name in OTHER:
        assert found.code == OTHER[name][0]
        return
    fields = wanted["fields"] and {
        key: FIELDS.get((name, key), one) for key, one in wanted["fields"].items()
    }
    assert found.code == wanted["code"]
    dropped = *NEVER_SAME.get(name, ()), "indexLastUpdateTimestamp", "version"
    assert without(found.fields, *dropped) == without(fields, *dropped)
    if JAVA.match(wanted["remark"] or ""):
        assert found.remark  # ours says it in its own words
    else:
        assert ADDRESS.sub("*", found.remark or "") == ADDRESS.sub("*", wanted["remark"] or "")
    assert comparable(shown(found.body)) == comparable(shown(bytes_of(wanted)))


def bytes_of(wanted: dict[str, Any]) -> bytes:
    return bytes.fromhex(wanted["hex"]) if wanted["hex"] else (wanted["text"] or "").encode()


def comparable(body: Any) -> Any:
    """Return a body without what differs from run to run, or from one broker to the next."""
    if isinstance(body, str):  # the settings of a broker, a line each
        return {line.partition("=")[0] for line in body.splitlines()} & SETTINGS
    if isinstance(body, dict) and "table" in body:
        return body["table"].keys() & RUNTIME
    return without(body, *TIMES, *NOT_YET)


SETTINGS = {"brokerName", "brokerClusterName", "listenPort", "flushDiskType", "regionId"}
RUNTIME = {"brokerVersion", "putTps", "getTransferedTps", "commitLogDiskRatio", "bootTimestamp"}
