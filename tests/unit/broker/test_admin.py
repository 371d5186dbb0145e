"""What administrators ask, beyond the recorded pairs."""

import cProfile
import json

import pytest

from rocketstore.broker.counts import DayTotals
from rocketstore.broker.queue_locks import LOCK_LIFE_MS, MOST_LOCKS
from rocketstore.format.metadata_json import (
    SubscriptionGroup,
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
    decode_table,
    encode_table,
)
from rocketstore.rules import limits
from rocketstore.rules.limits import MOST_QUEUES
from rocketstore.tables import topic_settings
from support.broker_desk import Desk, Peer


def test_group_that_is_settled_is_on_the_disk_and_counts_at_once(desk):
    body = b'{"groupName":"G","consumeEnable":false,"retryMaxTimes":3}'
    assert desk.answer(200, None, body).code == 0
    table = decode_table(
        (desk.store.layout.config / "subscriptionGroup.json").read_bytes(), SubscriptionGroupTable
    )
    assert table.subscription_group_table["G"].retry_max_times == 3
    assert table.data_version
    assert table.data_version.counter == 1
    assert table.data_version.timestamp == desk.clock.now_ms
    shown = json.loads(desk.answer(201).body)["subscriptionGroupTable"]
    assert shown["G"]["consumeEnable"] is False
    assert "TOOLS_CONSUMER" in shown


def test_topic_that_is_settled_keeps_what_else_the_file_says_of_it(desk):
    path = desk.store.layout.config / "topics.json"
    desk.send("orders")
    marked = json.loads(path.read_text()) | {"more": 1}
    marked["topicConfigTable"]["orders"]["mark"] = "x"
    path.write_text(json.dumps(marked))
    header = {"topic": "orders", "readQueueNums": 9, "writeQueueNums": 2, "perm": 4, "order": True}
    assert desk.answer(17, header).code == 0
    table = json.loads(path.read_text())
    assert (table["more"], table["dataVersion"]["counter"]) == (1, 2)
    entry = table["topicConfigTable"]["orders"]
    assert (entry["mark"], entry["readQueueNums"], entry["perm"]) == ("x", 9, 4)
    assert entry["order"] is True
    assert b'"order":true' in desk.answer(21).body
    assert decode_table(path.read_bytes(), TopicTable).topic_config_table["orders"].perm == 4
    assert desk.answer(17, header | {"order": False}).code == 0
    assert b'"order":true' not in desk.answer(21).body


SETTLES = [
    (17, {"topic": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}, b""),
    (200, None, b'{"groupName":"G"}'),
]


@pytest.mark.parametrize(("code", "header", "body"), SETTLES)
@pytest.mark.parametrize("broker_id", [0, 1])
def test_topics_and_groups_of_a_slave_are_those_of_its_master(
    tmp_path, code, header, body, broker_id
):
    desk = Desk(tmp_path, broker_id=broker_id)
    answer = desk.answer(code, header, body)
    assert (answer.code, "please execute it from master" in (answer.remark or "")) == (
        (1, True) if broker_id else (0, False)
    )
    made = desk.topics.get("orders") or desk.topics.group_table.subscription_group_table.get("G")
    assert bool(made) is not bool(broker_id)
    desk.close()


def test_half_messages_can_be_looked_at_as_those_of_any_topic(desk):
    """And discarded ones: mqadmin lists these topics, and clients find their routes."""
    listed = json.loads(desk.answer(21).body)["topicConfigTable"]
    for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"):
        assert (listed[topic]["readQueueNums"], listed[topic]["perm"]) == (1, 6)
    desk.dispatched("orders", b"half", "TRAN_MSG\1true\2PGROUP\1P\2UNIQ_KEY\1u", f=4)
    stats = desk.answer(202, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}).body
    assert b'"maxOffset":1' in stats


def test_topic_that_somebody_else_marks_is_found(desk):
    assert desk.topics.get("batches") is None
    desk.store.batch_topics.create("batches", 2)
    found = desk.topics.get("batches")
    assert found
    assert found.write_queue_nums == 2


def test_group_that_is_gone_from_a_topic_has_no_lag_there(desk):
    for topic in ("old", "new"):
        desk.send(topic)
        desk.store.consumer_offsets.set(topic, "G", 0, 0)
    desk.store.wait_dispatched()

    def topics() -> set[str]:
        body = desk.answer(208, {"consumerGroup": "G"}).body.decode()
        return {topic for topic in ("old", "new") if f'"{topic}"' in body}

    assert topics() == {"old", "new"}
    group: dict[str, object] = {"groupName": "G", "subscriptionDataSet": []}
    desk.answer(34, None, json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode())
    assert topics() == {"old", "new"}  # a consumer that pulls by queue subscribes to nothing
    group["subscriptionDataSet"] = [{"topic": "new"}]
    desk.answer(34, None, json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode())
    assert topics() == {"new"}
    assert b'"brokerOffset":1,"consumerOffset":0' in desk.answer(208, {"consumerGroup": "G"}).body


def test_groups_of_a_topic_are_those_that_consume_it_and_those_that_did(desk):
    for topic, group in (("orders", "was"), ("orders", "both"), ("order", "no"), ("orderss", "no")):
        desk.store.consumer_offsets.set(topic, group, 0, 0)
    for group, topic in (("is", "orders"), ("both", "orders"), ("not", "others")):
        data = {"groupName": group, "subscriptionDataSet": [{"topic": topic}]}
        desk.answer(34, None, json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode())
    groups = json.loads(desk.answer(300, {"topic": "orders"}).body)["groupList"]
    assert sorted(groups) == ["both", "is", "was"]
    assert desk.answer(300, {"topic": "nothing"}).body == b'{"groupList":[]}'
    assert desk.answer(300).code == 1


PULL = {
    "consumerGroup": "G", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
    "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
}  # fmt: skip


def test_rate_of_a_group_is_that_of_its_last_minute(desk):
    given = desk.table.pulling.given

    def rate(**more: object) -> float:
        stats = desk.answer(208, {"consumerGroup": "G", **more}).body.decode()
        return float(stats.partition('"consumeTps":')[2].partition(",")[0])

    for body in (b"1", b"2", b"3"):
        desk.send("orders", body)
    desk.store.consumer_offsets.set("orders", "G", 0, 0)
    desk.store.wait_dispatched()
    desk.answer(11, PULL)
    assert rate() == 0
    given.sample()  # it was given three messages in the ten seconds before
    assert (rate(), rate(topic="orders")) == (0.3, 0.3)
    desk.clock.now_ms += 10_000
    desk.answer(11, PULL)
    given.sample()
    assert rate() == 0.3
    for _ in range(5):
        desk.clock.now_ms += 10_000
        given.sample()
    assert rate() == 0.05  # only the second three are of the last minute
    desk.clock.now_ms += 10_000
    given.sample()
    assert rate() == 0


def test_totals_of_the_day_begin_again_at_midnight(desk):
    totals = DayTotals(desk.store)

    def told() -> list[str]:
        totals.note_midnight()
        names = ("YesterdayMorning", "TodayMorning", "TodayNow")
        return [totals.told()[f"msg{what}Total{name}"] for name in names for what in ("Put", "Get")]

    desk.dispatched("orders")
    desk.answer(11, PULL)
    assert told() == ["0", "0", "0", "0", "1", "1"]
    desk.clock.now_ms += 86_400_000
    assert told() == ["0", "0", "1", "1", "1", "1"]
    desk.send("orders")
    desk.clock.now_ms += 86_400_000
    assert told() == ["1", "1", "2", "1", "2", "1"]


def locks(desk: Desk, client: str, group: str = "G", count: int = 1) -> int:
    """Return how many of so many queues a client is given."""
    queues = [{"brokerName": "b", "queueId": one, "topic": "t"} for one in range(count)]
    body = {"consumerGroup": group, "clientId": client, "mqSet": queues}
    found = desk.answer(41, None, json.dumps(body).encode(), peer=Peer())
    return len(json.loads(found.body)["lockOKMQSet"])


def test_lock_that_is_not_renewed_is_given_to_another(desk):
    assert [locks(desk, "a"), locks(desk, "b"), locks(desk, "a")] == [1, 0, 1]
    desk.clock.now_ms += 60_000
    assert locks(desk, "b") == 0
    desk.clock.now_ms += 1
    assert [locks(desk, "b"), locks(desk, "a")] == [1, 0]


def test_locks_belong_to_a_group_and_a_client_and_a_queue_is_given_once(desk):
    queue = {"brokerName": "b", "queueId": 0, "topic": "t"}
    body = {"consumerGroup": "G", "clientId": "c", "mqSet": [queue, queue]}
    found = desk.answer(41, None, json.dumps(body).encode())
    assert json.loads(found.body) == {"lockOKMQSet": [queue]}
    for name in ("consumerGroup", "clientId"):
        refused = desk.answer(41, None, json.dumps({**body, name: None}).encode())
        assert (refused.code, name in (refused.remark or "")) == (1, True)


def test_locks_of_groups_that_are_made_up_take_no_memory_in_the_end(desk):
    asked = (("G", MOST_LOCKS - 2), ("H", 3), ("H", 4), ("I", 1))
    assert [locks(desk, "c", *some) for some in asked] == [MOST_LOCKS - 2, 2, 2, 0]
    desk.clock.now_ms += LOCK_LIFE_MS + 1
    assert locks(desk, "c", "I") == 1


def test_settings_are_answered_as_a_file_has_them(desk):
    lines = desk.answer(26).body.decode().splitlines()
    assert {"brokerName=broker-a", "autoCreateTopicEnable=true", "retention=false"} <= set(lines)


@pytest.mark.parametrize("count", [-1, 65_537, 2**31 - 1])
def test_more_queues_than_anybody_has_are_refused(desk, count):
    header = {"topic": "many", "readQueueNums": 1, "writeQueueNums": count, "perm": 6}
    assert desk.answer(17, header).code == 1
    assert desk.topics.get("many") is None
    assert desk.answer(17, {**header, "writeQueueNums": 65_536}).code == 0
    body = b'{"groupName":"G","retryQueueNums":%d}' % count
    assert desk.answer(200, None, body).code == 1
    assert desk.groups.find("G") is None


@pytest.mark.parametrize(("said", "code"), [("MULTI_TAG", 0), ("WHAT", 1), ("multi_tag", 1)])
def test_a_type_of_filter_that_a_broker_of_4_9_would_not_start_with_is_refused(desk, said, code):
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    answer = desk.answer(17, {"topic": "T", "topicFilterType": said, **queues})
    assert answer.code == code
    assert (desk.topics.get("T") is None) == (code == 1)
    assert code == 0 or said in (answer.remark or "")


def test_a_table_that_says_a_thousand_million_queues_makes_nobody_count_to_it(desk, monkeypatch):
    path = desk.store.layout.config / "topics.json"
    path.parent.mkdir(exist_ok=True)
    many = TopicConfig(topic_name="many", read_queue_nums=10**9, write_queue_nums=10**9)
    path.write_text(encode_table(TopicTable(topic_config_table={"many": many})))
    known = desk.topics.get("many")
    assert known
    assert (known.read_queue_nums, known.write_queue_nums) == (MOST_QUEUES, MOST_QUEUES)
    assert json.loads(desk.answer(21).body)["topicConfigTable"]["many"]["readQueueNums"] == 65_536
    desk.send("orders")
    assert '"readQueueNums":1000000000' in path.read_text()  # which is for who wrote it to mend
    for module in (limits, topic_settings):
        monkeypatch.setattr(module, "MOST_QUEUES", 3)
    desk.send("bills")
    assert desk.answer(202, {"topic": "many"}).body.count(b'"queueId"') == 3
    desk.store.consumer_offsets.set("many", "G", 0, 1)
    assert desk.answer(208, {"consumerGroup": "G"}).body.count(b'"queueId"') == 3


def test_a_group_with_a_thousand_million_queues_of_second_tries_gets_as_many_as_there_may_be(desk):
    path = desk.store.layout.config / "subscriptionGroup.json"
    path.parent.mkdir(exist_ok=True)
    many = SubscriptionGroup(group_name="G", retry_queue_nums=10**9)
    path.write_text(encode_table(SubscriptionGroupTable(subscription_group_table={"G": many})))
    desk.answer(34, None, b'{"clientID":"c","consumerDataSet":[{"groupName":"G"}]}')
    retries = desk.topics.get("%RETRY%G")
    assert retries
    assert retries.write_queue_nums == MOST_QUEUES


def test_what_a_group_consumed_is_found_without_a_look_at_the_other_groups(desk):
    """Counted in calls; all offsets were copied and sorted for each group that was asked about."""
    offsets = desk.store.consumer_offsets
    desk.send("orders")
    for number in range(1000):
        offsets.set("orders", f"group-{number}", 0, 1)
    assert b'"queueId":0' in desk.answer(208, {"consumerGroup": "group-1"}).body
    offsets.set("orders", "late", 0, 1)
    offsets.set("bills", "late", 0, 1)
    profile = cProfile.Profile()
    profile.enable()
    found = desk.answer(208, {"consumerGroup": "late"}).body
    profile.disable()
    assert found.count(b'"topic":"orders"') == 4
    assert offsets.topics_of("late") == ["bills", "orders"]
    assert sum(one.callcount for one in profile.getstats()) < 1000


def test_a_topic_more_costs_a_broker_of_many_topics_little(desk):
    """Counted in calls, for times say nothing on a busy machine; a read of it took 160 a topic."""
    count = 2000
    known = {f"t{number}": TopicConfig(topic_name=f"t{number}") for number in range(count)}
    path = desk.store.layout.config / "topics.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(encode_table(TopicTable(topic_config_table=known)))
    assert desk.send("t0").code == 0
    profile = cProfile.Profile()
    profile.enable()
    assert desk.send("new").code == 0
    profile.disable()
    calls = sum(row.callcount for row in profile.getstats())
    assert calls < 100 * count
