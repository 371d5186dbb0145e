"""Stores that a genuine broker of 5.3.3 wrote: read and continued, or refused by name.

`support.newer_broker` says what each of them holds, and makes them again.
"""

import json
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rocketstore import EndStatus, Message, MessageStore, StoreError, verify_store
from rocketstore.cli.application import run
from rocketstore.format.metadata_json import loads
from rocketstore.rules.newer import NEWER_FILES
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.pread_queue import newer_in
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import messages_of
from rocketstore.transaction.ledger import open_transactions
from rocketstore.units import QueueKey
from support.audit_runs import audited
from support.both_sides import small_config
from support.golden import golden_case, manifest
from support.newer_broker import GROUP, LONG_TOPIC, ORDERS
from support.pipeline_tables import read_table
from support.rebuild_runs import rebuilt_here
from support.said import capture_logs
from support.store_files import overwrite_file

DELAYED = "SCHEDULE_TOPIC_XXXX"
OURS = small_config(enableLmq="true")

PARTS = {
    "timers": (
        "timerwheel",
        "messages wait for a time of their own, which only brokers of 5.x keep: 2",
    ),
    "pops": ("consumequeue/rmq_sys_REVIVE_LOG_DefaultCluster/0", "1 times consumers of 5.x (POP)"),
    "rocksdb_tables": ("config/rdb/CURRENT", "topics, groups and offsets are in a RocksDB"),
    "controller": ("brokerIdentity", "a controller of 5.x elects who writes this log"),
    "compaction": ("compaction/position-checkpoint", "the last message of a key"),
}
"""What is refused, by the store that has it."""


def copied(name: str, place: Path) -> Path:
    """Return a copy of a store; its wheel of timers is nearly all a hole."""
    source, target = golden_case("newer") / name, place / name
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
    return target


def content(root: Path) -> dict[str, int]:
    """Return the checksum of every file."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): zlib.crc32(path.read_bytes()) for path in files}


def table(root: Path, name: str) -> Any:
    return loads((root / "config" / name).read_bytes())


# --- understood ---------------------------------------------------------------------------------


def test_every_message_is_read_as_it_was_put():
    root = golden_case("newer") / "files"
    with ReadOnlyStore.open(root, OURS) as store:

        def all_of(topic: str, queue_id: int = 0) -> list[Any]:
            return list(messages_of(store, QueueKey(topic, queue_id), 0))

        texts = [str(number).encode() for number in range(300)]
        for queue_id in range(3):
            bodies = [message.body for message in all_of(ORDERS, queue_id)]
            assert bodies == texts[queue_id::3] + [b"later"] * (not queue_id)
        assert [one.body for one in store.find(ORDERS, "k123b")] == [b"123"]
        (long,) = all_of(LONG_TOPIC)  # the second magic number, its topic's length in two bytes
        assert (long.body, long.properties["1ST_POP_TIME"]) == (b"long", "1")
        assert all("__CRC32#" in one.properties for one in all_of(ORDERS))
        lz4, zstd, inflated = all_of("packed")
        assert inflated.body == b"packed " * 100
        assert (lz4.body, zstd.body) == (lz4.raw_body, zstd.raw_body), "as stored, and flagged"
        assert (lz4.sys_flag & 0x701, zstd.sys_flag & 0x701) == (0x101, 0x201)
        for name in ("%LMQ%a", "%LMQ%b"):
            assert [one.body for one in all_of(name)] == [b"light %d" % one for one in range(3)]
        assert store.max_offset(DELAYED, 17) == 1
    (waits,) = read_table(root, table="delays")
    assert (waits["level"], waits["realTopic"]) == (18, ORDERS)
    assert verify_store(root, OURS).findings == []


def test_what_only_5_knows_stays_where_our_writing_goes_on(tmp_path):
    root = copied("files", tmp_path)
    own = struct.Struct(">qq").unpack_from((root / "checkpoint").read_bytes(), 24)
    assert own == (6789, 12345)
    for name in ("messageRequestMode.json", "timermetrics"):  # this broker needed none
        (root / "config" / name).write_bytes(b"{}")
    kept = [root / "abort.bak", *(root / "config").iterdir()]
    ours = {f"lmqConsumerOffset.json{suffix}" for suffix in ("", ".bak")}
    before = {path: path.read_bytes() for path in kept if path.name not in ours}
    offsets, delays = table(root, "lmqConsumerOffset.json"), table(root, "delayOffset.json")
    topics = table(root, "topics.json")
    day = 86_400_000
    last = max(one.store_timestamp_ms for one in _messages(root))
    with MessageStore.open(root, OURS, clock=lambda: last + day, threads=False) as store:
        assert store.put(Message(topic=ORDERS, body=b"ours"), 1).is_stored
        assert store.delays is not None
        store.wait_dispatched()
        store.delays.turn()
        store.delays.turn()
        store.consumer_offsets.set(ORDERS, GROUP, 0, 60)
    checkpoint = (root / "checkpoint").read_bytes()
    assert struct.Struct(">qq").unpack_from(checkpoint, 24) == own
    after = table(root, "lmqConsumerOffset.json")
    assert after["offsetTable"][f"{ORDERS}@{GROUP}"][0] == 60
    assert {key: after[key] for key in offsets if key != "offsetTable"} == {
        key: offsets[key] for key in offsets if key != "offsetTable"
    }
    saved = table(root, "delayOffset.json")
    assert saved["offsetTable"] == {1: 1, 18: 1}
    assert saved["dataVersion"] == delays["dataVersion"]
    changed = {path.name for path in before if path.read_bytes() != before[path]}
    assert changed <= {"delayOffset.json", "delayOffset.json.bak"}
    with MessageStore.open(root, OURS) as store:
        store.batch_topics.create("batches")
    marked = table(root, "topics.json")
    assert marked["topicConfigTable"].pop("batches")
    assert marked["topicConfigTable"] == topics["topicConfigTable"]
    assert marked["dataVersion"]["stateVersion"] == topics["dataVersion"]["stateVersion"]
    assert verify_store(root, OURS).findings == []


def _messages(root: Path) -> list[Any]:
    with ReadOnlyStore.open(root, OURS) as store:
        return [
            message
            for key in store.queues()
            for message in store.get(*key, store.max_offset(*key) - 1, 1).messages
        ]


def test_an_op_message_may_end_several_transactions(tmp_path):
    root = copied("transactions", tmp_path)
    begun = manifest(golden_case("newer"))["transactions"]["begun"]
    left = [str(number).encode() for number in range(0, 40, 4)]
    with ReadOnlyStore.open(root, OURS) as reader:
        ops = reader.get("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 0).messages
        assert any(op.body.count(b",") > 1 for op in ops), "5.x wrote no batch"
        assert [one.body for one in open_transactions(reader)] == left
    rows = read_table(root, table="transactions")
    assert sorted(row["queueOffset"] for row in rows) == list(range(0, 40, 4))
    with MessageStore.open(root, small_config(), threads=False) as store:
        delivered = store.max_offset(ORDERS, 3)
        assert delivered == 20
        for number, status in (
            (1, EndStatus.ENDED_ALREADY),
            (2, EndStatus.ENDED_ALREADY),
            (0, EndStatus.COMMITTED),
            (4, EndStatus.ROLLED_BACK),
        ):
            ended = store.end_transaction(GROUP, *begun[str(number)], commits=number != 4)
            assert ended.status is status, number
        assert store.max_offset(ORDERS, 3) in (delivered, delivered + 1)
    offsets = table(root, "consumerOffset.json")["offsetTable"]
    group = "CID_RMQ_SYS_TRANS"
    # Everything before half message 8 has ended; ops that name later ones are read again.
    assert offsets[f"RMQ_SYS_TRANS_HALF_TOPIC@{group}"] == {0: 8}
    assert offsets[f"RMQ_SYS_TRANS_OP_HALF_TOPIC@{group}"][0] <= len(ops)
    with ReadOnlyStore.open(root, OURS) as reader:
        assert [one.body for one in open_transactions(reader)] == left[2:]


@pytest.mark.parametrize("name", ["delivered_timers", "revived_pops"])
def test_what_was_delivered_does_not_wait(name, tmp_path):
    root = copied(name, tmp_path)
    assert verify_store(root, OURS).findings == []
    revives = "rmq_sys_REVIVE_LOG_DefaultCluster"
    with MessageStore.open(root, OURS) as store:
        assert store.put(Message(topic=ORDERS, body=b"ours"), 0).is_stored
        assert store.put(Message(topic=revives, body=b"{}", tags="ack"), 0).is_stored
    assert verify_store(root, OURS).findings == [], "an acknowledgement waits for nothing"


def test_a_time_of_its_own_is_an_ordinary_property_of_what_is_put_here(tmp_path):
    later = {"TIMER_DELIVER_MS": "99999999999999"}
    with MessageStore.open(tmp_path, OURS) as store:
        assert store.put(Message(topic=ORDERS, body=b"put", properties=later), 0).is_stored
        half = store.begin(Message(topic=ORDERS, body=b"committed", properties=later), 0)
        assert store.commit(half).status is EndStatus.COMMITTED
        store.wait_dispatched()
        messages = store.get(ORDERS, 0, 0).messages
        assert [one.body for one in messages] == [b"put", b"committed"]
        assert all(one.properties["TIMER_DELIVER_MS"] for one in messages)


# --- refused by name ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_our_writing_would_contradict_is_refused_and_nothing_written(name, tmp_path):
    root, (file, words) = copied(name, tmp_path), PARTS[name]
    before = content(root)
    for _ in range(2):  # the first one keeps no lock
        with pytest.raises(StoreError) as refused:
            MessageStore.open(root, OURS)
        assert refused.value.message.startswith(f"{root}/{file}: ")
    assert words in refused.value.message
    assert refused.value.hint
    assert "out of" in refused.value.hint or "end of this queue" in refused.value.hint
    assert content(root) | {"lock": 0} == before | {"lock": 0}


@pytest.mark.parametrize(
    "file",
    [
        "brokerIdentity", "epochFileCheckpoint", "config/rdb/CURRENT",
        "config/consumerOffsets/CURRENT", "kvStore/CURRENT",
    ],
)  # fmt: skip
def test_one_file_of_such_a_part_is_enough(file, tmp_path):
    root = copied("files", tmp_path)
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_bytes(b"MANIFEST-000005\n")
    with pytest.raises(StoreError) as refused:
        MessageStore.open(root, OURS)
    assert refused.value.message.startswith(f"{root}/{file}: ")


@pytest.mark.parametrize("directory", ["rdb", "consumerOffsets"])
def test_offsets_in_rocksdb_are_not_taken_for_none(tmp_path, capsys, directory):
    root = copied("rocksdb_tables", tmp_path)
    (root / "config" / "rdb").rename(root / "config" / directory)
    said = f"{root}/config: topics, groups and offsets are in a RocksDB of 5.x"
    for name in ("consumers", "transactions"):
        with pytest.raises(StoreError, match="RocksDB") as refused:
            read_table(root, table=name)
        assert refused.value.message.startswith(said)
    for noun, verb in (("queue", "lag"), ("transaction", "list")):
        assert run([noun, verb, str(root)]) == 3
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", PARTS)
def test_every_door_that_reads_says_so(name, tmp_path, capsys):
    root, (file, words) = copied(name, tmp_path), PARTS[name]
    with capture_logs() as lines, MessageStore.open(root, OURS, read_only=True) as store:
        assert store.queues()
    told = [line["part"] for line in lines if line["event"] == "store.newer_part"]
    assert told == store.newer_parts
    assert any(one.startswith(f"{file}: ") and words in one for one in told)
    report = verify_store(root, OURS)
    assert report.exit_code == 0, "nothing is wrong with a store of 5.x"
    verified = [one for one in report.findings if one.kind == "newer"]
    assert file in [one.file for one in verified]
    assert any(words in one.reason and one.action for one in verified)
    by_spark = audited(root, OURS).findings
    assert [one for one in by_spark if one.kind == "newer"] == verified
    capsys.readouterr()
    assert run(["store", "info", str(root), "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["findings"]
    assert any(one.startswith(f"{file}: ") and words in one for one in told)


def test_after_what_the_hint_says_the_store_opens(tmp_path):
    given_up = {
        "timers": ("timerwheel", "config/timercheck"),
        "rocksdb_tables": ("config/rdb",),
        "controller": ("brokerIdentity", "epochFileCheckpoint"),
        "compaction": ("compaction",),
    }
    for name, moved in given_up.items():
        root = copied(name, tmp_path)
        with pytest.raises(StoreError) as refused:
            MessageStore.open(root, OURS)
        said = f"{refused.value} {refused.value.hint}"
        assert re.search(r"move .* out of", said), name
        for one in moved:
            assert one in said
            shutil.move(root / one, tmp_path / f"{name}-{one.replace('/', '-')}")
        MessageStore.open(root, OURS).close()
    root = copied("pops", tmp_path)
    with pytest.raises(StoreError, match="offset of CID_RMQ_SYS_REVIVE_GROUP to the end of this"):
        MessageStore.open(root, OURS)
    path = root / "config" / "consumerOffset.json"
    topic = '"rmq_sys_REVIVE_LOG_DefaultCluster@CID_RMQ_SYS_REVIVE_GROUP":{0:1},'
    path.write_text(path.read_text().replace('"offsetTable":{', f'"offsetTable":{{{topic}', 1))
    MessageStore.open(root, OURS).close()


def test_messages_that_no_wheel_has_taken_wait_too(tmp_path):
    root = copied("delivered_timers", tmp_path)
    # As the second before it was written next.
    overwrite_file(root / "config" / "timercheck", 16, bytes(8))
    (found,) = newer_in(StoreLayout.of(root))
    assert found.reason.endswith("brokers of 5.x keep: 1")


def test_without_a_wheel_all_that_was_put_there_may_wait(tmp_path):
    root = copied("delivered_timers", tmp_path)
    (root / "timerwheel").rename(root / "timerwheel.72")  # timerWheelSnapshotFlush of 5.4
    with pytest.raises(StoreError, match=r"brokers of 5\.x keep: 1"):
        MessageStore.open(root, OURS)


@pytest.mark.parametrize("name", ["timers", "pops"])
def test_broken_files_of_these_parts_end_in_no_other_error(name, tmp_path):
    root, random = copied(name, tmp_path), Random(name)
    for file in (*NEWER_FILES, "config/consumerOffset.json"):
        path, kept = root / file, root / "kept"
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            path.rename(kept)
        for content in (b"", random.randbytes(999), bytes(24), b'{"_":[1]}'):
            path.write_bytes(content)
            list(newer_in(StoreLayout.of(root)))
        path.unlink()
        path.mkdir()
        list(newer_in(StoreLayout.of(root)))
        path.rmdir()
        if kept.exists():
            kept.rename(path)


def test_a_precision_that_no_file_records_is_found_from_the_wheel(tmp_path):
    root = copied("timers", tmp_path)
    wheel = bytearray((root / "timerwheel").read_bytes())
    for at in range(0, len(wheel), 32):
        time, *_ = struct.unpack_from(">q", wheel, at)
        struct.pack_into(">q", wheel, at, time * 10)  # timerPrecisionMs=100
    (root / "timerwheel").write_bytes(wheel)
    (found,) = newer_in(StoreLayout.of(root))
    assert found.reason.endswith("brokers of 5.x keep: 2")


def test_pops_kept_in_rocksdb_are_named(tmp_path):
    root = copied("files", tmp_path)
    (root / "kvStore").mkdir()  # popConsumerKVServiceInit=true
    shutil.copy(golden_case("newer") / "rocksdb" / "consumequeue" / "CURRENT", root / "kvStore")
    with pytest.raises(StoreError, match=r"kvStore/CURRENT: consumers of 5\.x"):
        MessageStore.open(root, OURS)


def test_queues_in_rocksdb_are_not_taken_for_an_empty_store(tmp_path, capsys):
    root = copied("rocksdb", tmp_path)
    before = content(root)
    said = f"{root}/consumequeue is a RocksDB: a broker of 5.x keeps the queues there"
    for read_only in (False, True):
        with pytest.raises(StoreError, match="is a RocksDB") as refused:
            MessageStore.open(root, OURS, read_only=read_only)
        assert refused.value.message.startswith(said)
    with pytest.raises(StoreError, match="is a RocksDB"):
        verify_store(root, OURS)
    for name in ("queues", "consumequeue", "topics", "consumers", "delays", "transactions"):
        with pytest.raises(StoreError, match="RocksDB"):
            read_table(root, table=name)
    assert run(["store", "info", str(root)]) == 3
    assert said in capsys.readouterr().err
    assert content(root) | {"lock": 0} == before | {"lock": 0}


def test_the_log_beside_queues_in_rocksdb_is_read_and_builds_them_again(tmp_path, capsys):
    root = copied("rocksdb", tmp_path)
    assert run(["store", "scan", str(root), "--output", "jsonl"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert sum(line["kind"] == "message" for line in lines) == 30
    assert len(read_table(root, table="messages")) == 30
    assert len(read_table(root, table="commitlog")) == 30
    shutil.copytree(root / "commitlog", tmp_path / "new" / "commitlog")
    with MessageStore.open(tmp_path / "new", OURS) as store:
        assert [store.max_offset(ORDERS, queue_id) for queue_id in range(3)] == [10] * 3
        assert [one.body for one in store.find(ORDERS, "k17")] == [b"17"]
    report = rebuilt_here(root, config=OURS)
    assert (root / str(report.kept) / "consumequeue" / "CURRENT").exists()
    with ReadOnlyStore.open(root, OURS) as reader:
        assert [reader.max_offset(ORDERS, queue_id) for queue_id in range(3)] == [10] * 3
