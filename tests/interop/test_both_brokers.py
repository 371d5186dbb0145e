"""A genuine broker of 4.9.7 and ours are asked the same things at random, and answer alike.

What differs on purpose (docs/compatibility.md) is not asked. Times, addresses and physical offsets
are each broker's own, and so is what later requests make of them.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from rocketstore.broker.testing import Broker
from rocketstore.config.option import broker_conf_key
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.metadata_json import loads
from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.command import Command
from rocketstore.remoting.requests import RequestTable
from support.both_sides import small_config
from support.broker_desk import text_of
from support.broker_wire import Wire
from support.genuine_broker import GenuineBroker, genuine_class_path
from support.java_store import require_java
from support.name_server import name_server
from support.oracle.record import decode_record
from support.patience import PATIENCE_MS, PATIENCE_S

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


@contextmanager
def both_brokers(*off: str, **settings: Any) -> Iterator[list[str]]:
    """Run both, with some settings off; the value is the genuine one's address and ours."""
    require_java(genuine_class_path)
    keys = {broker_conf_key(field): "false" for field in off}
    with name_server() as one, name_server() as other, GenuineBroker() as genuine:
        address = genuine.start_broker(one, brokerName="broker-a", **settings, **keys)
        own = dict.fromkeys(off, False)
        with Broker(None, small_config(**settings), namesrv_addr=other, **own) as ours:
            yield [address, ours.address]


@pytest.fixture(scope="module", params=[(), CLOSED], ids=["open", "closed"])
def wires(request):
    with (
        both_brokers(*request.param, **SETTINGS) as two,
        Wire(two[0]) as one,
        Wire(two[1]) as other,
    ):
        yield [one, other]


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


class Line(RemotingClient):
    """A connection to a broker; `told` are its notices that a group has changed."""

    def __init__(self, address: str) -> None:
        super().__init__(RequestTable((), unknown=lambda call: self.told.append(call.command.code)))
        self._address, self.told = address, list[int]()

    def say(self, code: int, fields: Mapping[str, Any], body: str = "") -> asyncio.Task[Command]:
        texts = {name: text_of(one) for name, one in fields.items()}
        request = Command(code, fields=texts, body=body.encode())
        return asyncio.create_task(self.ask(self._address, request, timeout_ms=PATIENCE_MS))


class Walk:
    """Members of a group, each by a connection to both brokers; the pulls of the last are held."""

    def __init__(self, seed: int, addresses: list[str]) -> None:
        self._chance, self._seed, self._addresses = random.Random(seed), f"walk{seed}", addresses
        self._lines = [[Line(one) for one in addresses] for _ in range(4)]
        self._members: set[int] = set()
        self._held: list[tuple[int, list[asyncio.Task[Command]]]] = []
        self._lengths = [0, 0]

    async def both(
        self, code: int, fields: Mapping[str, Any], body: str = "", *, line: int = 0,
        until: Callable[[Command], bool] = lambda _: True,
    ) -> None:  # fmt: skip
        """Ask both, again until they say what is waited for; assert that they say the same."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                asked = [one.say(code, fields, body) for one in self._lines[line]]
                if all(map(until, await asyncio.gather(*asked))):
                    return await alike(code, asked)
                await asyncio.sleep(0.01)

    async def send(self, queue: int | None = None, tag: str = "a") -> None:
        """Send a message; pulls of its queue that are held are answered, at the latest in 5 s."""
        queue = self._chance.choice([0, 1]) if queue is None else queue
        own = {"b": [f"t{self._seed}"], "e": [queue], "i": [f"TAGS\1{tag}"]}
        await self.both(310, {name: values[0] for name, values in {**SEND, **own}.items()})
        self._lengths[queue] += 1
        told = {"offset": str(self._lengths[queue])}
        await self.both(30, self.pull(queue, 0), until=lambda one: one.fields == told)
        for held in [one for one in self._held if one[0] == queue]:
            self._held.remove(held)
            await alike(11, held[1])

    async def hold(self) -> None:
        queue = self._chance.choice([0, 1])
        wanted, flags = self._chance.choice(["*", "a", "a || b"]), self._chance.choice([2, 3, 6, 7])
        pull = {**self.pull(queue, self._lengths[queue]), "subscription": wanted, "sysFlag": flags}
        asked = [one.say(11, pull) for one in self._lines[-1]]
        if (await asyncio.wait(asked, timeout=0.1))[0]:
            await alike(11, asked)  # it is refused
        else:
            self._held.append((queue, asked))

    def pull(self, queue: int, offset: int) -> dict[str, Any]:
        names = {"topic": f"t{self._seed}", "consumerGroup": f"g{self._seed}", "queueId": queue}
        more = {"queueOffset": offset, "sysFlag": 4, "maxMsgNums": 32, "commitOffset": offset}
        return {**names, **more, "suspendTimeoutMillis": PATIENCE_MS, "subVersion": 0}

    async def change(self, *, is_open: bool = False) -> None:
        """Change what topic and group allow."""
        choice = self._chance.choice
        perm, count = (6, 2) if is_open else (choice([6, 4, 2]), choice([1, 2]))
        sizes = {"perm": perm, "readQueueNums": count, "writeQueueNums": 2, "topicSysFlag": 0}
        kind = {"topicFilterType": "SINGLE_TAG", "order": False, "defaultTopic": ""}
        await self.both(17, {"topic": f"t{self._seed}", **sizes, **kind})
        told, open_to_all = choice([True, False]), is_open or choice([True, False])
        more = {"consumeEnable": open_to_all, "notifyConsumerIdsChangedEnable": told}
        await self.both(200, {}, json.dumps({"groupName": f"g{self._seed}", **more}))

    async def come_or_go(self) -> None:
        """Let a member say what it wants, or lose its connection."""
        line = self._chance.randrange(3)
        if self._chance.random() < 0.7:
            beat = (BEAT % (1, time.time_ns())).replace("#", self._seed)
            await self.both(34, {}, beat.replace('"c"', f'"c{line}"'), line=line)
            self._members.add(line)
        else:
            await asyncio.gather(*(one.close() for one in self._lines[line]))
            self._lines[line] = [Line(one) for one in self._addresses]
            self._members.discard(line)
        ids, group = {b'"c%d"' % one for one in self._members}, {"consumerGroup": f"g{self._seed}"}
        await self.both(38, group, until=lambda one: set(re.findall(rb'"c\d"', one.body)) == ids)
        for two in self._lines:
            await self.both(38, group, until=lambda _, two=two: two[0].told == two[1].told)

    async def go(self, steps: int) -> None:
        await self.change(is_open=True)
        ways = [self.send, self.hold, self.come_or_go]
        for way in self._chance.choices([*ways * 4, self.change], k=steps):
            await way()
        await self.change(is_open=True)
        for queue in (0, 1):
            await self.send(queue, "b")  # which some that are held do not ask for
            await self.both(11, self.pull(queue, 0))
            await self.both(14, self.pull(queue, 0))
        assert not self._held
        await asyncio.gather(*(one.close() for two in self._lines for one in two))


async def walks(addresses: list[str]) -> None:
    await asyncio.gather(*(Walk(seed, addresses).go(80) for seed in range(4)))


async def alike(code: int, asked: Iterable[asyncio.Task[Command]]) -> None:
    theirs, ours = (said(code, one) for one in await asyncio.gather(*asked))
    assert ours == theirs


def test_members_of_a_group_are_answered_and_told_alike():
    """Their pulls are held, and they come and go, while topic and group change."""
    with both_brokers() as addresses:
        asyncio.run(walks(addresses))
