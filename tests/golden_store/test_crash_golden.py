"""Stores that a killed or damaged 4.9.3 broker left: recovered as Java recovers them, and better.

Each case has `in` (as found), `out` (after Java opened it) and a manifest of `out`. Under
``compatible`` our recovery of `in` must end where Java's ended; under ``salvage`` every intact
record of `in` must be there, queues and index must agree with the log, and nothing else may.
"""

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocketstore.audit.store_audit import QueueAudit
from rocketstore.config import RecoveryPolicy, StoreConfig
from rocketstore.message_store import MessageStore
from rocketstore.rules.expectation import expected_entries
from rocketstore.rules.log_rules import LogView
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.rules.unbacked import LogBounds, UnbackedKind
from rocketstore.storage.checkpoint import read_checkpoint
from rocketstore.storage.recovery.log_survey import chain_records, survey_log
from rocketstore.storage.recovery.recover import LoadedStore, RecoveryReport, recover
from rocketstore.verification.queue_rules import added
from support.golden import CRASH_CASES, golden_case, manifest
from support.index_answers import find
from support.store_parts import INDEX_LAYOUT, LOG_FILE_BYTES, QUEUE_FILE_BYTES, load_parts

NOW_MS = 1_795_240_000_000
CLEAN_CASES = frozenset({"noabort_torn"})


def recovered(
    case: str, tmp_path: Path, policy: RecoveryPolicy
) -> tuple[LoadedStore, RecoveryReport]:
    root = tmp_path / case
    shutil.copytree(golden_case("crash") / case / "in", root)
    parts = load_parts(root, now_ms=NOW_MS, config=StoreConfig(recovery_policy=policy))
    checkpoint = read_checkpoint(root / "checkpoint")
    clean = not (root / "abort").exists()
    report = recover(parts, clean=clean, now_ms=NOW_MS, checkpoint=checkpoint)
    return parts, report


def record_count(survey: LogView) -> int:
    return sum(chain.record_count for chain in survey.kept)


@functools.cache
def java(case: str) -> dict[str, Any]:
    return manifest(golden_case("crash") / case)


@pytest.mark.parametrize("case", CRASH_CASES)
def test_compatible_recovery_ends_the_log_where_java_does(case, tmp_path):
    parts, report = recovered(case, tmp_path, RecoveryPolicy.COMPATIBLE)
    assert report.was_clean == (case in CLEAN_CASES)
    assert report.end == java(case)["maxPhyOffset"]
    assert parts.log_files.max_offset == java(case)["maxPhyOffset"]
    assert parts.log_files.min_offset == java(case)["minPhyOffset"]


@pytest.mark.parametrize("case", CRASH_CASES)
def test_compatible_recovery_keeps_the_records_that_java_keeps(case, tmp_path):
    parts, report = recovered(case, tmp_path, RecoveryPolicy.COMPATIBLE)
    survey = survey_log(parts.log_files.files, now_ms=NOW_MS)
    found = [
        (int(offset), int(size))
        for file in parts.log_files.files
        for columns in chain_records(file, file.base, file.end)
        for offset, size in zip(columns.physical_offset, columns.size, strict=True)
    ]
    expected = [(r["phy"], r["size"]) for r in java(case)["records"] if r["type"] == "msg"]
    assert found == expected
    assert survey.end == java(case)["maxPhyOffset"]
    told = {int(one.file[-20:]) + one.offset for one in report.findings if one.kind == "log-end"}
    assert told <= {survey.end}


@pytest.mark.parametrize("case", CRASH_CASES)
def test_compatible_recovery_gives_the_queue_entries_that_java_gives(case, tmp_path):
    parts, report = recovered(case, tmp_path, RecoveryPolicy.COMPATIBLE)
    offsets = {f"{key.topic}-{key.queue_id}": n for key, n in report.queue_offsets.items()}
    for topic, queues in java(case)["consumeQueues"].items():
        for queue_id, expected in queues.items():
            if not expected["entries"]:
                continue
            queue = next(q for q in parts.queues.all() if q.key == (topic, int(queue_id)))
            first = expected["maxOffset"] - len(expected["entries"])
            found = [queue.entry(n) for n in range(first, queue.max_offset)]
            assert [list(entry or ()) for entry in found] == expected["entries"]
            assert queue.first_offset == first
            assert queue.max_physical_offset == expected["maxPhysicOffset"]
            assert (
                offsets[f"{topic}-{queue_id}"]
                == java(case)["topicQueueTable"][f"{topic}-{queue_id}"]
            )


def opened(case: str, tmp_path: Path, policy: RecoveryPolicy) -> MessageStore:
    root = tmp_path / case
    shutil.copytree(golden_case("crash") / case / "in", root)
    config = StoreConfig(
        recovery_policy=policy,
        retention=False,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,  # `cq_deleted` has none to learn from
        max_hash_slot_num=INDEX_LAYOUT.slot_count,
        max_index_num=INDEX_LAYOUT.item_count,
    )
    return MessageStore.open(root, config, clock=lambda: NOW_MS, threads=False)


@pytest.mark.parametrize("case", CRASH_CASES)
def test_compatible_recovery_answers_gets_as_java_does(case, tmp_path):
    asked = 0
    with opened(case, tmp_path, RecoveryPolicy.COMPATIBLE) as store:
        for query in java(case)["getMessage"]:
            topic, queue_id, offset = query["topic"], query["queueId"], query["offset"]
            if query["status"] == "NO_MESSAGE_IN_QUEUE":
                continue  # the 18 delay queues, which 4.9 keeps in memory only
            maximum = query["maxMsgNums"]
            page = store.get(topic, queue_id=queue_id, offset=offset, max_messages=maximum)
            if case == "cq_deleted" and topic == "CrashA" and offset < 183:
                # Java's minimum is 100, a filler: it counts as an entry there (K-C2).
                assert query["minOffset"] == 100
                assert page.min_offset == 183
                continue
            if case == "cq_deleted" and topic == "CrashB" and offset < page.min_offset:
                assert query["minOffset"] == 0
                continue
            expected_next = query["nextBeginOffset"]
            if query["status"] == "OFFSET_OVERFLOW_BADLY":
                expected_next = query["maxOffset"]  # K-O1: Java goes back to 0
            assert page.status.name == query["status"]
            assert page.next_offset == expected_next
            assert [m.physical_offset for m in page.messages] == query["phyOffsets"]
            assert page.max_offset == query["maxOffset"]
            asked += 1
    assert asked > 30


@pytest.mark.parametrize("case", CRASH_CASES)
def test_compatible_recovery_finds_the_keys_that_java_finds(case, tmp_path):
    with opened(case, tmp_path, RecoveryPolicy.COMPATIBLE) as store:
        for query, offsets in java(case)["index"].items():
            topic, key = query.split("#", 1)
            found = [message.physical_offset for message in store.find(topic, key=key)]
            # K-I8: Java finds the record at its recovery's border twice, and records it has cut.
            wanted = {offset for offset in offsets if offset < java(case)["maxPhyOffset"]}
            assert len(found) == len(set(found))
            # K-I1: Java's index has lost the keys of older records.
            assert wanted <= set(found) if case == "index_deleted" else wanted == set(found)


@pytest.mark.parametrize("case", CRASH_CASES)
def test_salvage_keeps_every_intact_record(case, tmp_path):
    before = load_parts(golden_case("crash") / case / "in", now_ms=NOW_MS)
    intact = survey_log(before.log_files.files, now_ms=NOW_MS)
    parts, report = recovered(case, tmp_path, RecoveryPolicy.SALVAGE)
    after = survey_log(parts.log_files.files, now_ms=NOW_MS)
    assert report.end == intact.end == after.end
    assert record_count(after) == record_count(intact)
    assert record_count(after) >= sum(r["type"] == "msg" for r in java(case)["records"])


@pytest.mark.parametrize("case", CRASH_CASES)
def test_salvage_lets_queues_and_log_agree(case, tmp_path):
    parts, report = recovered(case, tmp_path, RecoveryPolicy.SALVAGE)
    survey = survey_log(parts.log_files.files, now_ms=NOW_MS)
    numbers = QueueNumbers()
    audit = QueueAudit(parts.layout.consume_queue, QUEUE_FILE_BYTES)
    for chain in survey.kept:
        file = parts.log_files.find(chain.start)
        for columns in chain_records(file, chain.start, chain.stop):
            expected = expected_entries(columns, numbers, np.zeros(0, np.int64))
            for queue, part in audit.compare(expected, numbers.keys()):
                queue.part = added(queue.part, part)
    lost = survey.bounds().lost
    bounds = LogBounds(
        0, report.end, parts.log_files.files[-1].base + LOG_FILE_BYTES, LOG_FILE_BYTES, lost
    )
    holes = 0
    for queue in audit.queues.values():
        queue.conclude([] if queue.part is None else [queue.part], bounds)
        assert not len(queue.truly_missing)
        for run in queue.unbacked:
            if run.kind is UnbackedKind.KEPT:  # the torn record had an entry already
                assert run.is_tail
                continue
            assert run.kind is UnbackedKind.LOST
            holes += run.stop - run.start
    assert holes == (case == "bitflip_middle_last_file")


@pytest.mark.parametrize("case", CRASH_CASES)
def test_salvage_indexes_every_key_once(case, tmp_path):
    parts, _ = recovered(case, tmp_path, RecoveryPolicy.SALVAGE)
    answers = java("plain")["index"]
    asked = 0
    for query, offsets in answers.items() if isinstance(answers, dict) else answers:
        topic, key = query.split("#", 1)
        found = find(parts.index, topic, key, max_count=64)
        # K-I8: Java indexes the last record before a crash twice.
        expected = list(dict.fromkeys(o for o in offsets if parts.log_files.max_offset > o))
        lost = 526_666 if case == "bitflip_middle_last_file" else -1
        assert found == [offset for offset in expected if offset != lost]
        asked += 1
    assert asked > 100


@pytest.mark.parametrize("case", CRASH_CASES)
@pytest.mark.parametrize("policy", RecoveryPolicy)
def test_recovery_of_a_recovered_store_changes_nothing(case, policy, tmp_path):
    parts, first = recovered(case, tmp_path, policy)
    root = parts.layout.root
    content = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    again = load_parts(root, now_ms=NOW_MS, config=StoreConfig(recovery_policy=policy))
    checkpoint = read_checkpoint(root / "checkpoint")
    second = recover(again, clean=False, now_ms=NOW_MS + 1, checkpoint=checkpoint)
    assert second.end == first.end
    assert second.queue_offsets == first.queue_offsets
    assert second.evidence is None
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    index = parts.layout.index
    assert {p: b for p, b in after.items() if index not in p.parents} == {
        p: b for p, b in content.items() if index not in p.parents
    }


def test_what_is_cut_is_kept(tmp_path):
    parts, report = recovered("torn_body_crc", tmp_path, RecoveryPolicy.SALVAGE)
    original = golden_case("crash") / "torn_body_crc" / "in" / "commitlog" / "00000000000000524288"
    assert report.evidence is not None
    (kept,) = (parts.layout.root / report.evidence).glob("commitlog/*@*")
    begin, stop = (int(n) for n in kept.name.partition("@")[2].split("-"))
    assert begin == 531_279 - 524_288
    assert kept.read_bytes() == original.read_bytes()[begin:stop]
    assert not parts.log_files.files[-1].array[begin:].any()
