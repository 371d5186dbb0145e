"""Everything 4.9.3 answered about its own stores, asked again of them.

Each case's manifest holds what Java's store read from the very files. The answers must be equal
except where a row of docs/compatibility.md says that Java's is wrong; there a test states Java's
value and ours. All is asked twice: of files read with `pread`, and of memory maps.
"""

import base64
import functools
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import Reader
from rocketstore.units import QueueKey
from support.golden import golden_case, manifest
from support.mapped_reader import mapped_reader

PLAIN = (
    "basic", "batch", "broker", "cqext", "delay", "ipv6", "multidispatch", "transactions",
)  # fmt: skip
EXPIRED = ("base", "files_removed", "files_and_cq_removed", "deleted_by_store")
CASES = (*PLAIN, *(f"expired/{name}" for name in EXPIRED))
SOURCES = ("pread", "mapped")

CRASHED = (
    "checkpoint_zero", "cq_behind", "garbage_tail", "index_deleted", "noabort_torn", "plain",
    "torn_body_crc", "torn_half_zero",
)  # fmt: skip
"""Crash cases whose directory after Java's recovery says all by itself what Java kept."""


def directory_of(case: str) -> Path:
    if case.startswith("expired/"):
        return golden_case("expired") / case.removeprefix("expired/")
    return golden_case(case) / "store"


@functools.cache
def answers(case: str) -> dict[str, Any]:
    if case.startswith("expired/"):
        directory = golden_case("expired")
        text = (directory / f"{case.removeprefix('expired/')}.manifest.json").read_text()
        return dict(json.loads(text))
    return manifest(golden_case(case))


@functools.cache
def reader_of(case: str, source: str) -> Reader:
    if source == "pread":
        return ReadOnlyStore(directory_of(case))
    return mapped_reader(directory_of(case))


@pytest.fixture(scope="module", autouse=True)
def _close_readers():
    yield
    reader_of.cache_clear()


@pytest.fixture(params=CASES)
def case(request):
    return str(request.param)


@pytest.fixture(params=SOURCES)
def reader(request, case):
    return reader_of(case, request.param)


def queues_of(java: dict[str, Any]) -> dict[QueueKey, dict[str, Any]]:
    return {
        QueueKey(topic, int(queue_id)): queue
        for topic, queues in java["consumeQueues"].items()
        for queue_id, queue in queues.items()
    }


def messages_of(java: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {record["phy"]: record for record in java["records"] if record["type"] == "msg"}


def carries(record: dict[str, Any], topic: str, key: str) -> bool:
    properties = record["properties"]
    return record["topic"] == topic and (
        key in properties.get("KEYS", "").split(" ") or key == properties.get("UNIQ_KEY")
    )


# --- records and queues ---------------------------------------------------------------------------


def test_every_record_is_found_by_its_id_and_decodes_to_the_manifest(case, reader):
    for record in messages_of(answers(case)).values():
        message = reader.by_id(record["msgId"])
        assert message is not None, record["phy"]
        assert message.message_id == record["msgId"]
        assert message.physical_offset == record["phy"] == record["physicalOffset"]
        for ours, theirs in (
            ("topic", "topic"), ("queue_id", "queueId"), ("queue_offset", "queueOffset"),
            ("size", "size"), ("sys_flag", "sysFlag"), ("flag", "flag"),
            ("born_timestamp_ms", "bornTimestamp"), ("store_timestamp_ms", "storeTimestamp"),
            ("reconsume_times", "reconsumeTimes"), ("body_crc", "bodyCRC"),
            ("prepared_transaction_offset", "preparedTransactionOffset"),
            ("properties", "properties"),
        ):  # fmt: skip
            assert getattr(message, ours) == record[theirs], (record["phy"], ours)
        if "bodyB64" in record:
            assert message.raw_body == base64.b64decode(record["bodyB64"])


def test_offsets_of_the_log_are_javas(case):
    store = reader_of(case, "pread")
    assert isinstance(store, ReadOnlyStore)
    assert store.min_physical_offset == answers(case)["minPhyOffset"]
    assert store.max_physical_offset == answers(case)["maxPhyOffset"]
    assert store.findings == []


def test_offsets_and_entries_of_every_queue_are_javas(case, reader):
    for key, queue in queues_of(answers(case)).items():
        assert reader.min_offset(*key) == queue["minOffset"], key
        assert reader.max_offset(*key) == queue["maxOffset"], key
        entries = list(reader.queue_entries(*key, queue["minOffset"]))
        assert [offset for offset, _ in entries] == list(
            range(queue["minOffset"], queue["maxOffset"])
        ), key
        assert [list(entry) for _, entry in entries] == queue["entries"], key


def test_queues_listed_are_those_that_have_a_file(case, reader):
    on_disk = {key for key, queue in queues_of(answers(case)).items() if queue["maxOffset"]}
    assert set(reader.queues()) == on_disk
    assert reader.topics() == sorted({key.topic for key in on_disk})


# --- get ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["get", "get_raw", "get_views"])
def test_every_get_answers_as_java_did(case, reader, method):
    records = messages_of(answers(case))
    for java in answers(case)["getMessage"]:
        page = getattr(reader, method)(
            java["topic"], java["queueId"], java["offset"], java["maxMsgNums"]
        )
        assert page.status.value == java["status"], java
        assert (page.min_offset, page.max_offset) == (java["minOffset"], java["maxOffset"]), java
        if java["status"] != "OFFSET_OVERFLOW_BADLY":  # K-O1
            assert page.next_offset == java["nextBeginOffset"], java
        assert page.skipped_entries == 0, java
        wanted = java["phyOffsets"]
        if method == "get":
            assert [message.physical_offset for message in page.messages] == wanted, java
        elif method == "get_views":
            assert [len(view) for view in page.records] == [records[o]["size"] for o in wanted]
        else:
            assert page.message_count == len(wanted)
            assert len(page.records) == java["bufferTotalSize"], java


def test_k_o1_an_offset_beyond_the_end_goes_to_the_end_and_not_back_to_0(case, reader):
    asked = [g for g in answers(case)["getMessage"] if g["status"] == "OFFSET_OVERFLOW_BADLY"]
    assert asked
    for java in asked:
        page = reader.get(java["topic"], java["queueId"], java["offset"], java["maxMsgNums"])
        expected_of_java = 0 if java["minOffset"] == 0 else java["maxOffset"]
        assert java["nextBeginOffset"] == expected_of_java
        assert page.next_offset == java["maxOffset"]


def test_raw_pages_are_the_bytes_of_the_views(case, reader):
    for java in answers(case)["getMessage"]:
        asked = java["topic"], java["queueId"], java["offset"], java["maxMsgNums"]
        raw, views = reader.get_raw(*asked), reader.get_views(*asked)
        assert bytes(raw.records) == b"".join(views.records)
        assert (raw.status, *raw[3:]) == (views.status, *views[2:])


# --- by time --------------------------------------------------------------------------------------


def true_offset_at(java: dict[str, Any], key: QueueKey, timestamp_ms: int) -> int:
    queue, records = queues_of(java)[key], messages_of(java)
    for queue_offset, (physical_offset, _, _) in enumerate(queue["entries"], queue["minOffset"]):
        record = records.get(physical_offset)
        if record is not None and record["storeTimestamp"] >= timestamp_ms:
            return queue_offset
    return int(queue["maxOffset"])


def test_offset_at_is_the_first_message_stored_at_or_after_the_moment(case, reader):
    java = answers(case)
    for topic, queue_id, timestamp_ms, _ in java["offsetInQueueByTime"]:
        expected = true_offset_at(java, QueueKey(topic, queue_id), timestamp_ms)
        assert reader.offset_at(topic, queue_id, timestamp_ms) == expected


def kind_of_difference(java: dict[str, Any], query: list[Any]) -> str | None:
    """Which row of the known bugs explains Java's answer; None when it is right."""
    topic, queue_id, timestamp_ms, answer = query
    key = QueueKey(topic, queue_id)
    queue, records = queues_of(java)[key], messages_of(java)
    ours = true_offset_at(java, key, timestamp_ms)
    if answer == ours:
        return None
    if answer < queue["minOffset"]:
        return "K-T4"
    if ours == queue["maxOffset"]:
        return "K-T2"
    stored = records[queue["entries"][answer - queue["minOffset"]][0]]["storeTimestamp"]
    if stored == timestamp_ms:
        return "K-T3"
    first = records[queue["entries"][0][0]]["storeTimestamp"]
    # Java searches one file: it returns that file's nearest, or its first or last, message.
    return "K-T1" if stored > timestamp_ms or timestamp_ms <= first else "nearest"


def test_k_t_every_other_answer_of_java_is_a_known_one():
    kinds: Counter[str] = Counter()
    for case in CASES:
        java = answers(case)
        for query in java["offsetInQueueByTime"]:
            kind = kind_of_difference(java, query)
            if kind is not None:
                kinds[kind] += 1
    assert set(kinds) <= {"K-T1", "K-T2", "K-T3", "K-T4", "nearest"}
    assert {"K-T2", "K-T3", "nearest"} <= set(kinds)


def test_k_t2_a_moment_after_the_last_message_gives_the_end_and_not_the_last_message():
    java = answers("basic")
    queue = java["consumeQueues"]["TopicA"]["0"]
    behind = [q for q in java["offsetInQueueByTime"] if q[:2] == ["TopicA", 0]][-1]
    last = messages_of(java)[queue["entries"][-1][0]]["storeTimestamp"]
    assert behind[2] > last
    assert behind[3] == queue["maxOffset"] - 1
    for source in SOURCES:
        assert reader_of("basic", source).offset_at("TopicA", 0, behind[2]) == queue["maxOffset"]


def test_k_t3_of_messages_stored_in_the_same_millisecond_the_first_is_found():
    java = answers("batch")
    query = next(q for q in java["offsetInQueueByTime"] if kind_of_difference(java, q) == "K-T3")
    topic, queue_id, timestamp_ms, answer = query
    first = true_offset_at(java, QueueKey(topic, queue_id), timestamp_ms)
    assert first < answer
    for source in SOURCES:
        assert reader_of("batch", source).offset_at(topic, queue_id, timestamp_ms) == first


def test_earliest_message_of_a_queue_is_the_first_that_can_be_read(case, reader):
    records = messages_of(answers(case))
    for key, queue in queues_of(answers(case)).items():
        times = [records[entry[0]]["storeTimestamp"] for entry in queue["entries"]]
        assert reader.earliest_timestamp(*key) == (times[0] if times else None)


# --- by key ---------------------------------------------------------------------------------------


def hits(
    records: dict[int, dict[str, Any]], topic: str, key: str, candidates: list[int]
) -> list[int]:
    """Candidates without repetitions, without records that are gone, without other keys."""
    return [
        offset
        for offset in dict.fromkeys(candidates)
        if offset in records and carries(records[offset], topic, key)
    ]


def test_every_key_finds_what_java_found_less_what_is_no_hit(case, reader):
    java = answers(case)
    records = messages_of(java)
    for name, offsets in java["index"].items():
        topic, _, key = name.partition("#")
        found = [message.physical_offset for message in reader.find(topic, key)]
        assert found == hits(records, topic, key, offsets), name


def test_every_key_of_every_message_finds_it():
    java = answers("basic")
    reader = reader_of("basic", "mapped")
    for offset, record in messages_of(java).items():
        keys = [*record["properties"].get("KEYS", "").split(" ")]
        keys.append(record["properties"].get("UNIQ_KEY", ""))
        for key in filter(None, keys):
            found = reader.find(record["topic"], key, max_messages=10_000)
            assert offset in [message.physical_offset for message in found], (offset, key)


def test_a_range_of_times_is_exact_to_the_millisecond(case, reader):
    java = answers(case)
    records = messages_of(java)
    for topic, key, max_messages, begin_ms, end_ms, _ in java["indexTimeQueries"]:
        # All candidates of the key, which the manifest lists without a range.
        candidates = java["index"].get(f"{topic}#{key}", [])
        expected = [
            offset
            for offset in hits(records, topic, key, candidates)
            if begin_ms <= records[offset]["storeTimestamp"] <= end_ms
        ][:max_messages]
        found = reader.find(topic, key, begin_ms=begin_ms, end_ms=end_ms, max_messages=max_messages)
        assert [message.physical_offset for message in found] == expected, (key, begin_ms, end_ms)


def test_k_q1_a_key_whose_hash_collides_is_not_returned():
    assert answers("basic")["index"]["TopicA#Aa"] == [94351, 93893]
    records = messages_of(answers("basic"))
    assert not carries(records[94351], "TopicA", "Aa")
    for source in SOURCES:
        found = reader_of("basic", source).find("TopicA", "Aa")
        assert [message.physical_offset for message in found] == [93893]


def test_k_i6_a_range_that_begins_in_the_second_of_a_message_finds_it():
    java = answers("cqext")
    query = ["ExtTopic", "7F0000012A139A5500000000000010B8", 3, 1795237425729, 1795237425907, []]
    assert query in java["indexTimeQueries"]
    assert messages_of(java)[45486]["storeTimestamp"] >= query[3]
    for source in SOURCES:
        found = reader_of("cqext", source).find(
            query[0], query[1], begin_ms=query[3], end_ms=query[4], max_messages=3
        )
        assert [message.physical_offset for message in found] == [45486]


def test_k_i5_the_first_message_of_a_later_index_file_is_found_by_its_time():
    java = answers("basic")
    first, second = java["indexFiles"][:2]
    offset, begin_ms = second["beginPhyOffset"], second["beginTimestamp"]
    assert first["endTimestamp"] <= begin_ms
    record = messages_of(java)[offset]
    assert record["storeTimestamp"] == begin_ms
    # Of the two items of the record the first one still fitted the file before.
    keys = record["properties"]["UNIQ_KEY"], record["properties"]["KEYS"]
    for source, key in itertools.product(SOURCES, keys):
        found = reader_of("basic", source).find(
            record["topic"], key, begin_ms=begin_ms, end_ms=begin_ms
        )
        assert [message.physical_offset for message in found] == [offset]


def test_k_i8_a_message_that_is_indexed_twice_is_returned_once():
    out = golden_case("crash") / "plain" / "out"
    java = manifest(golden_case("crash") / "plain")
    assert java["index"]["CrashA#ck799"] == [385525, 385525]
    found = ReadOnlyStore(out).find("CrashA", "ck799")
    assert [message.physical_offset for message in found] == [385525]


def test_k_q2_deleted_messages_are_passed_over_and_take_no_place():
    java = answers("expired/files_removed")
    gone = [o for o in java["index"]["CrashB#cg13"] if o < java["minPhyOffset"]]
    assert gone
    kept = [o for o in java["index"]["CrashB#cg13"] if o >= java["minPhyOffset"]]
    for source in SOURCES:
        found = reader_of("expired/files_removed", source).find("CrashB", "cg13")
        assert [message.physical_offset for message in found] == kept


# --- stores that Java recovered -------------------------------------------------------------------


@pytest.mark.parametrize("case", CRASHED)
def test_a_store_that_java_recovered_reads_as_java_reads_it(case):
    java = manifest(golden_case("crash") / case)
    store = ReadOnlyStore(golden_case("crash") / case / "out")
    assert store.max_physical_offset == java["maxPhyOffset"]
    for key, queue in queues_of(java).items():
        assert (store.min_offset(*key), store.max_offset(*key)) == (
            queue["minOffset"],
            queue["maxOffset"],
        ), key
    for asked in java["getMessage"]:
        page = store.get(asked["topic"], asked["queueId"], asked["offset"], asked["maxMsgNums"])
        assert page.status.value == asked["status"]
        assert [message.physical_offset for message in page.messages] == asked["phyOffsets"]


def test_k_c2_a_queue_that_java_rebuilt_begins_at_its_first_message_not_at_a_filler():
    java = manifest(golden_case("crash") / "cq_deleted")
    store = ReadOnlyStore(golden_case("crash") / "cq_deleted" / "out")
    queue = java["consumeQueues"]["CrashA"]["0"]
    assert queue["minOffset"] == 100
    assert store.min_offset("CrashA", 0) == 183
    entries = dict(store.queue_entries("CrashA", 0))
    assert all(entries[offset].is_filler for offset in range(100, 183))
    assert entries[183].is_message
    page = store.get("CrashA", 0, 183)
    assert page.messages[0].physical_offset == entries[183].physical_offset


def test_intact_records_after_a_damaged_one_are_read_although_java_cut_there():
    java = manifest(golden_case("crash") / "bitflip_middle_last_file")
    store = ReadOnlyStore(golden_case("crash") / "bitflip_middle_last_file" / "out")
    flipped = java["extra"]["flippedRecord"]
    assert java["maxPhyOffset"] == flipped
    assert store.max_physical_offset == java["extra"]["baseEnd"]
    assert store.at_physical_offset(flipped) is None
    pages = [store.get("CrashA", queue_id, 355) for queue_id in (0, 1)]
    offsets = [message.physical_offset for page in pages for message in page.messages]
    assert flipped not in offsets
    assert max(offsets) > flipped
