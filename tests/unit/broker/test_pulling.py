"""Pulls: what they find, how they are held, and what wakes them."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from threading import Semaphore, get_ident

import pytest

from rocketstore import Message, StoreConfig
from rocketstore.broker.held_pulls import LOOK_MS
from rocketstore.config import BrokerRole, FlushDiskType
from rocketstore.format.java_hash import string_hash
from rocketstore.format.metadata_json import SubscriptionGroup, TopicConfig
from rocketstore.remoting.command import Command
from rocketstore.storage.reading.pages import LONGEST_EXPRESSION
from support.broker_desk import AtOnce, Desk, Peer
from support.failing_disk import FailingDisk
from support.inside import parts_of, wait_until_led, workers_of
from support.patience import PATIENCE_S

PULL = {
    "consumerGroup": "G", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
    "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*",
    "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip


def pull(desk: Desk, *, peer: Peer | None = None, **changed: object) -> Command | None:
    return desk.call(11, {**PULL, **changed}, peer=peer)


def answered(desk: Desk, **changed: object) -> Command:
    return desk.answer(11, {**PULL, **changed})


def sweep_after(desk: Desk, wait_ms: int) -> None:
    desk.clock.now_ms += wait_ms
    desk.table.pulling.sweep()


@pytest.fixture
def orders(desk):
    """Two messages, of tags a and b."""
    for tag in "ab":
        assert desk.send("orders", properties=f"TAGS\1{tag}").code == 0
    desk.store.wait_dispatched()
    return desk


@pytest.mark.parametrize("expression_type", ["TAG", ""])
def test_what_is_there_is_answered_at_once(orders, expression_type):
    found = answered(orders, subscription="b", expressionType=expression_type)
    assert (found.code, found.remark) == (0, "FOUND")
    assert found.fields == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2",
    }  # fmt: skip
    assert found.body == orders.store.get_raw("orders", 0, 1).records
    for wanted in ("*", "", " ", " * "):
        both = answered(orders, subscription=wanted, expressionType=expression_type)
        assert both.body == orders.store.get_raw("orders", 0, 0).records


@pytest.mark.parametrize("enabled", [False, True])
def test_light_queues_and_their_groups_are_there_without_being_made(tmp_path, *, enabled):
    config = StoreConfig.small(enable_lmq=enabled, enable_multi_dispatch=True)
    off = {"auto_create_topic_enable": False, "auto_create_subscription_group": False}
    with closing(Desk(tmp_path, config, **off)) as desk:
        desk.answer(17, {"topic": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6})
        place = {"topic": "%LMQ%kitchen", "consumerGroup": "%LMQ%screen"}
        tables = [desk.topics.table.content, desk.topics.group_table]
        refused = pull(desk, **place)
        if not enabled:
            assert refused is not None
            assert refused.code == 26
            assert pull(desk, topic="%LMQ%kitchen", consumerGroup="TOOLS_CONSUMER").code == 17
            return
        assert refused is None, "it is held"
        desk.dispatched("orders", properties="INNER_MULTI_DISPATCH\1%LMQ%kitchen,copies")
        sweep_after(desk, 5_000)
        assert (desk.peer.last.code, desk.peer.last.remark) == (0, "FOUND")
        assert desk.peer.last.body == desk.store.get_raw("orders", 0, 0).records
        assert pull(desk, **place, queueId=1).code == 1
        assert desk.send("%LMQ%kitchen", e=1).code == 1
        desk.answer(15, {**place, "queueId": 0, "commitOffset": 1})
        assert desk.answer(14, {**place, "queueId": 0}).fields == {"offset": "1"}
        assert [desk.topics.table.content, desk.topics.group_table] == tables
        desk.answer(
            17, {"topic": "%LMQ%kitchen", "readQueueNums": 2, "writeQueueNums": 2, "perm": 0}
        )
        desk.answer(200, body=b'{"groupName":"%LMQ%screen","consumeEnable":false}')
        assert pull(desk, **place, queueId=1).code == 1
        assert pull(desk, **place, queueOffset=0).code == 0
        told = [desk.topics.table.content, desk.topics.group_table]
        assert "LMQ" not in str(told)


def test_bytes_in_the_middle_of_a_message_are_not_viewed_as_one(orders):
    viewed = orders.answer(33, {"offset": 1})
    assert (viewed.code, viewed.remark) == (1, "can not find message by the offset, 1")


@pytest.mark.parametrize("is_unique", [False, True])
def test_messages_of_a_key_are_no_more_than_the_setting_says(tmp_path, *, is_unique):
    with closing(Desk(tmp_path, StoreConfig.small(max_msgs_num_batch=3))) as desk:
        for number in range(5):
            assert desk.send("orders", b"%d" % number, "KEYS\1k\2UNIQ_KEY\1k").code == 0
        desk.store.wait_dispatched()
        asked = {"topic": "orders", "key": "k", "beginTimestamp": 0, "endTimestamp": 2**62}
        found = desk.answer(12, {**asked, "maxNum": 2**31 - 1, "_UNIQUE_KEY_QUERY": is_unique})
        assert found.body == desk.store.get_raw("orders", 0, 2).records  # the newest


def test_messages_of_a_unique_key_are_32_whatever_is_asked_for(desk):
    for number in range(40):
        assert desk.send("orders", b"%d" % number, "UNIQ_KEY\1k").code == 0
    desk.store.wait_dispatched()
    asked = {"topic": "orders", "key": "k", "beginTimestamp": 0, "endTimestamp": 2**62}
    found = desk.answer(12, {**asked, "maxNum": 1, "_UNIQUE_KEY_QUERY": True})
    assert found.body == desk.store.get_raw("orders", 0, 8, 32).records  # the newest


def test_pull_at_the_end_is_held_and_woken_by_the_next_message(orders):
    assert pull(orders, queueOffset=2) is None
    orders.send("orders", b"new")
    assert orders.peer.last.fields
    assert "msgId" in orders.peer.last.fields
    orders.store.wait_dispatched()
    assert orders.peer.last.code == 0
    assert orders.peer.last.body.endswith(b"CLUSTER\1DefaultCluster")
    assert len(orders.table.pulling.held) == 0


def test_pull_that_may_not_wait_is_answered_that_nothing_is_there(orders):
    found = answered(orders, queueOffset=2, sysFlag=4)
    assert (found.code, found.remark) == (19, "OFFSET_OVERFLOW_ONE")


def test_pull_that_is_ahead_of_a_slave_waits_for_what_its_master_has(tmp_path):
    with closing(Desk(tmp_path)) as desk:
        desk.dispatched("orders")
    config = StoreConfig.small(broker_role=BrokerRole.SLAVE)
    with closing(Desk(tmp_path, config, broker_id=1)) as desk:
        for queue_id, offset, remark in (
            (0, 3, "OFFSET_OVERFLOW_BADLY"),
            (1, 5, "NO_MESSAGE_IN_QUEUE"),
        ):
            place = {"queueId": queue_id, "queueOffset": offset}
            found = answered(desk, **place, sysFlag=4)
            assert (found.code, found.remark) == (19, remark)
            assert found.fields
            assert found.fields["nextBeginOffset"] == str(offset)
            assert pull(desk, **place) is None


def test_message_with_other_tags_leaves_a_pull_for_the_sweep(orders):
    assert pull(orders, queueOffset=2, subscription="a") is None
    orders.dispatched("orders", properties="TAGS\1b")
    assert len(orders.table.pulling.held) == 1
    sweep_after(orders, LOOK_MS)
    assert (orders.peer.last.code, orders.peer.last.remark) == (20, "NO_MATCHED_MESSAGE")
    assert orders.peer.last.fields
    assert orders.peer.last.fields["nextBeginOffset"] == "3"


def test_pull_is_answered_by_the_sweep_after_its_time(orders):
    assert pull(orders, queueOffset=2, suspendTimeoutMillis=6000) is None
    for wait_ms in (5000, 999, 3000):
        sweep_after(orders, wait_ms)
        assert orders.peer.last.code == 0
    sweep_after(orders, 1001)
    assert (orders.peer.last.code, orders.peer.last.remark) == (19, "OFFSET_OVERFLOW_ONE")


def test_held_pulls_are_looked_at_each_in_its_turn(orders):
    held, looked = orders.table.pulling.held, []
    for _ in range(10):
        assert pull(orders, queueOffset=2) is None
        orders.clock.now_ms += 10

    def end(topic: str, _queue_id: int) -> int:
        looked.append(topic)
        return 2

    for _ in range(2 * LOOK_MS // 50):  # none more than its share, whenever they are looked at
        orders.clock.now_ms += 50
        before = len(looked)
        assert held.due(orders.clock.now_ms, end) == []
        assert len(looked) - before <= 5
    assert len(looked) == 20


class Leading(AtOnce):
    """Takes note when a round of dispatch is due, and of the threads on which it heard of it."""

    def __init__(self) -> None:
        super().__init__()
        self.due = Semaphore(0)
        self.threads: list[int] = []

    def paced(self, _interval_s: float, _work: Callable[[], object]) -> Callable[[], None]:
        return self.due.release

    def run(self, work: Callable[[], object]) -> None:
        self.threads.append(get_ident())
        work()


def test_while_a_pull_is_held_the_loop_dispatches(tmp_path):
    loop = Leading()
    desk = Desk(tmp_path, loop=lambda _store: loop)
    desk.send("orders")
    assert desk.store.wait_dispatched(timeout_s=PATIENCE_S)
    assert not loop.due.acquire(blocking=False)
    assert pull(desk, queueOffset=1) is None
    wait_until_led(desk.store, loop.due.release)
    for _ in range(3):
        desk.send("orders")
    assert loop.due.acquire(timeout=PATIENCE_S)
    desk.store.dispatching.turn()
    assert desk.store.wait_for("orders", 0, 3, PATIENCE_S)
    assert desk.store.wait_until(lambda: bool(desk.peer.last.body), PATIENCE_S)
    assert len(loop.threads) == 1  # who was answered hears of no more
    desk.table.pulling.listen_no_more()
    wait_until_led(desk.store, workers_of(desk.store).dispatch._bell.ring)
    desk.send("orders")
    assert desk.store.wait_for("orders", 0, 4, PATIENCE_S)
    desk.close()


@pytest.mark.parametrize("short_ms", [1_000, LOOK_MS + 1])
def test_short_polling_holds_a_pull_for_its_own_time_and_wakes_it_too(tmp_path, short_ms):
    desk = Desk(tmp_path, long_polling_enable=False, short_polling_time_mills=short_ms)
    desk.dispatched("orders")
    assert pull(desk, queueOffset=1, suspendTimeoutMillis=1) is None
    sweep_after(desk, short_ms - 1)
    assert desk.peer.last.code == 0
    sweep_after(desk, 1)
    assert desk.peer.last.code == 19
    assert pull(desk, queueOffset=1) is None
    desk.dispatched("orders", b"second")
    assert desk.peer.last.code == 0
    assert b"second" in desk.peer.last.body
    desk.close()


def test_message_that_came_while_a_pull_was_looked_at_is_not_missed(orders, monkeypatch):
    held = orders.table.pulling.held
    add = held.add

    def add_after_a_message(one: object) -> None:
        orders.store.put(Message(topic="orders", body=b"between"))
        orders.store.wait_dispatched()
        add(one)  # type: ignore[arg-type]

    monkeypatch.setattr(held, "add", add_after_a_message)
    found = answered(orders, queueOffset=2)
    assert found.code == 0


def test_closed_connection_takes_its_pulls_along(orders):
    gone, stays = Peer(1), Peer(2)
    assert pull(orders, queueOffset=2, peer=gone) is None
    assert pull(orders, queueOffset=2, peer=stays) is None
    orders.table.disconnected(gone)
    orders.dispatched("orders")
    assert gone.heard == []
    assert [one.code for one in stays.heard] == [0]


def test_nothing_listens_to_dispatch_while_nothing_is_held(orders):
    board = parts_of(orders.store).dispatcher.board
    assert board.listeners == ()
    assert pull(orders, queueOffset=2, suspendTimeoutMillis=0) is None
    assert len(board.listeners) == 1
    sweep_after(orders, LOOK_MS)
    orders.table.pulling.listen_no_more()
    assert board.listeners == ()


def test_end_refuses_what_is_held_and_what_comes(orders):
    assert pull(orders, queueOffset=2) is None
    orders.table.pulling.close()
    assert orders.peer.last.code == 14
    late = answered(orders)
    assert (late.code, late.remark) == (14, "the broker ends")


@pytest.mark.parametrize(("offset", "flags", "kept"), [(0, 5, 1), (2, 7, 1), (0, 4, None)])
def test_pull_commits_an_offset_also_when_it_is_held(orders, offset, flags, kept):
    pull(orders, queueOffset=offset, sysFlag=flags, commitOffset=1)
    assert orders.store.consumer_offsets.get("orders", "G", 0) == kept


def test_refused_pull_commits_nothing(orders):
    found = answered(orders, queueId=4, sysFlag=7, commitOffset=1)
    assert found.code == 1
    assert orders.store.consumer_offsets.get("orders", "G", 4) is None


def test_group_that_is_sent_elsewhere_is_told_so_in_a_message(orders):
    found = answered(orders, queueOffset=9)
    assert found.code == 21
    orders.store.wait_dispatched()
    [event] = orders.store.get("OFFSET_MOVED_EVENT", 0, 0).messages
    assert (event.tags, event.keys, event.born_host) == ("G", ("G",), event.store_host)
    assert json.loads(event.body) == {
        "consumerGroup": "G", "offsetNew": 2, "offsetRequest": 9,
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "orders"},
    }  # fmt: skip


def test_message_of_a_group_that_is_sent_elsewhere_lets_no_pull_wait_for_the_disk(tmp_path):
    config, disk = StoreConfig.small(flush_disk_type=FlushDiskType.SYNC_FLUSH), FailingDisk()
    with closing(Desk(tmp_path, config, disk=disk)) as at:
        at.answer(17, {"topic": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6})
        at.store.put(Message(topic="orders", body=b"x"))
        pull(at)  # which makes the group
        disk.calls.clear()
        found = answered(at, queueOffset=9)
        assert found.code == 21
        assert disk.synced == []
        at.store.flush()
        assert disk.synced  # the message, which came with the pull


def heartbeat(
    desk: Desk, version: int = 1, model: str = "CLUSTERING", tags: str = "a", **more: object
) -> None:
    subscription = {"topic": "orders", "subString": tags, "subVersion": version, **more}
    consumer = {
        "groupName": "G", "messageModel": model, "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    assert desk.answer(34, None, body).code == 0


def test_subscription_of_the_heartbeat_counts_where_a_pull_has_none(orders):
    heartbeat(orders, tags="b")
    found = answered(orders, sysFlag=0, subscription=None, subVersion=1)
    assert found.body == orders.store.get_raw("orders", 0, 1).records


def test_expression_of_a_heartbeat_that_names_no_tag_is_refused_like_that_of_a_pull(orders):
    heartbeat(orders, tags="||")
    found = answered(orders, sysFlag=0, subscription=None, subVersion=1)
    assert (found.code, found.remark) == (23, "parse the consumer's subscription failed")


def test_many_tags_are_waited_for_by_their_hashes_alone(orders):
    """What is held is counted by the bytes of its request, so it takes no more than these."""
    wanted = "||".join(f"{number:x}" for number in range(10_000))
    assert pull(orders, queueOffset=2, sysFlag=6, subscription=wanted) is None
    [held] = orders.table.pulling.held.take_all()
    assert held.wants(string_hash("270f"))
    assert not held.wants(string_hash("no"))
    assert sys.getsizeof(held.tags) < len(wanted)


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"subVersion": 2}, 25, "the consumer's subscription not latest"),
        ({"topic": "TBW102"}, 24, "the consumer's subscription not exist"),
        ({"consumerGroup": "H"}, 24, "the consumer's group info not exist"),
    ],
)
def test_pull_without_a_subscription_needs_that_of_a_heartbeat(orders, changed, code, remark):
    heartbeat(orders)
    found = answered(orders, **{"sysFlag": 0, "subVersion": 1, **changed})
    assert found.code == code
    assert found.remark
    assert found.remark.startswith(remark)


def test_what_may_not_be_pulled_is_refused_in_order(tmp_path):
    desk = Desk(tmp_path, auto_create_subscription_group=False)
    desk.topics.settle(TopicConfig(topic_name="orders", perm=2, read_queue_nums=1))

    def refused(**changed: object) -> tuple[int, str | None]:
        found = answered(desk, **changed)
        assert found.fields == {}
        return found.code, found.remark

    assert refused()[0] == 26
    assert refused(consumerGroup="CID_RMQ_SYS_tool")[0] == 16  # such a group is made all the same
    desk.groups.settle(SubscriptionGroup(group_name="G", consume_enable=False))
    assert refused() == (16, "subscription group no permission, G")
    desk.groups.settle(SubscriptionGroup(group_name="G", consume_broadcast_enable=False))
    assert refused(topic="none")[0] == 17
    assert refused() == (16, "the topic[orders] pulling message is forbidden")
    desk.topics.settle(TopicConfig(topic_name="orders", perm=4, read_queue_nums=1))
    assert refused(queueId=1)[0] == refused(queueId=-1)[0] == 1
    assert refused(subscription="||") == (23, "parse the consumer's subscription failed")
    assert refused(subscription="a" * (LONGEST_EXPRESSION + 1))[0] == 23
    assert refused(expressionType="SQL92", subscription="a > 1")[0] == 1
    heartbeat(desk, model="BROADCASTING")
    assert refused(sysFlag=0) == (16, "the consumer group[G] can not consume by broadcast way")
    desk.close()


def test_broker_that_may_not_be_read_refuses_first(tmp_path):
    desk = Desk(tmp_path, broker_permission=2)
    found = answered(desk)
    assert (found.code, found.remark) == (16, "the broker[127.0.0.1] pulling message is forbidden")
    desk.close()
