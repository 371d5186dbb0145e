"""One group with clients of the broker and consumers of the program in it."""

import pytest

from rocketstore import Message
from rocketstore.consuming.consumer import Consumer
from rocketstore.consuming.group import share_of
from rocketstore.units import QueueKey
from support.broker_desk import Desk, Peer
from unit.broker.test_client_manage import beat, codes, members

QUEUES = [QueueKey("orders", queue_id) for queue_id in range(4)]


@pytest.fixture
def orders(desk):
    """A topic of four queues, two of which have a message."""
    for queue_id in (0, 3):
        desk.send("orders", b"%d" % queue_id, e=queue_id)
    desk.store.wait_dispatched()
    return desk


def shares(desk: Desk, *consumers: Consumer) -> list[list[QueueKey]]:
    """Return the queues of each consumer and, by the rule of clients, of each client."""
    ids = sorted(members(desk))
    own = {one._member.id: one for one in consumers}
    for one in consumers:
        one.poll()  # it looks, and shares
    return [
        [key for key in own[name].queues if key.topic == "orders"]
        if name in own
        else list(share_of(QUEUES, at, len(ids)))
        for at, name in enumerate(ids)
    ]


def test_each_queue_is_one_members_wherever_that_is(orders):
    clients = [Peer(1), Peer(2)]
    with orders.store.consume("orders", "G") as first:
        beat(orders, clients[0])
        with orders.store.consume("orders", "G") as second:
            beat(orders, clients[1])
            found = shares(orders, first, second)
            assert len(found) == 4
            assert sorted(key for one in found for key in one) == QUEUES
        orders.table.disconnected(clients[1])
        found = shares(orders, first)
        assert sorted(key for one in found for key in one) == QUEUES
        orders.table.disconnected(clients[0])
        assert shares(orders, first) == [
            [QUEUES[0], QUEUES[3]]
        ]  # no client knows of the empty ones


def test_clients_learn_of_a_consumer_that_comes_and_goes(orders):
    client = Peer(1)
    beat(orders, client)
    codes(client)
    with orders.store.consume("orders", "G"):
        assert codes(client) == [40]
        assert len(members(orders)) == 2
    assert codes(client) == [40]
    assert members(orders) == ["c@127.0.0.1:1"]


def test_consumer_that_nobody_holds_any_more_is_no_member(orders):
    consumer = orders.store.consume("orders", "G")
    assert len(members(orders)) == 1
    del consumer
    assert members(orders) == []


def test_consumer_goes_on_where_a_client_stopped(orders):
    for number in range(3):
        orders.store.put(Message(topic="orders", body=b"more %d" % number), 3)
    orders.store.wait_dispatched()
    client = Peer(1)
    with orders.store.consume("orders", "G") as consumer:
        beat(orders, client)
        [lost] = [key for one in shares(orders, consumer)[1:] for key in one if key == QUEUES[3]]
        commit = {"topic": "orders", "queueId": lost.queue_id, "consumerGroup": "G"}
        assert orders.answer(15, {**commit, "commitOffset": 2}).code == 0
        orders.table.disconnected(client)
        bodies = []  # without that of queue 0, which it has taken
        while (message := consumer.poll()) is not None:
            bodies.append(message.body)
            message.ack()
        assert sorted(bodies) == [b"more 1", b"more 2"]


def test_clients_that_get_everything_each_share_nothing(orders):
    with orders.store.consume("orders", "G") as consumer:
        beat(orders, Peer(1), messageModel="BROADCASTING")
        assert members(orders) == ["c@127.0.0.1:1"]
        consumer.poll()
        assert [key for key in consumer.queues if key.topic == "orders"] == [QUEUES[0], QUEUES[3]]
