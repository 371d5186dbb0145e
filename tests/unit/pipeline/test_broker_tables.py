"""Tables ``queues``, ``topics``, ``consumers``: what Java said of its queues; how groups lag."""

import json
import shutil

import pytest

from rocketstore.errors import FormatError
from rocketstore.format.metadata_json import ConsumerOffsets, TopicTable, decode_table
from support.golden_stores import STORES, golden_root, golden_store
from support.pipeline_tables import read_table

OFFSETS = "config/consumerOffset.json"


def in_java(manifest):
    return {
        (topic, int(queue_id)): queue
        for topic, queues in manifest["consumeQueues"].items()
        for queue_id, queue in queues.items()
    }


@pytest.mark.parametrize("name", [name for name in STORES if not name.startswith("crash/")])
def test_queues_begin_and_end_where_java_says(name):
    store, manifest = golden_store(name)
    java = in_java(manifest)
    times = {
        one["phy"]: one["storeTimestamp"] for one in manifest["records"] if "storeTimestamp" in one
    }
    rows = {(row["topic"], row["queueId"]): row for row in read_table(store, table="queues")}
    assert {key for key, queue in java.items() if queue["maxOffset"]} <= set(rows)
    for key, row in rows.items():
        queue = java[key]
        assert (row["minOffset"], row["maxOffset"]) == (queue["minOffset"], queue["maxOffset"])
        first = queue["minOffset"] - queue["maxOffset"] + len(queue["entries"])
        entries = queue["entries"][first:]
        assert row["bytes"] == sum(size for _, size, _ in entries)
        ends = [row["firstStoreTimestamp"], row["lastStoreTimestamp"]]
        seen = [None if one is None else round(one.timestamp() * 1000) for one in ends]
        expected = [times.get(entries[at][0]) if entries else None for at in (0, -1)]
        assert seen == expected


def test_bytes_are_counted_only_for_callers_that_ask(monkeypatch):
    store = golden_root("broker")
    monkeypatch.delattr("rocketstore.scan.queue_search.QueueSearch.chunks")
    rows = read_table(store, table="queues", columns="topic,queueId,minOffset,maxOffset")
    assert {row["maxOffset"] for row in rows} >= {3, 15, 102}
    with pytest.raises(AttributeError):
        read_table(store, table="queues")


def test_topics_are_their_queues_together_and_what_the_broker_has_configured():
    store, manifest = golden_store("broker")
    configured = decode_table((store / "config/topics.json").read_bytes(), TopicTable)
    rows = {row["topic"]: row for row in read_table(store, table="topics")}
    assert set(rows) == set(manifest["consumeQueues"]) | set(configured.topic_config_table)
    queues = read_table(store, table="queues")
    for name, row in rows.items():
        own = [one for one in queues if one["topic"] == name]
        assert row["queueCount"] == len(own)
        assert row["messageCount"] == sum(one["maxOffset"] - one["minOffset"] for one in own)
        assert row["bytes"] == sum(one["bytes"] for one in own)
        firsts = [one["firstStoreTimestamp"] for one in own if one["firstStoreTimestamp"]]
        assert row["firstStoreTimestamp"] == min(firsts, default=None)
        config = configured.topic_config_table.get(name)
        found = (row["readQueueNums"], row["writeQueueNums"], row["perm"])
        if config is None:
            assert found == (None, None, None)
        else:
            assert found == (config.read_queue_nums, config.write_queue_nums, config.perm)


def test_lag_is_what_the_queue_has_beyond_the_offset_of_the_group():
    store, manifest = golden_store("broker")
    java = in_java(manifest)
    committed = decode_table_of(store)
    rows = read_table(store, table="consumers")
    assert len(rows) == sum(len(queues) for queues in committed.values())
    for row in rows:
        queue = java.get((row["topic"], row["queueId"]), {"maxOffset": 0})
        assert row["offset"] == committed[f"{row['topic']}@{row['group']}"][row["queueId"]]
        assert row["maxOffset"] == queue["maxOffset"]
        assert row["lag"] == row["maxOffset"] - row["offset"]
    assert {row["group"] for row in rows} > {"golden_group", "golden_orderly"}


def decode_table_of(store):
    return decode_table((store / OFFSETS).read_bytes(), ConsumerOffsets).offset_table


@pytest.fixture
def copy(tmp_path):
    store = golden_root("broker")
    return shutil.copytree(store, tmp_path / "broker-b")


def write_offsets(store, offsets, suffix=""):
    (store / (OFFSETS + suffix)).write_text(json.dumps({"offsetTable": offsets}))


def test_a_group_behind_ahead_and_of_a_queue_that_is_not_there(copy):
    write_offsets(copy, {"GoldenTopic@late": {0: 100, 1: 99, 9: 5}})
    rows = read_table(copy, table="consumers")
    assert [(row["queueId"], row["offset"], row["maxOffset"], row["lag"]) for row in rows] == [
        (0, 100, 102, 2),
        (1, 99, 94, -5),
        (9, 5, 0, -5),
    ]


def test_several_brokers_and_chosen_topics_in_one_query(copy):
    store = golden_root("broker")
    write_offsets(copy, {"GoldenTopic@late": {0: 100}, "GoldenOrder@late": {0: 1}})
    rows = read_table(
        f"{store},{copy}", table="consumers", brokerName="a,b", subscribe="GoldenTopic"
    )
    assert {row["topic"] for row in rows} == {"GoldenTopic"}
    assert [row["group"] for row in rows if row["brokerName"] == "b"] == ["late"]
    assert {row["brokerName"] for row in rows} == {"a", "b"}
    queues = read_table(copy, table="queues", assign='{"GoldenTopic":[1]}')
    assert [(row["topic"], row["queueId"]) for row in queues] == [("GoldenTopic", 1)]
    topics = read_table(copy, table="topics", subscribePattern="Golden.*")
    assert {row["topic"] for row in topics} >= {"GoldenTopic", "GoldenOrder"}
    assert all(row["topic"].startswith("Golden") for row in topics)


@pytest.mark.parametrize("broken", ["", "{", None])
def test_the_backup_is_read_where_the_table_cannot_be(copy, broken):
    write_offsets(copy, {"GoldenTopic@late": {0: 7}}, suffix=".bak")
    if broken is None:
        (copy / OFFSETS).unlink()
    else:
        (copy / OFFSETS).write_text(broken)
    assert [row["offset"] for row in read_table(copy, table="consumers")] == [7]


def test_a_table_that_cannot_be_read_is_an_error_and_none_at_all_is_not(copy):
    for suffix in ("", ".bak"):
        (copy / (OFFSETS + suffix)).write_text("{")
    with pytest.raises(FormatError, match=r"not a JSON table") as caught:
        read_table(copy, table="consumers")
    for suffix in ("", ".bak"):
        assert f"{copy / OFFSETS}{suffix}: not a JSON table" in str(caught.value)
    for suffix in ("", ".bak"):
        (copy / (OFFSETS + suffix)).unlink()
    assert read_table(copy, table="consumers") == []


def test_many_queues_are_many_tasks(copy, monkeypatch):
    whole = {table: read_table(copy, table=table) for table in ("queues", "topics")}
    monkeypatch.setattr("rocketstore.pipeline.tables.QUEUES_PER_TASK", 3)
    for table, rows in whole.items():
        assert read_table(copy, table=table) == rows
