"""Heartbeats: what they bring into being, whom they notify, and how a client goes."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rocketstore.broker.clients import Clients, ConsumerGroup
from rocketstore.format.metadata_json import (
    SubscriptionGroup,
    SubscriptionGroupTable,
    TopicTable,
    decode_table,
)
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import Command
from support.broker_desk import SEND, AtOnce, Desk, Peer
from support.failing_disk import FailingDisk


def beat(
    desk: Desk, peer: Peer, *, group: str = "G", topics: tuple[str, ...] = ("orders",),
    version: int = 1, tags: str = "*", **more: object,
) -> Command | None:  # fmt: skip
    subscriptions = [{"topic": one, "subString": tags, "subVersion": version} for one in topics]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions, **more}
    said = {"clientID": f"c@{peer.address}", "consumerDataSet": [consumer]}
    return desk.call(34, None, json.dumps(said).encode(), peer=peer)


def codes(peer: Peer) -> list[int]:
    """Return what a client heard, and forget it."""
    heard = [one.code for one in peer.heard]
    peer.heard.clear()
    return heard


def members(desk: Desk, group: str = "G") -> list[str]:
    reply = desk.answer(38, {"consumerGroup": group})
    return json.loads(reply.body)["consumerIdList"] if reply.code == 0 else []


def test_notice_goes_to_all_members_and_before_the_reply(desk):
    first, second = Peer(1), Peer(2)
    beat(desk, first)
    assert codes(first) == [40, 0]
    beat(desk, second)
    assert {one.language for one in second.heard} == {Language.JAVA}  # which every client knows
    assert (codes(first), codes(second)) == ([40], [40, 0])
    assert members(desk) == ["c@127.0.0.1:1", "c@127.0.0.1:2"]


def test_all_who_come_or_go_in_a_turn_are_one_notice(desk, monkeypatch):
    given: list[Callable[[], object]] = []
    monkeypatch.setattr(desk.loop, "post", given.append)

    def turn() -> list[list[int]]:
        while given:
            given.pop(0)()
        return [codes(peer) for peer in peers]

    peers = [Peer(port) for port in range(50)]
    beat(desk, peers[0])
    assert turn() == [[40, 0]] + [[]] * 49
    for peer in peers:  # the first has nothing new
        beat(desk, peer)
    assert turn() == [[40, 0]] * 50
    for peer in peers[5:]:
        desk.table.disconnected(peer)
    assert turn() == [[40]] * 5 + [[]] * 45
    assert members(desk) == [f"c@{peer.address}" for peer in peers[:5]]


def test_groups_that_come_in_a_turn_are_made_by_one_write_of_each_table(desk, monkeypatch):
    """1,000 that came one after the other kept a busy disk, and all sends, waiting for 39 s."""
    given: list[Callable[[], object]] = []
    monkeypatch.setattr(desk.loop, "post", given.append)
    peers = [Peer(port) for port in range(50)]
    for peer in peers:
        beat(desk, peer, group="G" + peer.address.partition(":")[2])
    for queue_count in (3, 5):
        assert desk.call(310, {**SEND, "b": "New", "d": queue_count}) is None
    while given:
        given.pop(0)()
    assert [codes(peer) for peer in peers] == [[40, 0]] * 50
    assert len(desk.groups.table.subscription_group_table) == 50
    assert desk.topics.table.content.topic_config_table["New"].write_queue_nums == 3
    for table in (desk.groups.table, desk.topics.table.content):
        assert table.data_version
        assert table.data_version.counter == 1


def test_a_heartbeat_without_news_and_the_question_who_is_there_look_at_no_member(
    desk, monkeypatch
):
    peers = [Peer(port) for port in range(9)]
    for peer in peers:
        beat(desk, peer)
    ids = members(desk)
    assert ids == [f"c@{peer.address}" for peer in peers]
    with monkeypatch.context() as patch:
        patch.setattr(ConsumerGroup, "client_ids", property(lambda _: pytest.fail("looked at")))
        beat(desk, peers[3])
        assert members(desk) == ids
    desk.table.disconnected(peers[3])
    assert members(desk) == [one for one in ids if one != f"c@{peers[3].address}"]
    beat(desk, peers[3])
    assert members(desk)[-1] == f"c@{peers[3].address}"


def test_an_ended_connection_asks_no_group_that_it_was_not_in(desk, monkeypatch):
    for number in range(20):
        beat(desk, Peer(number), group=f"G{number}")
    asked: list[str] = []
    remove = Clients.remove_consumer

    def counted(clients: Clients, name: str, peer: Any) -> bool:
        asked.append(name)
        return remove(clients, name, peer)

    monkeypatch.setattr(Clients, "remove_consumer", counted)
    leaving = Peer(99)
    beat(desk, leaving, group="G3")
    beat(desk, leaving, group="G7")
    desk.table.disconnected(leaving)
    assert asked == ["G3", "G7"]
    assert members(desk, "G7") == ["c@127.0.0.1:7"]


@pytest.mark.parametrize(
    ("changed", "heard"),
    [
        ({}, [0]),
        ({"version": 2}, [0]),
        ({"topics": ("orders", "returns")}, [40, 0]),
        ({"topics": ("returns",)}, [40, 0]),
    ],
)
def test_only_another_member_or_topic_is_a_change(desk, changed, heard):
    peer = Peer()
    beat(desk, peer)
    codes(peer)
    beat(desk, peer, **changed)
    assert codes(peer) == heard


def test_older_subscription_does_not_replace_a_newer_one(desk):
    peer = Peer()
    beat(desk, peer, version=2)
    beat(desk, peer, version=1)
    assert desk.table.clients.consumers["G"].subscriptions["orders"].sub_version == 2


def test_subscription_is_not_kept_by_the_clock_of_who_said_it_once(desk):
    """A version is a client's time; one that was ahead had the last word as long as others came."""
    one, other = Peer(1), Peer(2)

    def said(peer: Peer, version: int, tags: str) -> str:
        beat(desk, peer, version=version, tags=tags)
        known = desk.table.clients.consumers["G"].subscriptions["orders"]
        assert known.sub_version == 9  # no pull is newer
        return known.sub_string

    assert said(one, 9, "a") == "a"
    assert said(other, 5, "a || b") == "a"
    assert said(one, 8, "c") == "c"  # its clock was set back
    desk.table.disconnected(one)
    assert said(other, 5, "a || b") == "a || b"
    assert said(one, 8, "c") == "a || b"
    beat(desk, other, topics=("returns",))
    assert said(one, 9, "c") == "c"


def test_heartbeat_makes_group_and_retry_topic_on_the_disk(desk):
    beat(desk, Peer())
    config = desk.store.layout.config
    groups = decode_table((config / "subscriptionGroup.json").read_bytes(), SubscriptionGroupTable)
    topics = decode_table((config / "topics.json").read_bytes(), TopicTable)
    assert groups.subscription_group_table["G"].retry_max_times == 16
    retry = topics.topic_config_table["%RETRY%G"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


def test_a_heartbeat_of_many_new_groups_writes_each_table_once(tmp_path):
    # Each write is synced, and holds the loop: those of 200 groups did for a second.
    disk = FailingDisk()
    desk = Desk(tmp_path / "store", disk=disk)
    heartbeats = [[f"G{number}" for number in range(200)], [f"G{number}" for number in range(300)]]
    for groups in heartbeats:
        disk.calls.clear()
        said = {"clientID": "c", "consumerDataSet": [{"groupName": one} for one in groups]}
        desk.answer(34, None, json.dumps(said).encode())
        written = Counter(name for what, name in disk.calls if what == "fdatasync")
        assert written["topics.json.tmp"] == written["subscriptionGroup.json.tmp"] == 1
        assert {
            f"%RETRY%{one}" for one in groups
        } <= desk.topics.table.content.topic_config_table.keys()
        assert set(groups) <= desk.groups.table.subscription_group_table.keys()
    disk.calls.clear()
    desk.answer(34, None, json.dumps(said).encode())
    assert not disk.synced
    desk.store.close()


def test_heartbeat_is_answered_when_name_servers_know_the_retry_topic(desk):
    desk.told.waits = True
    peer = Peer()
    assert beat(desk, peer) is None
    desk.told.waiting.pop()()
    assert codes(peer) == [40, 0]
    beat(desk, peer)  # which makes nothing, and waits for nobody's topics
    assert codes(peer) == [0]


@pytest.mark.parametrize("name", ["c", 77])
def test_names_may_be_in_any_case_as_a_client_in_c_sharp_has_them(desk, name):
    topic = {"Topic": "orders", "SubString": "a", "TagsSet": None}
    group = {"GroupName": "G", "MessageModel": "BroadCasting", "SubscriptionDataSet": [topic]}
    producers = [{"GroupName": "P"}]
    said = {"ClientID": name, "ConsumerDataSet": [group], "ProducerDataSet": producers}
    desk.call(34, None, json.dumps(said).encode())
    assert members(desk) == [str(name)]
    known = desk.table.clients.consumers["G"]
    assert (known.is_broadcast, known.subscriptions["orders"].sub_string) == (True, "a")
    assert [*desk.table.clients.producers] == ["P"]


def test_tags_that_are_no_utf_8_are_read_as_java_reads_them(desk):
    wanted = b'{"topic":"orders","subString":"\xbc\xfc"}'
    group = b'{"groupName":"G","subscriptionDataSet":[%b]}' % wanted
    desk.call(34, None, b'{"clientID":"c","consumerDataSet":[%b]}' % group)
    assert desk.table.clients.consumers["G"].subscriptions["orders"].sub_string == "\ufffd\ufffd"


def test_enumerations_may_be_numbers(desk):
    beat(desk, Peer(), consumeType=0, messageModel=0, consumeFromWhere=4)
    group = desk.table.clients.consumers["G"]
    assert (group.consume_type, group.message_model, group.consume_from) == (
        "CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip


MANY, SHARE_S = 50, 0.1  # as docs/compatibility.md says


class Paced(AtOnce):
    """Leaves what is paced for later."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Callable[[], object]] = []

    def paced(self, interval_s: float, work: Callable[[], object]) -> Callable[[], None]:
        is_share = interval_s == SHARE_S  # the other is a round of dispatch
        return lambda: self.due.append(work) if is_share else None


def test_clients_that_join_one_after_the_other_are_few_notices(tmp_path):
    """5,000 that joined within a minute were 7 million notices, and 68 s of a processor."""
    loop = Paced()
    desk = Desk(tmp_path, loop=lambda _: loop)
    try:
        peers = [Peer(port) for port in range(MANY + 30)]
        for peer in peers[:MANY]:
            beat(desk, peer)
            assert codes(peer) == [40, 0]  # few are told at once
        for peer in peers[:MANY]:
            codes(peer)
        for peer in peers[MANY:]:
            beat(desk, peer)
        assert [codes(peer) for peer in peers] == [[]] * MANY + [[0]] * 30
        [share] = loop.due
        share()
        assert [codes(peer) for peer in peers] == [[40]] * len(peers)
        desk.table.disconnected(peers[0])
        assert len(loop.due) == 2
    finally:
        desk.close()


def test_group_may_want_no_notices_but_of_a_connection_that_ends(desk):
    group = SubscriptionGroup(group_name="G", notify_consumer_ids_changed_enable=False)
    desk.groups.settle(group)
    stays, leaves, breaks = peers = [Peer(one) for one in (1, 2, 3)]
    for peer in peers:
        beat(desk, peer)
    desk.answer(35, {"clientID": "c@127.0.0.1:2", "consumerGroup": "G"}, peer=leaves)
    assert codes(stays) == [0]
    desk.table.disconnected(breaks)
    assert codes(stays) == [40]


def test_line_of_the_log_counts_the_members_and_names_some(desk, caplog):
    """With all of 1,000 that join one after the other the log would get 15 MB."""
    caplog.set_level(logging.INFO, "rocketstore.broker")
    for port in range(1, 51):
        beat(desk, Peer(port))
    last = [one for one in caplog.messages if "group.shared_again" in one][-1]
    assert ("count=50" in last, last.count("@"), "c@127.0.0.1:1," in last) == (True, 20, True)


def test_others_are_told_of_a_client_that_leaves(desk):
    stays, leaves = Peer(1), Peer(2)
    for peer in (stays, leaves):
        beat(desk, peer)
    codes(stays), codes(leaves)
    fields = {"clientID": "c@127.0.0.1:2", "consumerGroup": "G"}
    assert desk.answer(35, fields, peer=leaves).code == 0
    assert (codes(stays), codes(leaves)) == ([40], [0])
    assert members(desk) == ["c@127.0.0.1:1"]


def test_client_that_leaves_a_group_that_nobody_knows_makes_none(desk):
    assert desk.answer(35, {"clientID": "c", "consumerGroup": "G"}).code == 0
    assert b'"G"' not in desk.answer(201).body


def test_others_are_told_of_a_client_whose_connection_ends(desk):
    stays, breaks = Peer(1), Peer(2)
    for peer in (stays, breaks):
        beat(desk, peer)
    codes(stays)
    desk.table.disconnected(breaks)
    assert codes(stays) == [40]
    desk.table.disconnected(stays)
    assert members(desk) == []


def test_client_that_came_back_by_another_connection_is_one_member(desk):
    """Its former connection may be half open: nobody read the queues of a second member."""
    former, again = Peer(1), Peer(1)
    beat(desk, former), beat(desk, again)
    assert members(desk) == ["c@127.0.0.1:1"]
    desk.table.disconnected(former)
    assert members(desk) == ["c@127.0.0.1:1"]


def test_silent_client_is_dropped(desk):
    silent, speaks = Peer(1), Peer(2)
    for peer in (silent, speaks):
        beat(desk, peer)
    desk.clock.now_ms += 120_000
    beat(desk, speaks)
    desk.loop.turn()
    assert len(members(desk)) == 2
    desk.clock.now_ms += 1
    desk.loop.turn()
    assert members(desk) == ["c@127.0.0.1:2"]


def test_group_that_a_client_left_without_a_word_is_let_go_of_alone(desk):
    known = desk.table.clients
    for names in (("G", "left"), *[("G",)] * 5):
        groups = [{"groupName": name} for name in names]
        said = {"clientID": "c", "consumerDataSet": groups, "producerDataSet": groups}
        assert desk.answer(34, None, json.dumps(said).encode()).code == 0
        desk.clock.now_ms += 30_000
        desk.loop.turn()
        assert known.consumers.keys() & known.producers.keys() >= {"G"}
    assert (*known.consumers, *known.producers) == ("G", "G")


def test_producers_take_turns(desk):
    peers = Peer(1), Peer(2)
    for peer in peers:
        body = b'{"clientID":"p","producerDataSet":[{"groupName":"P"}]}'
        assert desk.answer(34, None, body, peer=peer).code == 0
    asked = [desk.table.clients.next_producer("P") for _ in range(3)]
    assert [one and one.peer for one in asked] == [peers[0], peers[1], peers[0]]
    desk.answer(35, {"clientID": "p", "producerGroup": "P"}, peer=peers[0])
    desk.table.disconnected(peers[1])
    assert desk.table.clients.next_producer("P") is None


def test_subscription_by_tags_can_be_served_and_no_other(desk):
    def check(**data: object) -> int:
        body = json.dumps({"clientId": "c", "group": "G", "subscriptionData": data}).encode()
        return desk.answer(46, None, body).code

    assert check(topic="orders", expressionType="TAG") == check(topic="orders") == 0
    assert check(topic="orders", expressionType="SQL92") == 1


def test_heartbeat_that_is_no_json_is_an_error_of_that_request_alone(desk):
    for body in (b"{", b"[]", b'{"consumerDataSet":[{}]}', b"\xff"):
        assert desk.answer(34, None, body).code == 1


def test_administrators_are_told_who_is_online_and_what_was_said_of_the_group(desk):
    peer = Peer(1)
    said = {"topic": "orders", "subString": "a", "subVersion": 5, "tagsSet": ["a"], "codeSet": [97]}
    group = {"groupName": "G", "consumeType": 1, "messageModel": 1, "consumeFromWhere": 0,
             "subscriptionDataSet": [said]}  # fmt: skip
    body = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
    desk.call(34, None, body, peer=peer)
    assert json.loads(desk.answer(203, {"consumerGroup": "G"}).body) == {
        "connectionSet": [
            {"clientAddr": peer.address, "clientId": "c", "language": "PYTHON", "version": 399}
        ],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {
            "orders": {**said, "expressionType": "TAG", "classFilterMode": False}
        },
    }  # fmt: skip
    absent = desk.answer(203, {"consumerGroup": "H"})
    assert (absent.code, absent.remark) == (206, "the consumer group[H] not online")


@pytest.mark.parametrize(("language", "told"), [(Language.JAVA, "JAVA"), (None, None)])
def test_language_of_a_client_is_told_by_its_name(desk, language, told):
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G"}]}'
    desk.call(34, None, body, language=language)
    [client] = json.loads(desk.answer(203, {"consumerGroup": "G"}).body)["connectionSet"]
    assert client.get("language") == told


@pytest.mark.parametrize("length", [120, 121, 127, 128, 255, 256])
def test_group_of_any_name_that_clients_take_consumes(desk, length):
    """From 121 characters on its retry topic is too long for a record, as in 4.9."""
    name = "g" * length
    desk.dispatched("orders")
    beat(desk, desk.peer, group=name)
    pull = {
        "consumerGroup": name, "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
        "sysFlag": 0, "commitOffset": 0,
    }  # fmt: skip
    retry = {**pull, "topic": f"%RETRY%{name}", "sysFlag": 4}
    codes = [desk.answer(11, pull).code, desk.answer(11, retry).code]
    settled = desk.answer(200, None, json.dumps({"groupName": name}).encode()).code
    back = desk.answer(36, {"offset": 0, "group": name, "delayLevel": 3})
    if length > 255:
        assert (codes, settled, back.code) == ([26, 26], 1, 26)
    else:
        assert (codes, settled) == ([0, 19], 0)
        assert (back.code, back.remark) == ((0, None) if length < 121 else (1, "MESSAGE_ILLEGAL"))
