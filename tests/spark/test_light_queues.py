"""Messages for several queues through Spark: tables know them, rebuild and restore bring them."""

import pytest

from rocketstore import Message, pipeline
from support.archiving import archived
from support.audit_runs import audited
from support.configured_store import open_small
from support.store_oracle import read_queues

pytestmark = [pytest.mark.spark]

ON = {"enable_multi_dispatch": True, "enable_lmq": True}
LISTS = ("%LMQ%a", "%LMQ%b,copies", "copies", "")
ENDS = {
    ("%LMQ%a", 0): 30, ("%LMQ%b", 0): 30, ("copies", 1): 60, ("orders", 0): 60, ("orders", 1): 60
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    """Return a store whose light queues have messages of `orders`, ``copies`` those of both."""
    with open_small(tmp_path / "store", **ON) as opened:
        for number in range(120):
            names = LISTS[number % 4]
            properties = {"INNER_MULTI_DISPATCH": names} if names else {}
            queue_id = int("copies" in names)
            opened.put(Message(topic="orders", body=bytes(600), properties=properties), queue_id)
        opened.wait_dispatched()
        with opened.consume("%LMQ%a", group="%LMQ%g", idle_timeout_s=0.0) as consumer:
            for _, message in zip(range(7), consumer, strict=False):
                message.ack()
    return tmp_path / "store"


def test_extra_queues_come_back_and_are_in_the_tables(spark, store, tmp_path):
    queues = read_queues(store / "consumequeue")
    archived(store, tmp_path / "archive")
    result = pipeline.restore(spark, tmp_path / "archive", tmp_path / "back")
    pipeline.rebuild(spark, store)
    assert result.queues == len(ENDS)
    for root in (store, tmp_path / "back"):
        assert read_queues(root / "consumequeue") == queues
        assert list(audited(root).findings) == []

    def table(name, *columns):
        read = spark.read.format("rocketstore").option("table", name).load(str(tmp_path / "back"))
        return [tuple(row) for row in read.select(*columns).collect()]

    bounds = table("queues", "topic", "queueId", "minOffset", "maxOffset")
    assert {one[:2]: one[2:] for one in bounds} == {key: (0, end) for key, end in ENDS.items()}
    entries = table("consumequeue", "topic", "queueId", "queueOffset")
    assert sorted(entries) == sorted(
        (*key, number) for key, end in ENDS.items() for number in range(end)
    )
    topics = table("topics", "topic", "queueCount", "messageCount")
    assert sorted(topics) == [
        ("%LMQ%a", 1, 30),
        ("%LMQ%b", 1, 30),
        ("copies", 1, 60),
        ("orders", 2, 120),
    ]
    assert table("consumers", "group", "topic", "offset", "lag") == [("%LMQ%g", "%LMQ%a", 7, 23)]
    # A message is one row, of its own queue.
    assert {row[0] for row in table("messages", "topic")} == {"orders"}
