"""A broker that runs for months: what clients bring goes with them."""

import json
from collections.abc import Callable

import pytest

from rocketstore.broker.client_manage import SCAN_S
from rocketstore.broker.clients import SILENT_MS
from support.broker_desk import SEND, Desk, Peer
from support.held_things import held_by

ROUNDS = 40
KEPT = {
    "TopicTable.topic_config_table": "topics.json, of retry topics",
    "SubscriptionGroupTable.subscription_group_table": "subscriptionGroup.json",
    "ConsumerOffsetTable._loaded": "consumerOffset.json",
    "ConsumerOffsetTable._texts": "consumerOffset.json",
    "ConsumerOffsetTable._new_names": "consumerOffset.json, until a group's topics are asked for",
    "MemberTexts._known": "topics.json and subscriptionGroup.json",
    "MessageStore._pages": "as many as there are queues",
    "StoreStatistics._samples": "of the last ten minutes",
    "StoreWriter._born_hosts": "at most 1,000",
}
"""What may have grown: the tables of 4.9, and what has a bound of its own."""


def life(desk: Desk, number: int) -> None:
    """Do all that a client may do that comes with a group of its own, and goes without a word."""
    peer, group = Peer(number), f"group-{number}"
    subscriptions = [{"topic": "orders", "subString": "*", "subVersion": 1}]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    said = {
        "clientID": f"client-{number}", "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": group}],
    }  # fmt: skip
    desk.call(34, None, json.dumps(said).encode(), peer=peer)
    half = {**SEND, "a": group, "g": desk.clock.now_ms, "i": f"TRAN_MSG\1true\2PGROUP\1{group}\2"}
    desk.call(310, half, b"half", peer=peer)
    desk.store.wait_dispatched()
    desk.clock.now_ms += 60_000
    desk.store.transaction_checks.turn(desk.clock.now_ms)
    asked = next(one for one in peer.heard if one.code == 39)
    assert asked.fields is not None
    end = {
        "producerGroup": group, "commitOrRollback": 12,
        **{name: asked.fields[name] for name in ("tranStateTableOffset", "commitLogOffset")},
    }  # fmt: skip
    desk.call(37, end, peer=peer)
    place = {"consumerGroup": group, "topic": "orders", "queueId": 0}
    pull = {
        **place, "maxMsgNums": 32, "sysFlag": 7, "subVersion": 1, "suspendTimeoutMillis": 20_000,
        "subscription": "*",
    }  # fmt: skip
    for offset in (0, desk.store.max_offset("orders", 0)):  # the second one is held
        desk.call(11, {**pull, "queueOffset": offset, "commitOffset": offset}, peer=peer)
    queue = {"brokerName": "broker-a", "queueId": number % 4, "topic": "orders"}
    locks = {"consumerGroup": group, "clientId": f"client-{number}", "mqSet": [queue]}
    desk.call(41, None, json.dumps(locks).encode(), peer=peer)
    with desk.store.consume("orders", group), desk.store.consume("orders", f"own-{number}") as own:
        assert own.poll() is not None
    desk.table.disconnected(peer)


def grown(desk: Desk, work: Callable[[int], object]) -> dict[str, int]:
    """Return what has more after rounds of work than after half of them, and quiet minutes."""
    held = []
    for first in (0, ROUNDS):
        for number in range(first, first + ROUNDS):
            work(number)
        for _ in range(int(SILENT_MS / 1000 / SCAN_S) + 1):
            desk.clock.now_ms += int(SCAN_S * 1000)
            desk.loop.turn()
        work(2 * ROUNDS + first)  # what is let go of at the next use
        held.append(held_by(desk.table) + held_by(desk.store))
    before, after = held
    return {name: after[name] - before[name] for name in after if after[name] > before[name]}


@pytest.fixture
def busy(desk):
    for number in range(3):
        desk.send("orders", b"%d" % number)
    desk.store.wait_dispatched()
    return desk


def test_what_clients_bring_goes_with_them(busy):
    assert not grown(busy, lambda number: life(busy, number)).keys() - KEPT
