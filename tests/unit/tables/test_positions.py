"""Positions belong to a log: what consumers, delays and transactions count is true of it alone."""

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rocketstore import EndStatus, Message, MessageStore, StoreConfig, repair_store, verify_store
from rocketstore.config import BrokerRole
from rocketstore.delay import waiting_messages
from rocketstore.format.metadata_json import dumps, loads
from rocketstore.replication.renewal import set_log_aside
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables.consumer_offsets import read_offsets
from rocketstore.tables.positions import agreed_end, marks_of, with_marks
from rocketstore.transaction.ledger import open_transactions
from support.patience import wait_until
from support.store_files import overwrite_file

LOG = ("commitlog", "consumequeue", "batchconsumequeue", "index", "checkpoint", "known-ends")
SETTINGS: dict[str, Any] = {"message_delay_level": "0s 1h", "transaction_time_out": 0}


def opened(root: Path, *, hours_later: int = 0, **settings: Any) -> MessageStore:
    config = StoreConfig.small(**{**SETTINGS, **settings})
    ahead_ms = hours_later * 3_600_000
    return MessageStore.open(root, config, clock=lambda: time.time_ns() // 1_000_000 + ahead_ms)


def put(store: MessageStore, count: int, name: str, topic: str = "orders") -> None:
    for number in range(count):
        assert store.put(Message(topic=topic, body=f"{name}{number}".encode())).is_stored
    store.wait_dispatched()


def consumed(store: MessageStore, count: int | None = None, group: str = "billing") -> list[str]:
    """Consume and acknowledge so many messages, None all there are; return their bodies."""
    bodies: list[str] = []
    with store.consume("orders", group, start="first") as consumer:
        while len(bodies) != count and (message := consumer.poll()) is not None:
            bodies.append(message.body.decode())
            message.ack()
    return bodies


def use(store: MessageStore, name: str, count: int = 5) -> None:
    """Deliver delayed messages, and end transactions."""
    for number in range(count):
        body = f"{name}{number}".encode()
        store.put(Message(topic=f"late-{name}", body=body, properties={"DELAY": "1"}))
        assert store.commit(store.begin(Message(topic="ends", body=body))).status.name
    wait_until(lambda: store.max_offset(f"late-{name}", 0) == count, "they are delivered")


def as_a_broker_writes(root: Path) -> None:
    """Take out of the tables what 4.9 does not write."""
    for path in (root / "config").glob("*Offset.json*"):
        table = loads(path.read_bytes())
        path.write_text(dumps({"offsetTable": table["offsetTable"]}))


def end_of(root: Path) -> int:
    with MessageStore.open(root, read_only=True) as store:
        return store.max_physical_offset


def give_log(source: Path, root: Path) -> None:
    """Let a store have the log of another, as a slave gets it."""
    shutil.copytree(source / "commitlog", root / "commitlog")


def followed(root: Path, master: Path) -> None:
    """Let the store at `root` begin again, as `serve slave` does, and follow to the end."""
    set_log_aside(StoreLayout.of(root), end_of(root))
    give_log(master, root)
    with opened(root, broker_role=BrokerRole.SLAVE) as slave:
        slave.wait_dispatched()


def test_what_is_consumed_of_a_log_in_several_directories_does_not_come_again(tmp_path):
    logs = {"store_path_commit_log": f"{tmp_path}/a,{tmp_path}/b"}
    for number in range(6):
        with opened(tmp_path / "store", **logs, mapped_file_size_commit_log=16_384) as store:
            put(store, 60, f"{number}-")
            assert consumed(store) == [f"{number}-{one}" for one in range(60)]


@pytest.mark.parametrize("wrote", ["we", "a broker"])
def test_a_former_master_that_follows_another_serves_all_of_that_log(tmp_path, wrote):
    old, master = tmp_path / "old", tmp_path / "master"
    with opened(old) as store:
        put(store, 30, "old")
        assert len(consumed(store)) == 30
        use(store, "old")
    with opened(master) as store:
        put(store, 30, "new")
        halves = [store.begin(Message(topic="ends", body=b"half")) for _ in range(5)]
        for _ in range(5):
            store.put(Message(topic="late", body=b"later", properties={"DELAY": "2"}))
    if wrote == "a broker":
        as_a_broker_writes(old)
    followed(old, master)
    with MessageStore.open(old, read_only=True) as reader:
        assert len([*open_transactions(reader)]) == 5
        assert len(list(waiting_messages(reader))) == 5
    with opened(old, hours_later=2) as store:
        wait_until(lambda: store.max_offset("late", 0) == 5, "they are delivered")
        assert [store.commit(half).status for half in halves] == [EndStatus.COMMITTED] * 5
        assert consumed(store) == [f"new{number}" for number in range(30)]
    report = verify_store(old)
    assert not report.is_damaged
    assert not report.has_warnings
    assert (old / "config" / "delayOffset.json.replaced").exists()


@pytest.mark.parametrize("before", [0, 60, 100, 115])
def test_a_group_goes_on_where_both_logs_agree(tmp_path, before):
    old, master = tmp_path / "old", tmp_path / "master"
    with opened(master) as store:
        put(store, 100, "both")
    shutil.copytree(master, old)
    with opened(old) as store:
        put(store, 20, "lost")
        assert len(consumed(store, before)) == before
    with opened(master) as store:
        put(store, 50, "kept")
    followed(old, master)
    expected = [f"both{number}" for number in range(100)] + [f"kept{n}" for n in range(50)]
    with opened(old) as store:
        assert consumed(store) == expected[min(before, 100) :]


@pytest.mark.parametrize("wrote", ["we", "a broker"])
def test_a_log_that_somebody_deleted_takes_its_positions_with_it(tmp_path, wrote):
    root = tmp_path / "store"
    with opened(root) as store:
        put(store, 30, "old")
        assert len(consumed(store)) == 30
        use(store, "old")
    if wrote == "a broker":
        as_a_broker_writes(root)
    for name in LOG:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with opened(root) as store:
        half = store.begin(Message(topic="ends", body=b"half"))
        put(store, 40, "new")
        use(store, "new", 3)
    with opened(root) as store:
        assert consumed(store) == [f"new{number}" for number in range(40)]
        assert store.commit(half).status is EndStatus.COMMITTED


def test_a_log_of_another_store_is_consumed_from_its_beginning(tmp_path):
    root, other = tmp_path / "store", tmp_path / "other"
    for path, name, count in ((root, "mine", 30), (other, "other", 50)):
        with opened(path) as store:
            put(store, count, name)
            consumed(store, 30 if path == root else 0)
            use(store, "late", 5 if path == root else 4)
    with MessageStore.open(other, StoreConfig.small(**SETTINGS), threads=False) as store:
        store.put(Message(topic="waits", body=b"", properties={"DELAY": "1"}))
    for name in LOG:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    give_log(other, root)
    report = verify_store(root)
    told = [found.file for found in report.findings if found.kind == "position-log"]
    assert told == ["config/consumerOffset.json", "config/delayOffset.json"]
    assert report.has_warnings
    with opened(root) as store:
        assert consumed(store) == [f"other{number}" for number in range(50)]
        wait_until(lambda: store.max_offset("waits", 0) == 1, "what waits in this log is delivered")
        use(store, "again", 1)  # by then the delays have looked at this log, however slow they are
    assert not [found for found in verify_store(root).findings if found.kind == "position-log"]


def test_a_log_whose_end_was_cut_is_consumed_from_near_there(tmp_path):
    root = tmp_path / "store"
    with opened(root) as store:
        for step in range(40):
            put(store, 10, f"{step}-")
            assert len(consumed(store)) == 10
            store.consumer_offsets.save()
        last = store.get("orders", 0, 395).messages[0].physical_offset
    overwrite_file(next((root / "commitlog").iterdir()), last, bytes(1000))
    repair_store(root)
    with opened(root) as store:
        again = store.consumer_offsets.get("orders", "billing", 0)
        assert again is not None
        assert 300 <= again <= 395
        put(store, 5, "new")
        assert consumed(store)[-5:] == [f"new{number}" for number in range(5)]


def with_a_flipped_bit(root: Path, from_last: int) -> None:
    """Let a group read 200 messages; flip a bit so far from where the last record begins."""
    with opened(root) as store:
        use(store, "late")
        for step in range(20):
            put(store, 10, f"{step}-")
            assert len(consumed(store)) == 10
            store.consumer_offsets.save()
        at = store.get("orders", 0, 199).messages[0].physical_offset + from_last
    assert at > 0
    with next((root / "commitlog").iterdir()).open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def told_of(root: Path) -> list[str]:
    found = verify_store(root).findings
    return [one.reason for one in found if one.kind == "position-log"]


@pytest.mark.parametrize("back", [1, 500, 3_000, 20_000])
def test_a_bit_that_flips_near_the_log_s_end_sets_no_group_back(tmp_path, back):
    """The last record says which log it is; only where that one is damaged, an older mark does."""
    with_a_flipped_bit(tmp_path, -back)
    assert not told_of(tmp_path)
    with opened(tmp_path) as store:
        assert store.consumer_offsets.get("orders", "billing", 0) == 200
        put(store, 3, "new")
        assert consumed(store) == ["new0", "new1", "new2"]


def test_a_bit_that_flips_in_the_last_record_sets_groups_back_to_the_mark_before(tmp_path):
    with_a_flipped_bit(tmp_path, 100)
    told = told_of(tmp_path)
    assert told
    assert all("or with this one before its end was lost or damaged" in one for one in told)
    with opened(tmp_path) as store:
        assert store.consumer_offsets.get("orders", "billing", 0) == 190


def test_what_a_broker_says_beyond_a_queue_s_end_is_set_to_it(tmp_path):
    with opened(tmp_path) as store:
        put(store, 10, "old")
    table = {"offsetTable": {"orders@billing": {0: 50, 1: -1}, "gone@billing": {0: 7}}}
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "consumerOffset.json").write_text(dumps(table))
    with opened(tmp_path) as store:
        put(store, 100, "new")
        assert len(consumed(store)) == 100
        assert store.consumer_offsets.get("gone", "billing", 0) == 0
        assert store.consumer_offsets.get("orders", "billing", 1) is None


def test_a_group_begins_again_with_a_topic_that_4_9_deleted_and_made_again(tmp_path):
    with opened(tmp_path) as store:
        put(store, 20, "old")
        put(store, 5, "new", topic="ordurs")
    (log,) = (tmp_path / "commitlog").glob("0*0")
    log.write_bytes(log.read_bytes().replace(b"ordurs", b"orders"))
    shutil.rmtree(tmp_path / "consumequeue" / "orders")
    (tmp_path / "consumequeue" / "ordurs").rename(tmp_path / "consumequeue" / "orders")
    (tmp_path / "known-ends").unlink()
    (tmp_path / "config").mkdir(exist_ok=True)
    table = {"orders@billing": {0: 20}, "orders@slow": {0: 3}}
    (tmp_path / "config" / "consumerOffset.json").write_text(dumps({"offsetTable": table}))
    with opened(tmp_path) as store:
        assert consumed(store) == ["new0", "new1", "new2", "new3", "new4"]
        assert consumed(store, group="slow") == ["new3", "new4"]


@pytest.mark.parametrize(("half", "op"), [(3, 900), (500, 1), (500, 900)])
def test_transactions_that_a_broker_s_table_calls_ended_are_open_where_it_is_of_another_log(
    tmp_path, half, op
):
    with opened(tmp_path) as store:
        halves = [store.begin(Message(topic="ends", body=b"%d" % one)) for one in range(5)]
        assert store.commit(halves[0]).status is EndStatus.COMMITTED
    table = {
        "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: half},
        "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: op},
    }
    path = tmp_path / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(dumps({"offsetTable": table}))
    with opened(tmp_path) as store:
        assert store.commit(halves[0]).status is EndStatus.ENDED_ALREADY
        for one in halves[1:]:
            assert store.commit(one).status is EndStatus.COMMITTED
        store.wait_dispatched()
        assert store.max_offset("ends", 0) == 5


@pytest.mark.parametrize("mark", [[0, -1, 0], [-5, -1, 3], [5, 1, 1], [0, 1 << 62, 0], [0, 0, 0]])
def test_a_mark_that_cannot_be_is_in_no_log(tmp_path, mark):
    with opened(tmp_path) as store:
        put(store, 10, "old")
    path = tmp_path / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    table = {"offsetTable": {"orders@billing": {0: 5}}, "logMarks": [mark]}
    path.write_text(dumps(table))
    with opened(tmp_path) as store:
        assert len(consumed(store)) == 10


def test_what_a_program_sets_stays(tmp_path):
    with opened(tmp_path) as store:
        put(store, 10, "old")
        store.consumer_offsets.set("orders", "billing", 0, 15)
    with opened(tmp_path) as store:
        assert store.consumer_offsets.get("orders", "billing", 0) == 15


@pytest.mark.parametrize(
    ("role", "is_torn"),
    [(BrokerRole.ASYNC_MASTER, False), (BrokerRole.ASYNC_MASTER, True), (BrokerRole.SLAVE, False)],
)
def test_what_a_store_without_threads_counts_is_marked_too(tmp_path, role, *, is_torn):
    with opened(tmp_path) as store:
        put(store, 10, "old")
        consumed(store)
        last = store.get("orders", 0, 9).messages[0].physical_offset
    if is_torn:
        overwrite_file(next((tmp_path / "commitlog").iterdir()), last, bytes(1000))
    config = StoreConfig.small(**SETTINGS)
    with MessageStore.open(tmp_path, config, threads=False) as store:
        put(store, 10, "new")
    config = StoreConfig.small(**SETTINGS, broker_role=role)
    with MessageStore.open(tmp_path, config, threads=False) as store:
        store.consumer_offsets.set("orders", "billing", 0, 20)
    table = loads((tmp_path / "config" / "consumerOffset.json").read_bytes())
    assert table["logMarks"][0][1] == end_of(tmp_path)
    with opened(tmp_path) as store:
        assert store.consumer_offsets.get("orders", "billing", 0) == 20


def test_a_slave_changes_no_position(tmp_path):
    root = tmp_path / "store"
    with opened(root) as store:
        put(store, 30, "old")
        consumed(store)
    before = (root / "config" / "consumerOffset.json").read_bytes()
    set_log_aside(StoreLayout.of(root), end_of(root))
    with opened(root, broker_role=BrokerRole.SLAVE) as slave:
        assert slave.consumer_offsets.get("orders", "billing", 0) == 30
        slave.consumer_offsets.set("orders", "another", 0, 3)
    after = loads((root / "config" / "consumerOffset.json").read_bytes())
    assert after["logMarks"] == loads(before)["logMarks"]
    with opened(root) as store:
        assert store.consumer_offsets.get("orders", "billing", 0) == 0


def test_marks_are_few_and_near_any_place_where_a_log_may_end(tmp_path):
    marks: list[Any] = []
    layout = StoreLayout.of(tmp_path)
    ends = []
    with opened(tmp_path) as store:
        for _ in range(300):
            put(store, 1, "x")
            ends.append(store.max_physical_offset)
            marks = with_marks(marks_of(store.replicated_log, ends[-1]), marks)
    assert marks[0][1] == ends[-1]
    assert len(marks) < 20
    places = sorted(mark[1] for mark in marks)
    for at, following in itertools.pairwise(places):
        assert following - at <= max(ends[-1] - following, 2 * (ends[-1] - ends[-2]))
    assert agreed_end(layout, marks) is None
    assert agreed_end(layout, [[0, ends[9], 1], *marks[-1:]]) == marks[-1][1]
    assert json.loads(json.dumps(marks)) == marks


def test_reading_commands_count_as_the_store_will(tmp_path):
    with opened(tmp_path) as store:
        put(store, 10, "old")
        consumed(store)
    path = tmp_path / "config" / "consumerOffset.json"
    table = loads(path.read_bytes())
    path.write_text(dumps({**table, "logMarks": [[0, 50, 1]]}))
    layout = StoreLayout.of(tmp_path)
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert [one for *_, one in read_offsets(layout).rows()] == [10]
        assert [one for *_, one in read_offsets(layout, reader).rows()] == [0]
