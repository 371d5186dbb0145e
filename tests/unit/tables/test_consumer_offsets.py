"""consumerOffset.json: read as brokers leave it, written as they write it (spec F13, K-D4)."""

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstore import FlushFailedError, FormatError, Message, MessageStore, StoreConfig
from rocketstore.format.metadata_json import ConsumerOffsets, decode_table
from rocketstore.storage.threads import Periodic
from support.golden_stores import golden_root
from support.offset_table import offset_table
from support.patience import wait_until


def table_at(root, *, flush=lambda: None, memory=()):
    table = offset_table(root, flush=flush)
    in_memory: Any = SimpleNamespace(name="memory", is_on_disk=False)
    table._kinds.update(dict.fromkeys(memory, in_memory))
    return table


def saved(root):
    return (root / "config" / "consumerOffset.json").read_bytes()


def test_a_table_is_written_as_java_writes_it(tmp_path):
    table = table_at(tmp_path)
    table.set("TopicTest", "group_a", 1, 250)
    table.set("TopicTest", "group_a", 0, 249)
    table.set("%RETRY%group_a", "group_a", 0, 3)
    table.save()
    assert saved(tmp_path).decode() == (
        '{\n\t"offsetTable":{\n\t\t"TopicTest@group_a":{0:249,1:250\n\t\t},\n'
        '\t\t"%RETRY%group_a@group_a":{0:3\n\t\t}\n\t}\n}'
    )


def test_a_broker_s_table_is_read_and_saved_without_a_change_of_what_nobody_touched(tmp_path):
    golden = golden_root("broker")
    shutil.copytree(golden / "config", tmp_path / "config")
    table = table_at(tmp_path)
    assert table.get("GoldenTopic", "golden_group", 3) == 102
    assert table.get("%RETRY%golden_group", "golden_group", 0) == 3
    assert table.get("GoldenTopic", "golden_group", 4) is None
    assert table.get("GoldenTopic", "nobody", 0) is None
    before = saved(tmp_path)
    table.set("GoldenTopic", "golden_group", 3, 103)
    table.save()
    assert saved(tmp_path) == before.replace(b"3:102", b"3:103")
    assert (tmp_path / "config" / "consumerOffset.json.bak").read_bytes() == before


def test_what_a_newer_broker_knows_stays(tmp_path):
    (tmp_path / "config").mkdir()
    text = '{"dataVersion":{"counter":7},"offsetTable":{"T@g":{"0":5}}}'
    (tmp_path / "config" / "consumerOffset.json").write_text(text)
    table = table_at(tmp_path)
    assert table.get("T", "g", 0) == 5
    table.set("T", "g", 0, 6)
    table.save()
    assert b'"counter":7' in saved(tmp_path)
    assert b'"T@g":{0:6' in saved(tmp_path)


def test_a_negative_offset_is_none(tmp_path):
    table = table_at(tmp_path)
    table.set("T", "g", 0, -1)
    assert table.get("T", "g", 0) is None


def test_a_broken_table_is_read_from_its_backup_and_never_written_over_without_one(tmp_path):
    table = table_at(tmp_path)
    for offset in (1, 2):
        table.set("T", "g", 0, offset)
        table.save()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{"T@g"')
    assert table_at(tmp_path).get("T", "g", 0) == 1
    path.with_name("consumerOffset.json.bak").write_bytes(b"also broken")
    broken = table_at(tmp_path)
    with pytest.raises(FormatError):
        broken.get("T", "g", 0)
    with pytest.raises(FormatError):
        broken.set("T", "g", 0, 7)
    broken.save()
    assert path.read_bytes() == b'{"offsetTable":{"T@g"'


def test_offsets_of_a_memory_topic_are_in_no_file_and_leave_those_of_the_disk_alone(tmp_path):
    table = table_at(tmp_path)
    table.set("T", "g", 0, 7)
    table.save()
    table = table_at(tmp_path, memory=["T"])
    assert table.get("T", "g", 0) is None
    assert table.snapshot() == {}  # those of its queues on the disk are not of the queue in memory
    table.set("T", "g", 0, 100)
    table.set("T", "h", 1, 100)
    table.set("U", "g", 0, 1)
    assert table.get("T", "g", 0) == 100
    assert table.snapshot() == {"T@g": {0: 100}, "T@h": {1: 100}, "U@g": {0: 1}}
    table.save()
    assert decode_table(saved(tmp_path), ConsumerOffsets).offset_table == {
        "T@g": {0: 7}, "U@g": {0: 1}
    }  # fmt: skip
    assert table_at(tmp_path).get("T", "g", 0) == 7


def test_messages_are_flushed_before_offsets_and_a_save_that_failed_is_tried_again(tmp_path):
    failures = [FlushFailedError("no disk")]
    order = []

    def flush():
        order.append((tmp_path / "config" / "consumerOffset.json").exists())
        if failures:
            raise failures.pop()
        if len(order) == 2:
            table.set("T", "g", 0, 2)  # of a message that may not be flushed

    table = table_at(tmp_path, flush=flush)
    table.set("T", "g", 0, 1)
    with pytest.raises(FlushFailedError):
        table.save()
    table.save()
    assert table_at(tmp_path).get("T", "g", 0) == 1
    table.save()
    table.save()
    assert order == [False, False, True]


def test_a_store_saves_at_its_close_and_has_its_thread_from_the_start(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        store.put(Message(topic="T"))
        assert store.consumer_offsets._thread.is_running
        store.consumer_offsets.set("T", "g", 0, 1)
        assert store.consumer_offsets._thread.is_running
    table = decode_table(saved(tmp_path), ConsumerOffsets)
    assert [(group, str(key), offset) for group, key, offset in table.rows()] == [("g", "T/0", 1)]


def test_offsets_are_saved_at_the_interval_of_the_setting(tmp_path, monkeypatch):
    pauses_s = []

    def periodic(name, job, interval_s):
        pauses_s.append(interval_s)
        return Periodic(name, job, interval_s)

    monkeypatch.setattr("rocketstore.tables.consumer_offsets.Periodic", periodic)
    settings = StoreConfig.small(flush_consumer_offset_interval=2)
    with MessageStore.open(tmp_path, settings) as store:
        store.consumer_offsets.set("T", "g", 0, 1)
        wait_until((tmp_path / "config" / "consumerOffset.json").exists, "it is saved")
    assert pauses_s == [0.002]


def test_a_store_that_was_left_as_by_a_crash_saves_nothing(tmp_path):
    store = MessageStore.open(tmp_path, threads=False)
    store.consumer_offsets.set("T", "g", 0, 1)
    store.abandon()
    assert not (tmp_path / "config").exists()
