"""Groups that consume extra queues, and where their offsets are kept."""

import json
import os

import pytest

from rocketstore import Message, verify_store
from rocketstore.cli.application import run
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables.consumer_offsets import read_offsets
from support.audit_runs import audited
from support.clock import START_MS, Clock
from support.configured_store import open_small, small_config
from support.pipeline_tables import read_table

ON = {"enable_multi_dispatch": True, "enable_lmq": True}
NAMES = "INNER_MULTI_DISPATCH"
LIGHT = "%LMQ%a"


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path, **ON) as opened:
        yield opened


def put(store, count, names=f"{LIGHT},copies", *, first=0):
    for number in range(first, first + count):
        store.put(Message(topic="orders", body=b"-", properties={"n": "-"}), 1)
        tags = f"T{number % 2}"
        message = Message(topic="orders", body=b"%d" % number, tags=tags, properties={NAMES: names})
        assert store.put(message, 1).is_stored
    store.wait_dispatched()


def take(store, topic, group, count, **settings):
    """Return bodies and offsets of the next messages, each acknowledged."""
    with store.consume(topic, group, idle_timeout_s=0.0, **settings) as consumer:
        taken = []
        for message in consumer:
            assert message.ack()
            taken.append((int(message.body), message.queue_offset))
            if len(taken) == count:
                break
        return taken


@pytest.mark.parametrize(("topic", "queue_id"), [(LIGHT, 0), ("copies", 1)])
@pytest.mark.parametrize("group", ["billing", "%LMQ%billing"])
def test_a_group_goes_on_in_an_extra_queue_after_what_it_acknowledged(
    tmp_path, topic, queue_id, group
):
    with open_small(tmp_path, **ON) as store:
        put(store, 5)
        assert take(store, topic, group, 3) == [(0, 0), (1, 1), (2, 2)]
        assert store.consumer_offsets.get(topic, group, queue_id) == 3
    with open_small(tmp_path, **ON) as store:
        put(store, 1, first=5)
        assert take(store, topic, group, 9) == [(3, 3), (4, 4), (5, 5)]


def test_a_group_that_wants_tags_has_the_numbers_of_that_queue(store):
    put(store, 6)
    assert take(store, LIGHT, "billing", 2, tags="T1") == [(1, 1), (3, 3)]
    assert store.consumer_offsets.get(LIGHT, "billing", 0) == 5  # after 4, of another tag
    assert take(store, LIGHT, "billing", 9, tags="T1") == [(5, 5)]


def test_a_message_that_comes_back_is_in_no_other_queue(tmp_path):
    clock = Clock()
    with open_small(tmp_path, clock, **ON) as store:
        put(store, 1)
        with store.consume(LIGHT, "billing", idle_timeout_s=0.0) as consumer:
            assert next(consumer).give_back(1)
            clock.now_ms += 1_000
            for _ in range(5):
                store.delays.turn()
                store.wait_dispatched()
            again = next(consumer)
            assert (again.body, again.topic) == (b"0", "orders")
            assert NAMES not in again.properties
        assert store.max_offset(LIGHT, 0) == store.max_offset("copies", 1) == 1


def test_offsets_of_light_groups_stand_in_a_table_without_queue_ids(tmp_path):
    with open_small(tmp_path, **ON) as store:
        put(store, 3)
        take(store, LIGHT, "%LMQ%g", 2)
        take(store, "copies", "billing", 1)
    text = (tmp_path / "config" / "lmqConsumerOffset.json").read_bytes()
    assert text == (
        b'{\n\t"lmqOffsetTable":{\n\t\t"%LMQ%a@%LMQ%g":2\n\t},\n'
        b'\t"offsetTable":{\n\t\t"copies@billing":{1:1\n\t\t}\n\t}\n}'
    )
    table = read_offsets(StoreLayout.of(tmp_path, small_config()))
    assert list(table.rows()) == [("%LMQ%g", (LIGHT, 0), 2), ("billing", ("copies", 1), 1)]
    assert not (tmp_path / "config" / "consumerOffset.json").exists()


def test_a_store_that_begins_with_light_queues_keeps_the_offsets_of_before(tmp_path):
    with open_small(tmp_path) as store:
        for body in (b"0", b"1"):
            store.put(Message(topic="orders", body=body))
        assert take(store, "orders", "billing", 1) == [(0, 0)]
    with open_small(tmp_path, **ON) as store:
        assert take(store, "orders", "billing", 9) == [(1, 1)]
    with open_small(tmp_path, **ON) as store:
        assert take(store, "orders", "billing", 9) == []


def test_switched_on_and_off_everybody_goes_on_from_the_file_that_was_written_last(tmp_path):
    config = tmp_path / "config"
    with open_small(tmp_path, **ON) as store:
        put(store, 5)
    for turn, settings in enumerate([{}, ON, {}, ON], 1):
        with open_small(tmp_path, **settings) as store:
            for group in ("billing", "%LMQ%g"):
                assert take(store, LIGHT, group, 1) == [(turn - 1, turn - 1)]
            store.consumer_offsets.save()
        name = "lmqConsumerOffset.json" if settings else "consumerOffset.json"
        os.utime(config / name, ns=(turn, turn))  # a file system's clock is coarse
        wanted = {("%LMQ%g", LIGHT, 0, turn), ("billing", LIGHT, 0, turn)}
        table = read_offsets(StoreLayout.of(tmp_path))
        assert {(group, *key, offset) for group, key, offset in table.rows()} == wanted
        rows = read_table(tmp_path, table="consumers")
        names = ("group", "topic", "queueId", "offset")
        assert {tuple(row[name] for name in names) for row in rows} == wanted
        (config / name).write_text((config / name).read_text().replace(f":{turn}", ":9"))
        os.utime(config / name, ns=(turn, turn))
        for report in (verify_store(tmp_path, now_ms=START_MS), audited(tmp_path)):
            ahead = {(one.file, one.kind) for one in report.findings if one.topic == LIGHT}
            assert ahead == {(f"config/{name}", "consumer-ahead")}
        (config / name).write_text((config / name).read_text().replace(":9", f":{turn}"))
        os.utime(config / name, ns=(turn, turn))
    assert "lmqOffsetTable" not in (config / "consumerOffset.json").read_text()


def test_the_lag_of_groups_is_shown_from_the_file_with_light_queues(tmp_path, capsys):
    with open_small(tmp_path) as store:  # the other file, of before
        store.consumer_offsets.set("orders", "old", 0, 9)
    with open_small(tmp_path, **ON) as store:
        put(store, 3)
        take(store, LIGHT, "%LMQ%g", 2)
        store.consumer_offsets.set("orders", "old", 0, 7)
    lags = [("%LMQ%g", LIGHT, 0, 2, 3, 1), ("old", "orders", 0, 7, 0, -7)]
    assert run(["queue", "lag", str(tmp_path), "--output", "json"]) == 0
    columns = ("group", "topic", "queueId", "offset", "maxOffset", "lag")
    shown = json.loads(capsys.readouterr().out)
    for rows in (shown, read_table(tmp_path, table="consumers")):
        assert sorted(tuple(row[name] for name in columns) for row in rows) == lags
    ahead = verify_store(tmp_path, small_config(**ON), now_ms=START_MS).findings
    assert [finding.kind for finding in ahead] == ["consumer-ahead"]
    assert ahead[0].file == "config/lmqConsumerOffset.json"
