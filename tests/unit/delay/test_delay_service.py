"""Delivery of delayed messages: in time, once, whatever happens to clock, disk and file."""

import json
import threading

import pytest

from rocketstore import BrokerRole, Message, MessageStore
from rocketstore.config import FlushDiskType
from rocketstore.delay.delivery import copy_of
from rocketstore.errors import StoreError
from rocketstore.format.host import encode_host
from rocketstore.format.metadata_json import DelayOffsets, decode_table, dumps
from rocketstore.native.log_end import Record
from rocketstore.storage.running_flags import RunningFlag
from support.clock import START_MS
from support.configured_store import open_small, small_config
from support.failing_disk import FailingDisk
from support.inside import parts_of
from support.interrupts import InterruptAt
from support.patience import PATIENCE_S
from support.reading import all_messages
from support.said import capture_logs

TOPIC = "orders"
WAITING = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def store(tmp_path, clock):
    with open_small(tmp_path, clock) as opened:
        yield opened


def put(store, body, level=1, topic=TOPIC, queue_id=0, **properties):
    message = Message(topic=topic, body=body, properties={"DELAY": str(level), **properties})
    result = store.put(message, queue_id)
    store.wait_dispatched()
    return result


def turns(store, count=5):
    """Run some turns; return the pause after the last one."""
    for _ in range(count):
        pause = store.delays.turn()
        store.wait_dispatched()
    return pause


def bodies(store, topic=TOPIC, queue_id=0):
    return [message.body for message in store.get(topic, queue_id, 0).messages]


@pytest.mark.parametrize(("part", "step"), [("delay", 3), ("storage", 7)])
def test_a_turn_that_is_interrupted_anywhere_delivers_nothing_twice(store, clock, part, step):
    interrupts, line, tried = InterruptAt(part), 0, []
    is_interrupted = True
    while is_interrupted:
        line += step
        tried.append(b"%d" % line)
        put(store, tried[-1])
        clock.now_ms += 1000
        is_interrupted = interrupts.run(line, store.delays.turn)
        turns(store, 3)
        assert store.max_offset(TOPIC, 0) == len(tried), interrupts.where
    assert len(tried) > 20


def saved(tmp_path):
    return decode_table((tmp_path / "config/delayOffset.json").read_bytes(), DelayOffsets)


# --- in time ------------------------------------------------------------------------------------


def test_a_message_is_delivered_when_it_is_due_and_not_before(store, clock):
    put(store, b"1 s")
    put(store, b"5 s", level=2)
    assert turns(store) == pytest.approx(1.0)
    clock.now_ms += 999
    assert turns(store) == pytest.approx(0.001)
    assert bodies(store) == []
    clock.now_ms += 1
    turns(store)
    assert bodies(store) == [b"1 s"]
    clock.now_ms += 4000
    turns(store)
    assert bodies(store) == [b"1 s", b"5 s"]


def test_the_copy_keeps_everything_but_place_and_time(store, clock):
    message = Message(
        topic=TOPIC, body=b"b", tags="t", keys=("k", "l"), unique_key="U", flag=7, sys_flag=2,
        properties={"DELAY": "1", "x": "y"}, born_timestamp_ms=5, born_host="[::1]:9",
        reconsume_times=3,
    )  # fmt: skip
    store.put(message, 4)
    store.wait_dispatched()
    [waiting] = store.get(WAITING, 0, 0).messages
    clock.now_ms += 1000
    turns(store)
    [copy] = store.get(TOPIC, 4, 0).messages
    differs = {"topic", "queue_id", "physical_offset", "size", "store_timestamp_ms", "message_id"}
    for field in set(copy.__struct_fields__) - differs:
        assert getattr(copy, field) == getattr(waiting, field), field
    assert copy.properties["REAL_TOPIC"] == TOPIC
    assert copy.store_timestamp_ms == clock.now_ms
    assert [one.body for one in store.find(TOPIC, "k")] == [b"b"]


def test_levels_and_their_delays_are_a_setting(tmp_path, clock):
    with open_small(tmp_path, clock, message_delay_level="0s 3s") as store:
        put(store, b"now", level=1)
        put(store, b"most", level=9)
        turns(store)
        assert bodies(store) == [b"now"]
        clock.now_ms += 3000
        turns(store)
        assert bodies(store) == [b"now", b"most"]


def test_queues_of_levels_that_the_settings_lost_are_delivered_too(tmp_path, clock):
    with open_small(tmp_path, clock) as store:
        put(store, b"level 5", level=5)
    with open_small(tmp_path, clock, message_delay_level="1s 5s") as store:
        clock.now_ms += 60_000
        turns(store)
        assert bodies(store) == [b"level 5"]


def test_many_messages_of_a_level_do_not_hold_up_another(store, clock):
    for number in range(2100):
        store.put(Message(topic="many", body=b"%d" % number, properties={"DELAY": "1"}))
    put(store, b"one", level=2)
    clock.now_ms += 5000
    turns(store, 2)
    assert bodies(store) == [b"one"]
    turns(store, 5)
    assert store.max_offset("many", 0) == 2100
    assert [one.body for one in store.get("many", 0, 2068).messages] == [
        b"%d" % number for number in range(2068, 2100)
    ]


def test_a_delivery_waits_for_no_flush(tmp_path, clock):
    """4.9 has its asynchronous delivery for that; what counts them as delivered waits."""
    with open_small(tmp_path, clock, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        real, waited = store.put_record, []

        def put_record(*args, **named):
            waited.append(named["wait_flush"])
            return real(*args, **named)

        store.put_record = put_record
        for number in range(3):
            message = Message(topic=TOPIC, body=b"%d" % number, properties={"DELAY": "1"})
            store.put(message)
        store.flush()
        store.wait_dispatched()
        clock.now_ms += 60_000
        while len(waited) < 3:
            store.delays.turn()
        assert waited == [False] * 3
        assert store.flushed_physical_offset < store.max_physical_offset
        assert not (tmp_path / "config/delayOffset.json").exists()


def test_a_store_with_threads_delivers_by_itself(tmp_path):
    arrived = threading.Event()
    with MessageStore.open(tmp_path, at_once()) as store:
        store.add_listener(lambda arrival: arrived.set() if arrival.topic == TOPIC else None)
        store.put(Message(topic=TOPIC, body=b"x", properties={"DELAY": "1"}))
        assert arrived.wait(PATIENCE_S)
        assert bodies(store) == [b"x"]


def at_once():
    """Return settings whose first level is not a delay at all."""
    return small_config(message_delay_level="0s")


def test_a_slave_delivers_nothing(tmp_path, clock):
    with open_small(tmp_path, clock) as store:
        put(store, b"x")
    clock.now_ms += 5000
    with open_small(tmp_path, clock, broker_role=BrokerRole.SLAVE) as store:
        assert store.delays is None


# --- what cannot be delivered, now or ever ------------------------------------------------------


def test_a_put_that_is_refused_is_tried_again_and_nothing_is_skipped(store, clock):
    for number in range(3):
        put(store, b"%d" % number)
    clock.now_ms += 1000
    turns(store, 1)
    store.running_flags.set(RunningFlag.DISK_FULL, "full")
    with capture_logs() as said:
        assert turns(store) == pytest.approx(0.1)
        store.running_flags.clear(RunningFlag.DISK_FULL)
        turns(store)
    assert bodies(store) == [b"0", b"1", b"2"]
    assert store.delays.delivery.refused == 5
    events = [line["event"] for line in said if line["event"].startswith("delay.")]
    assert events == ["delay.put_refused", "delay.delivers_again"]


def test_a_full_disk_holds_deliveries_up_until_there_is_room(tmp_path, clock):
    """The copies need a file of the log that the disk has no room for: they come when it has."""
    disk = FailingDisk()
    with open_small(tmp_path, clock, disk=disk) as store:
        for number in range(30):
            put(store, b"%d" % number + bytes(1500))
        turns(store)
        disk.is_full = True
        clock.now_ms += 1000
        for _ in range(3):
            store.delays.turn()
        delivered = store.delays.delivery.delivered
        assert 0 < delivered < 30
        assert store.delays.delivery.refused > 0
        disk.is_full = False
        turns(store)
        found = [int(message.body.rstrip(b"\0")) for message in all_messages(store, TOPIC)]
        assert found == list(range(30))


def record(properties, body=b"x"):
    return Record(body, properties, encode_host("127.0.0.1:1"))


@pytest.mark.parametrize(
    "properties",
    [
        b"DELAY\x011",
        b"DELAY\x011\x02REAL_TOPIC\x01orders",
        b"DELAY\x011\x02REAL_TOPIC\x01orders\x02REAL_QID\x01-1",
        b"DELAY\x011\x02REAL_TOPIC\x01orders\x02REAL_QID\x01x",
        b"DELAY\x011\x02REAL_TOPIC\x01orders\x02REAL_QID\x0199999999999",
        b"DELAY\x011\x02REAL_TOPIC\x01../etc\x02REAL_QID\x010",
        b"DELAY\x011\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010",
        b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010",
        b"DELAY\x011\x02REAL_QID\x010\x02REAL_TOPIC\x01" + b"t" * 128,
    ],
)
def test_a_message_that_names_no_place_is_passed_over_with_a_line_in_the_log(
    store, clock, properties
):
    store.put_record(WAITING, 0, record(properties))
    put(store, b"next")
    clock.now_ms += 1000
    with capture_logs() as said:
        turns(store)
    assert [line["event"] for line in said] == ["delay.undeliverable"]
    assert bodies(store) == [b"next"]
    assert store.runtime_info()["scheduleMessagesUndeliverable"] == "1"
    assert store.runtime_info()["scheduleMessageOffset_1"] == "2,2"


def test_a_message_whose_record_is_damaged_is_passed_over(tmp_path, clock):
    with open_small(tmp_path, clock) as store:
        put(store, b"first")
        damaged = put(store, b"second")
        put(store, b"third")
    log = tmp_path / "commitlog" / "00000000000000000000"
    content = bytearray(log.read_bytes())
    at = content.index(b"second", damaged.physical_offset)
    content[at : at + 6] = b"SECOND"
    log.write_bytes(content)
    clock.now_ms += 1000
    with open_small(tmp_path, clock) as store, capture_logs() as said:
        turns(store)
        assert bodies(store) == [b"first", b"third"]
    [line] = [line for line in said if line["event"] == "delay.undeliverable"]
    assert line["physical_offset"] == damaged.physical_offset


def test_a_message_whose_file_retention_deleted_is_passed_over(store, clock):
    put(store, b"gone", level=2)
    turns(store)
    for _ in range(40):
        store.put(Message(topic="other", body=b"x" * 4000))
    put(store, b"kept", level=2)
    assert parts_of(store).log.files.remove_first(force_after_ms=0, now_ms=clock.now_ms)
    clock.now_ms += 60_000
    with capture_logs() as said:
        turns(store)
    assert bodies(store) == [b"kept"]
    [line] = [line for line in said if line["event"] == "delay.undeliverable"]
    assert (line["queue_offset"], line["count"]) == (0, 1)
    assert store.runtime_info()["scheduleMessagesUndeliverable"] == "1"


@pytest.mark.parametrize(
    "topic",
    ["RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "%RETRY%g", "%DLQ%g", "TBW102",
     "%LMQ%x", "OFFSET_MOVED_EVENT", "t" * 127, "batch"],
)  # fmt: skip
def test_a_put_that_is_taken_can_be_delivered_whatever_kind_of_topic_it_names(
    tmp_path, clock, topic
):
    """A memory topic refuses it at the put, as nothing of it may wait on the disk."""
    with open_small(tmp_path, clock) as store:
        store.batch_topics.create("batch")
        put(store, b"x", topic=topic)
        clock.now_ms += 1000
        turns(store)
        assert bodies(store, topic) == [b"x"]
        assert store.runtime_info()["scheduleMessagesUndeliverable"] == "0"


def test_an_error_does_not_end_the_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("rocketstore.storage.threads.PAUSE_AFTER_ERROR_S", 0.001)
    arrived = threading.Event()
    with capture_logs() as lines, MessageStore.open(tmp_path, at_once()) as store:
        failures = iter([OSError("I/O error"), OSError("I/O error"), ValueError("?")])
        deliver = store.put_record

        def failing(*args, **named):
            for failure in failures:
                raise failure
            return deliver(*args, **named)

        store.put_record = failing
        store.add_listener(lambda arrival: arrived.set() if arrival.topic == TOPIC else None)
        store.put(Message(topic=TOPIC, body=b"x", properties={"DELAY": "1"}))
        assert arrived.wait(PATIENCE_S)
    said = [line["event"] for line in lines if line["event"].endswith(".failed")]
    assert said == ["service.failed"] * 2, "once for each error, however often it is tried again"


# --- once ---------------------------------------------------------------------------------------


def test_the_offsets_are_saved_at_the_interval_of_the_setting(tmp_path, clock):
    with open_small(tmp_path, clock, flush_delay_offset_interval=700) as store:
        put(store, b"a")
        turns(store)
        path = tmp_path / "config/delayOffset.json"
        clock.now_ms += 1000
        turns(store)
        store.flush()
        turns(store)
        first = saved(tmp_path)
        put(store, b"b")
        clock.now_ms += 699
        turns(store)
        assert saved(tmp_path) == first
        clock.now_ms += 1
        turns(store, 1)
        store.flush()
        turns(store, 1)
        assert saved(tmp_path).log_end == store.max_physical_offset > first.log_end
        assert json.loads(path.read_text().replace("{1:1", '{"1":1'))["offsetTable"] == {"1": 1}


def test_only_what_is_on_the_disk_is_written_down(tmp_path, clock):
    with open_small(tmp_path, clock, flush_delay_offset_interval=1) as store:
        put(store, b"a")
        store.flush()
        turns(store)
        before = saved(tmp_path)
        clock.now_ms += 1000
        for _ in range(3):
            store.delays.turn()
            clock.now_ms += 1
        assert store.delays.delivery.delivered == 1
        assert store.flushed_physical_offset < store.max_physical_offset
        assert saved(tmp_path) == before
        store.flush()
        store.delays.turn()
        assert saved(tmp_path).offset_table == {1: 1}


def test_a_store_without_delayed_messages_has_no_file_of_them(tmp_path, clock):
    with open_small(tmp_path, clock) as store:
        store.put(Message(topic=TOPIC, body=b"x"))
        store.wait_dispatched()
        clock.now_ms += 60_000
        turns(store)
    assert not (tmp_path / "config/delayOffset.json").exists()


def test_nothing_is_written_down_before_the_file_was_read(tmp_path, clock):
    """K-S4: closed before it had its first turn, a service leaves the file as it is."""
    with open_small(tmp_path, clock) as store:
        put(store, b"a")
        clock.now_ms += 1000
        turns(store)
    before = (tmp_path / "config/delayOffset.json").read_bytes()
    with open_small(tmp_path, clock) as store:
        put(store, b"b")
    assert (tmp_path / "config/delayOffset.json").read_bytes() == before


class Kept:
    """Files of a store as a kill leaves them: the log of now, ``delayOffset.json`` of before."""

    def __init__(self, root, name="config/delayOffset.json"):
        self.path = root / name
        self.content = self.path.read_bytes() if self.path.exists() else None

    def put_back(self):
        self.path.with_name(self.path.name + ".bak").unlink(missing_ok=True)
        if self.content is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_bytes(self.content)


@pytest.mark.parametrize(
    ("saved_after", "delivered"),
    [(after, end) for end in (0, 1, 3, 5) for after in (None, 0, 1, 3, 5) if (after or 0) <= end],
)
@pytest.mark.parametrize("form", ["ours", "java"])
def test_what_a_file_does_not_know_is_found_in_the_log(
    tmp_path, clock, saved_after, delivered, form
):
    """Saved after some deliveries, then killed after more: each message is delivered once."""
    total = 6
    kept = Kept(tmp_path)
    with open_small(tmp_path, clock) as store:
        for number in range(total):
            put(store, b"%d" % number, queue_id=number % 2)
            put(store, b"noise")
            clock.now_ms += 10
        turns(store)
        clock.now_ms = START_MS + 1000
        for number in range(delivered):
            if number == saved_after:
                store.flush()
                store.delays._save(store.delays._state(), store.flushed_physical_offset)
                kept = Kept(tmp_path)
            clock.now_ms = START_MS + 1000 + 10 * number
            turns(store)
        if delivered == saved_after:
            store.flush()
            store.delays._save(store.delays._state(), store.flushed_physical_offset)
            kept = Kept(tmp_path)
    if form == "java" and kept.content is not None:
        kept.content = b"".join(
            line for line in kept.content.splitlines(keepends=True) if b"logEnd" not in line
        )
    kept.put_back()
    with open_small(tmp_path, clock) as store:
        clock.now_ms += 5000
        turns(store)
        found = bodies(store, queue_id=0) + bodies(store, queue_id=1)
        assert sorted(body for body in found if body != b"noise") == [
            b"%d" % number for number in range(total)
        ]
        assert found.count(b"noise") == total


HOSTS = ["127.0.0.1:10911", "[::1]:10911", "10.0.0.1:2"]


@pytest.mark.parametrize("now", HOSTS)
@pytest.mark.parametrize("before", HOSTS)
@pytest.mark.parametrize("born", ["127.0.0.1:0", "[::2]:0"])
def test_a_copy_that_was_put_under_another_address_of_the_store_is_found(
    tmp_path, clock, born, before, now
):
    with open_small(tmp_path, clock, store_host=HOSTS[0]) as store:
        store.put(Message(topic=TOPIC, properties={"DELAY": "1"}, born_host=born))
    kept = Kept(tmp_path)
    clock.now_ms += 1000
    for host in (before, now):
        with open_small(tmp_path, clock, store_host=host) as store:
            turns(store)
            assert store.max_offset(TOPIC, 0) == 1
            assert store.get(TOPIC, 0, 0).messages[0].store_host == before
        kept.put_back()


@pytest.mark.parametrize(
    ("asked", "stored", "delivered"),
    [("INNER_MULTI_DISPATCH", b"DELAY\x012\x02", b""), ("__CRC32#", b"32#\x01copies", b"32#\x012")],
    ids=["4.9 for several queues", "5.x with checksums"],
)
def test_a_copy_is_found_whatever_a_genuine_delivery_changed(
    tmp_path, clock, asked, stored, delivered
):
    kept = Kept(tmp_path)
    with open_small(tmp_path, clock, enable_multi_dispatch=True) as store:
        put(store, b"1", level=2, **{asked: "copies"})
        waiting = store.at_physical_offset(0)
        assert stored in waiting.raw_properties
        changed = waiting.raw_properties.replace(stored, delivered)
        store.put_record(TOPIC, 0, copy_of(waiting, changed), wait_flush=False)
    kept.put_back()
    clock.now_ms += 5000
    with open_small(tmp_path, clock) as store:
        turns(store)
        assert bodies(store) == [b"1"]


def test_what_stands_before_a_waiting_message_is_no_copy_of_it(tmp_path, clock):
    """The file is 4.9's, so the log is read from the first waiting message on."""
    same = Message(topic=TOPIC, body=b"same", properties={"DELAY": "1"}, born_timestamp_ms=1)
    with open_small(tmp_path, clock) as store:
        put(store, b"early", level=3)
        store.put(same)
        clock.now_ms += 1000
        turns(store)
        store.put(same)
    kept = Kept(tmp_path)
    kept.content = dumps({"offsetTable": {1: 1}}).encode()
    kept.put_back()
    with open_small(tmp_path, clock) as store:
        clock.now_ms += 60_000
        turns(store)
        assert sorted(bodies(store)) == [b"early", b"same", b"same"]


def test_equal_messages_are_told_apart_by_their_number(tmp_path, clock):
    with open_small(tmp_path, clock) as store:
        for _ in range(6):
            put(store, b"same")
            clock.now_ms += 10
        turns(store)
        kept = Kept(tmp_path)
        clock.now_ms = START_MS + 1000 + 20
        turns(store)
        assert len(bodies(store)) == 3
    kept.put_back()
    with open_small(tmp_path, clock) as store:
        turns(store)
        assert len(bodies(store)) == 3
        clock.now_ms += 5000
        turns(store)
        assert len(bodies(store)) == 6


def test_deliveries_out_of_order_leave_none_behind(tmp_path, clock):
    """As a Java broker with asynchronous delivery may leave it: the second is there, the first not.

    As long as that is so, the place in the log from which copies count stays where it was.
    """
    with open_small(tmp_path, clock) as store:
        for number in range(3):
            put(store, b"%d" % number)
        second = store.get(WAITING, 0, 1).messages[0]
        store.put_record(TOPIC, 0, copy_of(second))
    for _ in range(2):
        with open_small(tmp_path, clock) as store:
            turns(store)
            assert store.delays.delivery.levels[0].offset == 0
            assert store.delays.delivery.levels[0].delivered == {1}
    clock.now_ms += 1000
    with open_small(tmp_path, clock) as store:
        turns(store)
        assert bodies(store) == [b"1", b"0", b"2"]
        assert store.delays.delivery.levels[0].offset == 3


@pytest.mark.parametrize("offset", [-5, 2, 1000, 1 << 70])
def test_an_offset_outside_its_queue_costs_no_message(tmp_path, clock, offset):
    """K-S5: 4.9 before 4.9.2 waits until the queue has caught up, later ones pass over `a`."""
    with open_small(tmp_path, clock) as store:
        put(store, b"a")
        turns(store)
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{offset}}}}}')
    clock.now_ms += 1000
    with open_small(tmp_path, clock) as store:
        turns(store)
        put(store, b"b")
        clock.now_ms += 1000
        turns(store)
        assert bodies(store) == [b"a", b"b"]
    with open_small(tmp_path, clock) as store:
        turns(store)
        assert bodies(store) == [b"a", b"b"]


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 40, b'{"offsetTable":[1]}'])
def test_a_broken_file_loses_nothing(tmp_path, clock, content):
    with open_small(tmp_path, clock) as store:
        put(store, b"a")
        put(store, b"b", level=2)
        clock.now_ms += 1000
        turns(store)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (tmp_path / "config" / name).write_bytes(content)
    with open_small(tmp_path, clock) as store:
        clock.now_ms += 5000
        turns(store)
        assert bodies(store) == [b"a", b"b"]


@pytest.mark.parametrize("log_end", [-5, 99_999, 1 << 62])
def test_a_log_end_that_is_not_of_this_log_is_not_believed(tmp_path, clock, log_end):
    """One of a longer log: its copies are gone, so their messages are delivered again."""
    with open_small(tmp_path, clock) as store:
        put(store, b"a")
        turns(store)
    (tmp_path / "config").mkdir(exist_ok=True)
    content = f'{{"logEnd":{log_end},"offsetTable":{{1:1}}}}'
    (tmp_path / "config/delayOffset.json").write_text(content)
    clock.now_ms += 1000
    with open_small(tmp_path, clock) as store:
        turns(store)
        assert bodies(store) == [b"a"]


def test_a_save_that_failed_is_tried_again_although_nothing_was_delivered_since(
    tmp_path, clock, monkeypatch
):
    with open_small(tmp_path, clock, flush_delay_offset_interval=1) as store:
        put(store, b"a")
        turns(store)
        clock.now_ms += 1000
        for _ in range(3):
            store.delays.turn()
            clock.now_ms += 1
        store.flush()
        with monkeypatch.context() as broken:
            broken.setattr("rocketstore.tables.delay_offsets.write_atomically", _no_room)
            with pytest.raises(StoreError):
                store.delays.turn()
        for _ in range(3):
            clock.now_ms += 1
            store.delays.turn()
        assert saved(tmp_path).offset_table == {1: 1}


def test_a_failed_save_is_no_end(tmp_path, clock, monkeypatch):
    with open_small(tmp_path, clock) as store:
        put(store, b"a")
        turns(store)
        clock.now_ms += 1000
        turns(store)
        monkeypatch.setattr("rocketstore.tables.delay_offsets.write_atomically", _no_room)
        with capture_logs() as said:
            store.close()
    monkeypatch.undo()
    assert "delay.not_saved" in [line["event"] for line in said]
    with open_small(tmp_path, clock) as store:
        turns(store)
        assert bodies(store) == [b"a"]


def _no_room(*_args, **_named):
    raise OSError(28, "No space left on device")
