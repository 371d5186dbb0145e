"""A genuine broker of 4.9.7 and ours are asked the same things at random, and answer alike.

What differs on purpose (docs/compatibility.md) is not asked. Times, addresses and physical offsets
are each broker's own, and so is what later requests make of them.
"""

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstore.broker.testing import Broker
from rocketstore.config.option import broker_conf_key
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.metadata_json import loads
from rocketstore.remoting.command import Command
from support.both_sides import small_config
from support.broker_wire import Wire
from support.genuine_broker import GenuineBroker, genuine_class_path
from support.java_store import require_java
from support.name_server import name_server
from support.oracle.record import decode_record
from support.patience import PATIENCE_S

pytestmark = [pytest.mark.java]

SEEDS, REQUESTS = 2, 300
SETTINGS = {"messageDelayLevel": "1h 2h", "mappedFileSizeCommitLog": 4 << 20}
CLOSED = ("auto_create_topic_enable", "auto_create_subscription_group", "cluster_topic_enable")
"""Off where topics and groups are made by administrators, as many run it."""

NUMBER, PLACE = "number", "place"  # of a message that was sent: in its queue, and in the log

TOPICS, GROUPS = ["t#", "t#", "t#", "u#", "%RETRY%g#", "%DLQ%g#"], ["g#", "g#", "h#"]
QUEUE = {"topic": TOPICS, "queueId": [0, 0, 0, 1, 2, 7], "consumerGroup": GROUPS}
HALF = "TRAN_MSG\1true\2PGROUP\1P\2UNIQ_KEY\1h\2WAIT\1true"
TEXTS = [
    "", "TAGS\1a", "TAGS\1b\2WAIT\1true\2", "KEYS\1k l\2UNIQ_KEY\1u\2WAIT\1false", "x\1y\1z",
    "DELAY\0011\2WAIT\1true\2TAGS\1a", "DELAY\0010\2CLUSTER\1x", "DELAY\00199", HALF, HALF,
]  # fmt: skip
SEND = {
    "a": ["P"], "b": TOPICS, "c": ["TBW102", "TBW102", "none"], "d": [1, 4, 8],
    "e": QUEUE["queueId"], "f": [0, 0, 2, 0x200], "g": [1, -5, 4_102_444_800_000], "h": [0, 7, -1],
    "i": TEXTS, "j": [0, 1], "k": ["true", "false"], "l": [3, 16], "m": ["false", "1"],
}  # fmt: skip
LAST = {**SEND, "b": ["%RETRY%g#"], "i": ["TAGS\1a"], "j": [1, 16], "l": [1]}
BATCH = {**SEND, "i": ["", "WAIT\1true", "TAGS\1z\2"], "m": ["true"]}
ASK = {  # of what is not sent: each request looks at some of them
    **QUEUE, "sysFlag": [0, 4, 4, 5], "queueOffset": [0, 0, 10**9, -1, NUMBER, NUMBER],
    "maxMsgNums": [0, 1, 32, 99], "suspendTimeoutMillis": [0], "subVersion": [0, 5],
    "subscription": ["*", "a", "a || b", " b ", "a||", "x > 1"], "commitOffset": [0, 3, -1, NUMBER],
    "producerGroup": ["P", "P", "Q"], "tranStateTableOffset": [NUMBER], "commitLogOffset": [PLACE],
    "commitOrRollback": [8, 12], "offset": [PLACE], "group": GROUPS, "delayLevel": [0, 1, -1],
    "maxReconsumeTimes": [16, 1, 0], "unitMode": ["true", "false"], "key": ["k", "u", "none"],
    "maxNum": [1, 64], "beginTimestamp": [0], "endTimestamp": [0, 2**62], "clientID": ["c"],
    "timestamp": [0, 1, 10**15], "readQueueNums": [4, 8], "writeQueueNums": [4, 8],
    "perm": [6, 6, 6, 4, 2, 0], "topicFilterType": ["SINGLE_TAG"],
}  # fmt: skip
LOCK = '{"clientId":"c%d","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}'
GROUP = '{"groupName":"h#","consumeEnable":%s,"retryMaxTimes":%d}'
BEAT = (
    '{"clientID":"c","consumerDataSet":[{"groupName":"g#","messageModel":%d,"consumeType":1,'
    '"consumeFromWhere":0,"subscriptionDataSet":[{"topic":"t#","subString":"a","subVersion":%d,'
    '"tagsSet":["a"],"codeSet":[97]}]}]}'
)
KINDS: list[tuple[int, list[int], dict[str, list[Any]], list[str]]] = [
    (20, [310], SEND, ["", "body"]), (3, [310], LAST, ["again"]), (18, [11], ASK, [""]),
    (4, [320], BATCH, [encode_client_batch([(7, b"1", b""), (0, b"2", b"TAGS\1a\2")]).decode()]),
    (30, [12, 14, 15, 29, 30, 31, 32, 33, 38, 202, 203, 208], ASK, [""]),
    (12, [36, 36, 37], ASK, [""]), (3, [17, 17, 35], ASK, [""]),
    (3, [34], {}, [BEAT % one for one in ((1, 0), (1, 5), (0, 0))]),
    (2, [200], {}, [GROUP % one for one in (("true", 16), ("true", 1), ("false", 16))]),
    (2, [41, 42], {}, [LOCK % one for one in (0, 1)]),
]  # fmt: skip
"""How often, codes, what each field may be, bodies; # is the number of the run."""
OWN = {  # what is each broker's own
    "physicalOffset", "preparedTransactionOffset", "storeTimestamp", "storeHost", "bornHost",
    "clientAddr", "ORIGIN_MESSAGE_ID", "msgId", "timestamp", "indexLastUpdateTimestamp",
    "indexLastUpdatePhyoffset",
}  # fmt: skip


@pytest.fixture(scope="module", params=[(), CLOSED], ids=["open", "closed"])
def wires(request):
    require_java(genuine_class_path)
    off = {broker_conf_key(field): "false" for field in request.param}
    with name_server() as one, name_server() as other, GenuineBroker() as genuine:
        address = genuine.start_broker(one, brokerName="broker-a", **SETTINGS, **off)
        own = dict.fromkeys(request.param, False)
        ours = Broker(None, small_config(**SETTINGS), namesrv_addr=other, **own)
        with ours, Wire(address) as genuine_wire, Wire(ours.address) as our_wire:
            yield [genuine_wire, our_wire]


def records(data: bytes) -> Iterator[dict[str, Any]]:
    while data:
        size, base = int.from_bytes(data[:4]), int.from_bytes(data[28:36])
        yield decode_record(memoryview(data)[:size], 0, base=base).to_dict()
        data = data[size:]


def common(value: Any) -> Any:
    """Return a value without what is each broker's own, and without the order of Java's sets."""
    if isinstance(value, dict):
        return {name: common(one) for name, one in value.items() if name not in OWN}
    return sorted(map(common, value), key=str) if isinstance(value, list) else value


def said(code: int, reply: Command) -> tuple[Any, ...]:
    """Return what a reply says, as values."""
    body: Any = reply.body
    if code in (11, 12, 33):
        body = list(records(body))
    elif code in (202, 208):  # whose keys are objects
        body = re.findall(r"{[^{}]*}:{[^{}]*}", re.sub(r'(stamp":)[1-9]\d*', r"\1T", body.decode()))
    elif body:
        body = loads(body)
    is_raised = code == 37 and reply.code  # in the words of an exception
    remark = "" if is_raised else re.sub(r"127\.0\.0\.1:\d+", "", reply.remark or "")
    return reply.code, remark, common(reply.fields or {}), common(body)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_genuine_broker_and_ours_answer_alike(wires, seed):
    chance = random.Random(seed)
    sent: list[list[dict[str, Any]]] = [[{NUMBER: 0, PLACE: 0}] * 2]
    halves: list[list[dict[str, Any]]] = []
    for _ in range(REQUESTS):
        [(_, codes, fields, bodies)] = chance.choices(KINDS, [kind[0] for kind in KINDS])
        picked = {name: chance.choice(values) for name, values in fields.items()}
        code, body = chance.choice(codes), chance.choice(bodies).replace("#", str(seed)).encode()
        if code == 37 and not halves:  # each ends once
            continue
        message = halves.pop() if code == 37 else chance.choice(sent)
        both = [
            {name: str(own.get(one, one)).replace("#", str(seed)) for name, one in picked.items()}
            for own in message
        ]
        until = time.monotonic() + PATIENCE_S / 4  # no client may be silent for long
        while True:  # the genuine broker dispatches a little later
            asked = zip(wires, both, strict=True)
            replies = [wire.ask(code, fields, body) for wire, fields in asked]
            theirs, ours = (said(code, one) for one in replies)
            if theirs == ours or code in (310, 320, 36, 37) or time.monotonic() > until:
                break
        assert ours == theirs, (code, both, body)
        found = [one.fields or {} for one in replies]
        if all("msgId" in one for one in found):
            places = [int(one["msgId"].partition(",")[0][16:], 16) for one in found]
            pairs = zip(found, places, strict=True)
            sent.append([{NUMBER: one["queueOffset"], PLACE: place} for one, place in pairs])
            if picked["i"] == HALF:
                halves.append(sent[-1])
