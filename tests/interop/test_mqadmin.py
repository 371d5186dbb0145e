"""The genuine mqadmin of 4.9.8 says of a broker of ours what it says of a genuine one.

It runs within the JVM of the genuine broker.
"""

import contextlib
import json
import re
import time
from typing import NamedTuple

import pytest

from rocketstore.broker.testing import Broker
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.genuine_broker import GenuineBroker, genuine_class_path
from support.java_store import require_java
from support.patience import wait_until

pytestmark = [pytest.mark.java]

OF_ITS_OWN = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?"  # a time
    r"|V4_9_\d"
    r"|127\.0\.0\.1:\d+ *"  # of a client
    r"| +-?\d+\.\d\d [01]\.\d{4}$"  # of clusterList: how old the log is, how full the disk
    r"| +\d+\.\d\d(?=\(\d+,\d+ms\))",  # and messages per second, of the last few
    re.MULTILINE,
)
IN_NO_ORDER = {"topicList", "consumerConnection"}
EQUAL_STATUS = {
    "commitLogMaxOffset", "commitLogMinOffset", "dispatchBehindBytes",
    "msgGetTotalTodayNow", "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning",
    "putMessageFailedTimes", "putMessageSizeTotal", "putMessageTimesTotal",
    "sendThreadPoolQueueSize",
}  # fmt: skip


class Side(NamedTuple):
    """A broker with a name server of its own, and the mqadmin that is asked about it."""

    genuine: GenuineBroker
    name_server: str
    address: str

    def says(self, command: str, *options: str) -> str:
        own = [one.replace("BROKER", self.address) for one in options]
        said = self.genuine.mqadmin(command, "-n", self.name_server, *own)
        said = OF_ITS_OWN.sub("*", said.replace(self.address, "BROKER"))
        # Topics and connections come as sets of Java.
        return "\n".join(sorted(said.splitlines())) if command in IN_NO_ORDER else said


def fill(address: str) -> None:
    """Put five messages in two queues; a group got three of them, and is gone."""
    topics = [
        {"topic": topic, "subString": "*", "subVersion": 1} for topic in ("orders", "%RETRY%G")
    ]
    group = {"groupName": "G", "subscriptionDataSet": topics}
    heartbeat = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
    with Wire(address) as client:
        for queue_id in (0, 1, 0, 1, 0):
            fields = {**SEND, "b": "orders", "e": queue_id, "g": int(time.time() * 1000)}
            assert client.ask(310, fields, b"x").code == 0
        assert client.ask(34, None, heartbeat).code == 0
        for queue_id, offset in ((0, 1), (1, 2)):
            place = {"topic": "orders", "queueId": queue_id, "consumerGroup": "G"}
            client.ask(15, {**place, "commitOffset": offset})
        last = {"topic": "orders", "queueId": 0}
        wait_until(lambda: client.ask(30, last).fields == {"offset": "3"}, "all are dispatched")
    with Wire(address) as client:
        wait_until(lambda: client.ask(38, {"consumerGroup": "G"}).code == 1, "the group is gone")


@pytest.fixture(scope="module")
def sides():
    """A genuine broker, and ours."""
    require_java(genuine_class_path)
    with GenuineBroker() as genuine, Broker() as ours:
        name_server = genuine.start_name_server()
        address = genuine.start_broker(name_server, brokerName="broker-a")
        theirs = Side(genuine, name_server, address)
        # It has nothing to tell until it has counted for a second.
        wait_until(lambda: theirs.says("brokerStatus", "-b", "BROKER") != "", "it counts")
        yield theirs, Side(genuine, ours.name_server, ours.address)


def status(side: Side) -> dict[str, str]:
    lines = side.says("brokerStatus", "-b", "BROKER").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key.strip().partition("_/")[0]: value.strip() for key, _, value in pairs}


CHANGES = (
    ("updateTopic", "-b", "BROKER", "-t", "orders", "-r", "4", "-w", "3"),
    ("updateTopic", "-c", "DefaultCluster", "-t", "sorted", "-o", "true", "-p", "4"),
    ("updateTopic", "-b", "BROKER", "-t", "TBW102"),
    ("updateSubGroup", "-b", "BROKER", "-g", "G", "-r", "3"),
    ("updateSubGroup", "-c", "DefaultCluster", "-g", "H", "-q", "2"),
)
QUESTIONS = (
    ("topicList",),
    ("topicList", "-c"),
    ("topicRoute", "-t", "orders"),
    ("topicRoute", "-t", "sorted", "-l"),
    ("topicRoute", "-t", "nowhere"),
    ("clusterList",),
    ("clusterList", "-m"),
    ("topicStatus", "-t", "orders"),
    ("topicStatus", "-t", "nowhere"),
    ("consumerProgress", "-g", "G"),
    ("consumerProgress", "-g", "H"),
    ("consumerProgress",),
)
SILENT = {CHANGES[2], QUESTIONS[4], QUESTIONS[8], QUESTIONS[10]}
"""Those that find fault, which mqadmin says elsewhere."""


LATE_TOPICS = {"RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"}
"""Of transactions: a genuine broker has them once it first checks, or discards, one."""


def without_late_topics(said: str) -> str:
    return "\n".join(one for one in said.splitlines() if LATE_TOPICS.isdisjoint(one.split()))


def test_mqadmin_says_the_same_of_a_genuine_broker_and_of_ours(sides):
    theirs, ours = sides
    for command in CHANGES:
        said = theirs.says(*command)
        assert ours.says(*command) == said
        assert (said == "") == (command in SILENT)
    for side in sides:
        fill(side.address)
    for command in QUESTIONS:
        said, own_said = (without_late_topics(side.says(*command)) for side in sides)
        assert own_said == said
        assert (said == "") == (command in SILENT)

    told, own = status(theirs), status(ours)
    assert told.keys() - own.keys() == set()
    assert {key: own[key] for key in EQUAL_STATUS} == {key: told[key] for key in EQUAL_STATUS}


ONLINE = (
    ("consumerProgress",),
    ("consumerConnection", "-g", "online"),
    ("consumerConnection", "-g", "watching"),
)


def beat(client: Wire, name: str, group: dict[str, object]) -> None:
    topics = ("orders", "%RETRY%{groupName}".format(**group))
    subscriptions = [{"topic": topic, **SUBSCRIPTION} for topic in topics]
    data = {"clientID": name, "consumerDataSet": [{**group, "subscriptionDataSet": subscriptions}]}
    assert client.ask(34, None, json.dumps(data).encode()).code == 0


SUBSCRIPTION = {
    "subString": "paid || sent", "subVersion": 7, "expressionType": "TAG", "classFilterMode": False,
    "tagsSet": ["paid", "sent"], "codeSet": [3433164, 3526552],
}  # fmt: skip


def test_mqadmin_says_the_same_of_consumers_that_are_online(sides):
    pushes = {
        "groupName": "online",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
    }
    pulls = {
        "groupName": "watching",
        "consumeType": "CONSUME_ACTIVELY",
        "messageModel": "BROADCASTING",
        "consumeFromWhere": "CONSUME_FROM_TIMESTAMP",
    }
    with contextlib.ExitStack() as stack:
        for side in sides:
            for name, group in (("one", pushes), ("two", pushes), ("three", pulls)):
                client = stack.enter_context(Wire(side.address))
                beat(client, name, group)
        theirs, ours = sides
        for command in ONLINE:
            said = theirs.says(*command)
            assert ours.says(*command) == said
            assert "online" in said or "orders" in said


def test_send_by_long_names_needs_the_same_fields(sides):
    numbers = ("defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag")
    full: dict[str, object] = {"producerGroup": "P", "topic": "orders", "defaultTopic": "TBW102"}
    full |= dict.fromkeys(numbers, 0)
    lacking = [{name: full[name] for name in full if name != one} for one in full]
    codes = []
    for side in sides:
        with Wire(side.address) as client:
            topic = {"topic": "orders", "readQueueNums": 4, "writeQueueNums": 3, "perm": 6}
            topic |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": False}
            assert client.ask(17, topic).code == 0
            codes.append([client.ask(10, one).code for one in (full, *lacking)])
    assert codes[0] == codes[1] == [0, 0, 1, 0, 0, 1, 1, 1, 1]


def test_both_name_the_topics_of_the_broker_itself_and_the_groups_of_a_topic(sides):
    for code, topic in ((305, {}), (300, {"topic": "orders"}), (300, {"topic": "nowhere"})):
        said = []
        for side in sides:
            with Wire(side.address) as client:
                body = json.loads(client.ask(code, topic).body)
            said.append({name: sorted(names) for name, names in body.items()})
        assert said[0] == said[1]
        assert any(said[0].values()) == (topic != {"topic": "nowhere"})
