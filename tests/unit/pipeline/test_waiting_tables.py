"""Tables ``delays`` and ``transactions``: what waits in stores of Java, and in stores of ours."""

import json
import random
import shutil
import struct

import msgspec
import pytest

from rocketstore import Message, MessageStore
from rocketstore.delay import waiting_messages
from rocketstore.errors import StoreDamagedError
from rocketstore.format.host import encode_host
from rocketstore.format.metadata_json import DelayOffsets, decode_table
from rocketstore.format.properties import encode_properties
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.native.log_end import Record
from rocketstore.rules.half_messages import TRANSACTION_GROUP as GROUP
from rocketstore.rules.topics import HALF_TOPIC, OP_TOPIC
from rocketstore.transaction.ledger import endings_of, read_ledger
from rocketstore.transaction.records import times_checked
from support.clock import Clock
from support.extended_store import open_extended, units_of
from support.golden_stores import golden_root, golden_store
from support.pipeline_tables import plan_table, read_table
from support.small_store import CONFIG, open_store, overwrite
from support.store_files import overwrite_file

DELAYS, CONSUMERS = "config/delayOffset.json", "config/consumerOffset.json"
BORN_MS = 1_700_000_000_000


def in_ms(moment):
    return None if moment is None else round(moment.timestamp() * 1000)


def copy_of(name, tmp_path):
    return shutil.copytree(golden_root(name), tmp_path / name)


def write_offsets(store, file, offsets):
    (store / file).parent.mkdir(exist_ok=True)
    (store / file).write_text(json.dumps({"offsetTable": offsets}))


# --- delays -------------------------------------------------------------------------------------


def waiting_in_java(manifest, offsets):
    """Return what Java's queues hold from the level's offset on, with its records."""
    records = {one["phy"]: one for one in manifest["records"]}
    found = []
    for queue_id, queue in manifest["consumeQueues"].get(DELAY_TOPIC, {}).items():
        level = int(queue_id) + 1
        for number, (at, size, due_ms) in enumerate(queue["entries"]):
            if number >= offsets.get(level, 0):
                one = records[at]
                properties = one["properties"]
                place = level, due_ms, properties["REAL_TOPIC"], int(properties["REAL_QID"])
                said = number, at, size, one["bodyLen"], properties["UNIQ_KEY"]
                found.append((*place, *said, one["bornTimestamp"], one["storeTimestamp"]))
    return sorted(found)


def waiting_here(store, **options):
    names = "level dueTimestamp realTopic realQueueId queueOffset physicalOffset size bodySize"
    names = [*names.split(), "uniqKey", "bornTimestamp", "storeTimestamp"]
    rows = read_table(store, table="delays", **options)
    values = ([row[one] for one in names] for row in rows)
    return sorted(
        tuple(in_ms(one) if hasattr(one, "timestamp") else one for one in row) for row in values
    )


@pytest.mark.parametrize(("name", "count"), [("delay", 38), ("broker", 7), ("transactions", 1)])
def test_delays_are_the_entries_that_java_has_not_delivered(name, count):
    store, manifest = golden_store(name)
    offsets = decode_table((store / DELAYS).read_bytes(), DelayOffsets).offset_table
    expected = waiting_in_java(manifest, offsets)
    assert len(expected) == count
    assert waiting_here(store) == expected
    assert waiting_here(store, maxSplitBytes=2_000) == expected


def test_an_offset_that_nothing_says_is_the_first_and_one_too_far_the_end(tmp_path):
    store = copy_of("delay", tmp_path)
    _, manifest = golden_store("delay")
    write_offsets(store, DELAYS, {1: 999, 2: 6, 3: -4})
    assert waiting_here(store) == waiting_in_java(manifest, {1: 12, 2: 6})
    (store / DELAYS).unlink()
    assert waiting_here(store) == waiting_in_java(manifest, {})


def test_tags_and_keys_of_what_waits_can_be_asked_for_without_its_due_time():
    rows = read_table(golden_root("delay"), table="delays", columns="keys,tags,level")
    assert {tuple(row["keys"]) for row in rows} >= {("dk1",), ("dk3",)}
    assert {row["tags"] for row in rows} == {None, "D"}


def test_queues_of_other_topics_are_not_listed(tmp_path, looks):
    store = copy_of("delay", tmp_path)
    for name in ("A", "B"):
        (store / "consumequeue" / name / "0").mkdir(parents=True)
    looks.clear()
    assert plan_table(store, table="delays")
    queues = {path.rpartition("/consumequeue/")[2].partition("/")[0] for path in looks}
    assert not {"A", "B"} & queues


def test_a_store_without_delays_plans_no_task():
    store = golden_root("basic")
    assert plan_table(store, table="delays") == plan_table(store, table="transactions") == []


def test_an_entry_that_does_not_lead_to_its_record_gives_no_due_time(tmp_path):
    store = copy_of("delay", tmp_path)
    [entry_file] = (store / "consumequeue" / DELAY_TOPIC / "17").glob("0*0")
    overwrite_file(entry_file, 20 * 3, struct.pack(">q", 1))
    rows = {row["queueOffset"]: row for row in read_table(store, table="delays", damage="skip")
            if row["level"] == 18}  # fmt: skip
    assert rows[3]["dueTimestamp"] is None
    assert rows[3]["realTopic"] == "DelayTopic"
    assert rows[2]["dueTimestamp"] is not None


def test_a_due_time_that_stands_in_an_extension_is_found_there(tmp_path):
    with open_extended(tmp_path, Clock()) as store:
        for _ in range(3):
            store.put(Message(topic="orders", body=b"b", properties={"DELAY": "2"}))
        store.wait_dispatched()
        due = [unit.tags_code for unit in units_of(store, DELAY_TOPIC, 1)]
    rows = read_table(tmp_path, table="delays")
    assert [in_ms(row["dueTimestamp"]) for row in rows] == due
    shutil.rmtree(tmp_path / "consumequeue_ext")
    rows = read_table(tmp_path, table="delays")
    assert [row["dueTimestamp"] for row in rows] == [None] * 3


def test_damage_among_what_waits_is_an_error_or_passed_over(tmp_path):
    store = copy_of("delay", tmp_path)
    lost = waiting_here(store)[-1]
    overwrite_file(store / "commitlog" / f"{0:020d}", lost[5] + 100, b"\xff")
    with pytest.raises(StoreDamagedError):
        waiting_here(store)
    assert lost not in waiting_here(store, damage="skip")


def listed(root):
    with MessageStore.open(root, read_only=True) as store:
        return sorted(waiting_messages(store))


def in_table(root):
    names = ("level", "dueTimestamp", "realTopic", "realQueueId", "physicalOffset", "size")
    rows = read_table(root, table="delays")
    return sorted(
        tuple(in_ms(row[one]) if one[0] == "d" else row[one] for one in names) for row in rows
    )


@pytest.mark.parametrize(("name", "count"), [("delay", 22), ("broker", 3), ("transactions", 1)])
def test_the_list_of_delays_has_those_of_the_table_that_no_message_in_the_log_is_a_copy_of(
    name, count
):
    # Java counts of a run only the first, and would deliver the others again (K-S2).
    root = golden_root(name)
    copies = {
        (row["uniqKey"], row["bornTimestamp"], row["topic"])
        for row in read_table(root, table="commitlog")
        if "DELAY" in dict(row["properties"]) and row["topic"] != DELAY_TOPIC
    }
    waiting = [
        row["physicalOffset"]
        for row in read_table(root, table="delays")
        if (row["uniqKey"], row["bornTimestamp"], row["realTopic"]) not in copies
    ]
    assert sorted(waiting) == sorted(one.physical_offset for one in listed(root))
    assert len(waiting) == count


def test_due_times_are_by_the_levels_that_the_store_was_written_with(tmp_path):
    root, config = tmp_path / "store", msgspec.structs.replace(CONFIG, message_delay_level="7s 2h")
    with MessageStore.open(root, config, clock=Clock(BORN_MS), threads=False) as store:
        for level in (1, 2, 9):
            properties = {"DELAY": str(level)}
            store.put(Message(topic="t", body=b"x", properties=properties), queue_id=3)
        store.wait_dispatched()
    found = [(level, due_ms - BORN_MS, *place) for level, due_ms, *place, _, _ in in_table(root)]
    assert found == [(1, 7_000, "t", 3), (2, 7_200_000, "t", 3), (2, 7_200_000, "t", 3)]
    assert in_table(root) == listed(root)


# --- transactions -------------------------------------------------------------------------------


def open_here(store, **options):
    rows = read_table(store, table="transactions", **options)
    return {row["queueOffset"]: row for row in rows}


@pytest.mark.parametrize("name", ["transactions", "broker"])
def test_no_half_message_of_java_is_open_that_was_ended_or_written_again(name, tmp_path):
    store = copy_of(name, tmp_path)
    assert open_here(store) == {}
    # Every half message and op record there is, as if no check had come by.
    write_offsets(store, CONSUMERS, {})
    assert open_here(store) == {}


def test_without_their_op_records_those_are_open_that_were_not_committed(tmp_path):
    store, (_, manifest) = copy_of("broker", tmp_path), golden_store("broker")
    group = "@CID_RMQ_SYS_TRANS"
    write_offsets(store, CONSUMERS, {HALF_TOPIC + group: {0: 0}, OP_TOPIC + group: {0: 8}})
    committed = {one.get("preparedTransactionOffset") for one in manifest["records"]}
    halves = {
        one["queueOffset"]: one for one in manifest["records"] if one.get("topic") == HALF_TOPIC
    }
    # Java wrote 2, 5, 8 and 11 again as 12 to 15, and the op records 8 to 11 name those.
    expected = {
        number
        for number, one in halves.items()
        if number not in (2, 5, 8, 11, 12, 13, 14, 15) and one["phy"] not in committed
    }
    assert expected == {1, 4, 7, 10}
    found = open_here(store)
    assert set(found) == expected
    for number, row in found.items():
        one = halves[number]
        properties = one["properties"]
        assert row["realTopic"] == properties["REAL_TOPIC"]
        assert row["realQueueId"] == int(properties["REAL_QID"])
        assert row["producerGroup"] == properties["PGROUP"] == "golden_tx_producer"
        assert (row["physicalOffset"], row["size"]) == (one["phy"], one["size"])
        assert in_ms(row["bornTimestamp"]) == one["bornTimestamp"]
        assert (row["checkTimes"], row["keys"]) == (0, [properties["KEYS"]])
    write_offsets(store, CONSUMERS, {HALF_TOPIC + group: {0: 7}, OP_TOPIC + group: {0: 8}})
    assert set(open_here(store)) == {7, 10}


class Broker:
    """Writes half messages and their ends as 4.9 does."""

    def __init__(self, root):
        self.store = open_store(root, Clock())

    def put(self, topic, body, properties, queue_id=0, **numbers):
        encoded = encode_properties(properties)
        record = Record(body, encoded, encode_host("127.0.0.1:1"), **numbers)
        placed = self.store.put_record(topic, queue_id, record)
        assert self.store.wait_dispatched()
        return placed

    def half(self, key, born=BORN_MS, **more):
        properties = {"UNIQ_KEY": key, "REAL_TOPIC": "Real", "REAL_QID": "2", "PGROUP": "pg"}
        self.placed = self.put(HALF_TOPIC, b"body", properties | more, born_timestamp_ms=born)
        return self.placed.queue_offset

    def op(self, body, tags="d"):
        self.put(OP_TOPIC, body, {"TAGS": tags})

    def commit(self, half, topic="Real", key="a", born=BORN_MS, sys_flag=8):
        said = {"UNIQ_KEY": key, "REAL_TOPIC": "Real", "REAL_QID": "2", "PGROUP": "pg"}
        numbers = {"sys_flag": sys_flag, "prepared_offset": half.physical_offset}
        queue_id = 2 if topic == "Real" else 0
        self.put(topic, b"body", said, queue_id, born_timestamp_ms=born, **numbers)


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path / "store")
    yield broker
    broker.store.close()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def checks_of(root, **options):
    return {number: row["checkTimes"] for number, row in open_here(root, **options).items()}


def test_a_check_leaves_only_the_copy_that_it_wrote(broker, root):
    broker.half("a")
    other = broker.half("b")
    again = broker.half("a", TRANSACTION_CHECK_TIMES="1")
    assert checks_of(root) == {other: 0, again: 1}
    last = broker.half("a", TRANSACTION_CHECK_TIMES="2")
    assert checks_of(root) == {other: 0, last: 2}
    broker.op(str(last).encode())
    assert checks_of(root) == {other: 0}


def test_an_answer_to_an_earlier_copy_ends_the_last_one(broker, root):
    first = broker.half("a")
    broker.half("a", TRANSACTION_CHECK_TIMES="1")
    last = broker.half("a", TRANSACTION_CHECK_TIMES="2")
    assert checks_of(root) == {last: 2}
    broker.op(str(first).encode())
    assert checks_of(root) == {}
    broker.half("a", TRANSACTION_CHECK_TIMES="3")
    assert checks_of(root) == {}


def test_a_copy_that_keeps_its_time_of_grace_ends_with_the_half_message_that_it_names(broker, root):
    first = broker.half("a")
    copy = broker.half("a", TRAN_PREPARED_QUEUE_OFFSET=str(first))
    third = broker.half("a", TRAN_PREPARED_QUEUE_OFFSET=str(first))
    assert (copy, list(checks_of(root))) == (1, [third])
    broker.op(str(first).encode())
    assert checks_of(root) == {}


def test_a_message_that_its_producer_sent_twice_is_two_half_messages(broker, root):
    twins = [broker.half("a"), broker.half("a", born=BORN_MS + 3_000), broker.half("a")]
    assert list(checks_of(root)) == twins
    late = broker.half("a", born=BORN_MS + 3_000, TRANSACTION_CHECK_TIMES="1")
    assert checks_of(root) == {twins[0]: 0, twins[2]: 0, late: 1}
    copy = broker.half("a", TRANSACTION_CHECK_TIMES="1")
    assert checks_of(root) == {twins[2]: 0, late: 1, copy: 1}


@pytest.mark.parametrize("topic", ["Real", DELAY_TOPIC])
def test_a_commit_ends_a_half_message_whose_op_record_a_crash_kept_away(broker, root, topic):
    broker.half("a")
    half, other = broker.placed, broker.half("b")
    broker.commit(half, topic)
    assert list(checks_of(root)) == [other]


@pytest.mark.parametrize("body", [b"", b"x", b"0x0", b"-1", b"9" * 400, "\u0660".encode()])
def test_an_op_record_that_names_nothing_ends_nothing(broker, root, body):
    half = broker.half("a")
    broker.op(body)
    broker.op(str(half).encode(), tags="x")
    assert list(checks_of(root)) == [half]
    broker.op(str(half).encode())
    assert checks_of(root) == {}


def test_an_op_record_that_stands_before_a_half_message_names_another_one(broker, root):
    broker.half("a")
    broker.op(b"1")
    broker.half("b")
    assert list(checks_of(root)) == [0, 1]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_of_an_earlier_copy_ends_the_one_that_stands_for_it(broker, root, is_first):
    broker.half("a")
    half = broker.placed
    if is_first:
        broker.commit(half)
    copy = broker.half("a", TRANSACTION_CHECK_TIMES="1")
    assert list(checks_of(root)) == ([] if is_first else [copy])
    broker.commit(half)
    assert checks_of(root) == {}


@pytest.mark.parametrize("sys_flag", [0, 4, 12])
def test_only_a_committed_message_ends_the_half_message_at_its_prepared_offset(
    broker, root, sys_flag
):
    half = broker.half("a")
    assert broker.placed.physical_offset == 0  # which any message names
    broker.commit(broker.placed, sys_flag=sys_flag)
    assert list(checks_of(root)) == [half]


def test_a_commit_of_a_copy_that_is_lost_ends_what_it_stood_for(broker, root):
    broker.half("a")
    broker.half("a", TRANSACTION_CHECK_TIMES="1")
    broker.commit(broker.placed)
    broker.store.flush()
    overwrite(root, broker.placed.physical_offset + 4, b"lost")
    assert checks_of(root, damage="skip") == by_the_service(broker.store, {}) == {}


def test_a_copy_of_a_half_message_that_was_passed_by_stands_alone(broker, root):
    copy = broker.half("a", TRANSACTION_CHECK_TIMES="4", TRAN_PREPARED_QUEUE_OFFSET="77")
    assert checks_of(root) == {copy: 4}


def test_a_copy_read_without_its_original_is_ended_by_what_ended_that(broker, root):
    """Also where a message before that cannot be read."""
    lost = broker.put("Real", b"x", {"a": "b"}, queue_id=2)
    broker.half("a")
    broker.commit(broker.placed)
    broker.half("a", TRANSACTION_CHECK_TIMES="1")
    write_offsets(root, CONSUMERS, {f"{HALF_TOPIC}@{GROUP}": {0: 1}})
    broker.store.flush()
    overwrite(root, lost.physical_offset + 4, b"lost")
    assert by_the_service(broker.store, {(HALF_TOPIC, GROUP, 0): 1}) == {}
    assert checks_of(root, damage="skip") == {}


def test_properties_that_are_no_numbers_are_passed_over(broker, root):
    broker.half("a", REAL_QID="two", TRANSACTION_CHECK_TIMES="99999999999", REAL_TOPIC="")
    [row] = open_here(root).values()
    assert (row["realQueueId"], row["checkTimes"], row["realTopic"]) == (None, 0, None)


def test_several_stores_have_their_own(tmp_path, broker, root):
    broker.half("a")
    other = tmp_path / "other"
    with MessageStore.open(other, CONFIG, threads=False) as store:
        store.put(Message(topic="t", body=b"x"), queue_id=0)
        store.wait_dispatched()
    rows = read_table(f"{root},{other}", table="transactions", brokerName="a,b")
    assert [row["brokerName"] for row in rows] == ["a"]


def by_the_service(store, offsets):
    """Return what `Transactions` takes for open, and how often each was checked."""
    _, found = read_ledger(store, lambda *key: offsets.get(key))
    endings = endings_of(store, found)
    return {
        one.queue_offset: times_checked(one) for one in found if one.queue_offset not in endings
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_table_says_what_the_service_of_transactions_finds(broker, root, seed):
    rng, halves, committed, offsets, counts = random.Random(seed), {}, set(), {}, set()
    for step in range(50):
        half = rng.choice(list(halves)) if halves else None
        what = rng.choice(["half", "half", "half", "copy", "op", "commit", "both", "look", "check"])
        key, born, times = halves.get(half, (f"k{step}", BORN_MS + step, 0))
        if what == "half" or half is None:
            broker.half(f"k{step}", BORN_MS + step)
            halves[broker.placed] = f"k{step}", BORN_MS + step, 0
        if what == "copy" and half in halves:
            del halves[half]
            broker.half(key, born, TRANSACTION_CHECK_TIMES=str(times + 1))
            halves[broker.placed] = key, born, times + 1
        if what in ("commit", "both") and half in halves:
            broker.commit(half, key=key, born=born)
            committed.add(half)
        if what in ("op", "both") and half in halves:
            del halves[half]
            broker.op(str(half.queue_offset).encode())
        if what == "check":
            ledger, _ = read_ledger(broker.store, lambda *key, now=offsets: now.get(key))
            ledger.advance()
            offsets = {(HALF_TOPIC, GROUP, 0): ledger.base, (OP_TOPIC, GROUP, 0): ledger.op_base}
            tables = {f"{topic}@{group}": {0: at} for (topic, group, _), at in offsets.items()}
            write_offsets(root, CONSUMERS, tables)
        if what == "look":
            found = by_the_service(broker.store, offsets)
            assert checks_of(root) == found
            counts.add(len(found))
    assert max(counts) >= 1
