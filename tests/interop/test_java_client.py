"""The genuine Java clients of 4.9.8 and 5.5.0, unchanged, against a broker of ours."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from rocketstore import StoreConfig
from rocketstore.broker.testing import Broker
from rocketstore.consuming.consumer import Consumer
from rocketstore.units import QueueKey
from support.java_client import NEWER_PROJECT, PROJECT, JavaClient, require_java
from support.java_program import class_path
from support.patience import PATIENCE_S, wait_until
from support.ports import free_port

pytestmark = [pytest.mark.java]


VERSIONS = {"4.9.8": PROJECT, "5.5.0": NEWER_PROJECT}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    version: str = request.param
    require_java(partial(class_path, VERSIONS[version]))
    return version


@pytest.fixture(scope="module")
def broker(version, tmp_path_factory):
    config = StoreConfig.small(transaction_check_interval=200, transaction_time_out=500)
    path: Path = tmp_path_factory.mktemp(f"broker-{version}")
    listen_port = free_port()  # which stay when a test restarts it
    with Broker(path, config, listen_port=listen_port, namesrv_port=free_port()) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(broker, version):
    with JavaClient(broker.name_server, VERSIONS[version]) as client:
        yield client


def wait_for_offsets(broker: Broker, topic: str, group: str, last: dict[int, int]) -> None:
    """Wait until a group has committed what comes after the last messages of queues."""
    kept = broker.store.consumer_offsets
    wait_until(lambda: all((kept.get(topic, group, one) or 0) > last[one] for one in last))


def bodies(messages: list[dict[str, object]]) -> list[object]:
    return sorted(str(one["body"]) for one in messages)


def test_sends_and_push_consumes_and_tries_again(broker, client):
    sent = [
        {"body": "fail 7" if number == 7 else f"{number}", "tags": "ab"[number % 2], "keys": "k"}
        for number in range(100)
    ]
    results = client.send("orders", *sent)
    assert {one["status"] for one in results} == {"SEND_OK"}
    assert {one["queueId"] for one in results} == {0, 1, 2, 3}
    for result, message in zip(results, sent, strict=True):
        stored = broker.store.by_id(result["offsetMsgId"])
        assert stored is not None
        assert (stored.body.decode(), stored.tags) == (message["body"], message["tags"])
        assert stored.unique_key == result["msgId"]

    client.consume("orders", "all")
    found = client.received("all", len(sent) + 1)
    [again] = [one for one in found if one["reconsumeTimes"]]
    assert (again["body"], again["topic"], again["tags"]) == ("fail 7", "orders", "b")
    assert bodies([one for one in found if one is not again]) == bodies(sent)


def test_consumer_of_some_tags_gets_those(client):
    client.send("tags", *({"body": tag, "tags": tag} for tag in "abcabc"))
    client.consume("tags", "some", "a || c")
    assert bodies(client.received("some", 4)) == ["a", "a", "c", "c"]
    client.send("tags", {"body": "b2", "tags": "b"}, {"body": "c2", "tags": "c"})
    assert bodies(client.received("some", 1)) == ["c2"]  # it was held, and woken by that one


def test_message_that_is_never_consumed_is_a_dead_letter(broker, client):
    client.send("bad", {"body": "never"})
    client.consume("bad", "badly", maxReconsumeTimes=1)
    assert [one["reconsumeTimes"] for one in client.received("badly", 2)] == [0, 1]
    assert broker.store.wait_for("%DLQ%badly", 0, 0, timeout_s=PATIENCE_S)
    [dead] = broker.store.get("%DLQ%badly", 0, 0).messages
    assert dead.body == b"never"


def test_batch_and_delayed_message_arrive(client):
    client.send_batch("mixed", *"abc")
    client.send("mixed", {"body": "late", "delayLevel": 1})
    client.consume("mixed", "mixed")
    assert bodies(client.received("mixed", 4)) == ["a", "b", "c", "late"]


def test_transactions_end_as_their_producer_says_or_answers(client):
    client.send("paid", {"body": "first"})  # a client looks for a topic that is missing after 20 s
    client.consume("paid", "payers")
    client.send_transactions(
        "paid", "commit", "rollback", "askcommit", "askrollback", "askaskcommit"
    )
    assert bodies(client.received("payers", 4)) == ["askaskcommit", "askcommit", "commit", "first"]
    client.send("paid", {"body": "end"})
    assert bodies(client.received("payers", 1)) == ["end"]


def test_request_gets_the_reply_of_its_consumer(broker, client):
    long = "packed " * 1000  # which the client compresses
    client.send("asked", {"body": "first"})  # a client looks for a topic that is missing after 20 s
    client.consume("asked", "answerers")
    assert bodies(client.received("answerers", 1)) == ["first"]
    assert client.request("asked", "one", long) == ["re one", f"re {long}"]

    def kept() -> set[str]:
        """One that comes before the producer's heartbeat is sent, and stored, once more."""
        messages = broker.store.get("DefaultCluster_REPLY_TOPIC", 0, 0).messages
        return {one.body.decode() for one in messages}

    wait_until(lambda: kept() == {"re one", f"re {long}"})


def test_orderly_consumer_gets_each_queue_in_its_order(client):
    client.send("ordered", *({"body": f"{number:02d}"} for number in range(20)))
    client.consume("ordered", "orderly", orderly=True)
    found = client.received("orderly", 20)
    for queue_id in range(4):
        offsets = [one["queueOffset"] for one in found if one["queueId"] == queue_id]
        assert offsets == list(range(5))


def test_broadcast_consumers_get_everything_each(client):
    client.send("news", {"body": "1"}, {"body": "2"})
    client.consume("news", "reader", broadcast=True)
    assert bodies(client.received("reader", 2)) == ["1", "2"]


def test_group_goes_on_where_it_stopped(broker, client):
    client.send("resumed", {"body": "1"}, {"body": "2"})
    client.consume("resumed", "resuming")
    assert bodies(client.received("resuming", 2)) == ["1", "2"]
    client.close_consumer("resuming")
    offsets = broker.store.consumer_offsets.snapshot()["resumed@resuming"]
    assert sum(offsets.values()) == 2
    client.send("resumed", {"body": "3"})
    client.consume("resumed", "resuming")
    assert bodies(client.received("resuming", 1)) == ["3"]


def test_sends_that_nobody_waits_for_arrive(client):
    numbers = [{"body": f"{number}"} for number in range(50)]
    results = client.send("unwaited", *numbers, how="async")
    assert [one["status"] for one in results] == ["SEND_OK"] * 50
    assert client.send("unwaited", *({"body": "oneway"} for _ in range(50)), how="oneway") == []
    client.consume("unwaited", "unwaited")
    assert bodies(client.received("unwaited", 100)) == bodies(
        [*numbers, *[{"body": "oneway"}] * 50]
    )


def test_selector_of_the_client_chooses_the_queue(client):
    sent = [{"body": f"{number}", "keys": f"{number % 3}"} for number in range(30)]
    results = client.send("selected", *sent, how="selector")
    queues = [one["queueId"] for one in results]
    assert queues[:3] * 10 == queues
    assert len(set(queues)) == 3
    assert [one["queueOffset"] for one in results] == [number // 3 for number in range(30)]


@pytest.mark.parametrize("kind", ["pull", "lite"])
def test_consumer_that_pulls_by_itself_goes_on_where_its_group_is(broker, client, kind):
    topic, group = f"{kind}-topic", f"{kind}-group"
    sent = client.send(topic, *({"body": tag, "tags": tag} for tag in "abcabc"))
    client.consume(topic, group, "a || c", kind=kind)
    assert bodies(client.received(group, 4)) == ["a", "a", "c", "c"]
    sent += client.send(topic, {"body": "later", "tags": "a"})  # its pulls are held meanwhile
    assert bodies(client.received(group, 1)) == ["later"]

    client.close_consumer(group)
    given = [one for one, tag in zip(sent, "abcabca", strict=True) if tag != "b"]
    wait_for_offsets(broker, topic, group, {one["queueId"]: one["queueOffset"] for one in given})
    client.send(topic, {"body": "new", "tags": "c"})
    client.consume(topic, group, "a || c", kind=kind)
    assert bodies(client.received(group, 1)) == ["new"]


def test_big_body_is_packed_on_the_way_and_in_the_store(broker, client):
    body = "packed " * 1000
    [result] = client.send("big", {"body": body})
    stored = broker.store.by_id(result["offsetMsgId"])
    assert stored is not None
    assert stored.sys_flag & 1
    assert stored.size < 1000
    assert stored.body == body.encode()
    client.consume("big", "big")
    [found] = client.received("big", 1)
    assert found["body"] == body


def test_client_that_traces_its_sends_tells_of_them(broker, client):
    [result] = client.send("watched", {"body": "1", "keys": "k"}, group="traced")

    def traces() -> list[bytes]:
        queues = [key for key in broker.store.queues() if key.topic == "RMQ_SYS_TRACE_TOPIC"]
        return [one.body for key in queues for one in broker.store.get(*key, 0).messages]

    assert broker.store.wait_until(lambda: bool(traces()), timeout_s=PATIENCE_S)
    [trace] = traces()
    fields = trace.decode().split("\x01")
    assert fields[0] == "Pub"
    assert {"watched", "traced", result["msgId"], result["offsetMsgId"], "k"} <= set(fields)


def test_old_client_sends_to_the_second_port(broker, client):
    [result] = client.send("vip", {"body": "1"}, group="vip")
    assert result["status"] == "SEND_OK"
    assert broker.store.by_id(result["offsetMsgId"]) is not None


def test_group_has_members_here_and_there(broker, client):
    sent = [f"{number}" for number in range(40)]
    client.send("shared", *({"body": one} for one in sent))
    client.consume("shared", "sharing")
    before = client.received("sharing", 40)
    assert len(before) == 40
    with broker.store.consume("shared", "sharing") as consumer:
        here: list[str] = []
        # The client gives queues away when it is told; until then both may read the same.
        wait_until(lambda: len(shared(consumer)) == client.queue_count("shared", "sharing") == 2)
        client.send("shared", *({"body": f"new {one}"} for one in sent))
        there = client.received("sharing", 20)
        while len(here) < 20 and (message := consumer.poll(timeout_s=PATIENCE_S)) is not None:
            if message.body.startswith(b"new"):  # and not what the client has yet to commit
                here.append(message.body.decode())
            message.ack()
    assert sorted([*here, *(str(one["body"]) for one in there)]) == sorted(
        f"new {one}" for one in sent
    )


def test_group_goes_on_after_the_broker_was_restarted(broker, client):
    client.send("restarted", {"body": "1"}, {"body": "2"})
    client.consume("restarted", "restarting")
    assert bodies(client.received("restarting", 2)) == ["1", "2"]
    client.close_consumer("restarting")
    client.consume("restarted", "staying")
    assert bodies(client.received("staying", 2)) == ["1", "2"]

    broker.close()
    ExitStack().enter_context(broker)  # the fixture closes it again
    client.send("restarted", {"body": "3"})
    client.consume("restarted", "restarting")
    assert bodies(client.received("restarting", 1)) == ["3"]
    assert bodies(client.received("staying", 1)) == ["3"]


def shared(consumer: Consumer) -> list[QueueKey]:
    return [key for key in consumer.queues if key.topic == "shared"]
