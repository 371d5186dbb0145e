"""Verify: every kind of fault is named with its place, and not a byte is changed."""

import os
import shutil
import struct
from pathlib import Path

import pytest

from rocketstore import MessageStore, repair_store, verify_store
from rocketstore.config import BrokerRole, StoreConfig
from rocketstore.format.checkpoint import Checkpoint, encode_checkpoint
from rocketstore.rules.findings import Finding, LastWriter, Severity, VerifyReport, state_of
from rocketstore.verification.small_files import checkpoint_findings
from support.audit_runs import audited, keys
from support.clock import START_MS, Clock
from support.golden import CASES, golden_case, manifest
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    build_store,
    crashed,
    log_path,
    messages,
    open_store,
    overwrite,
    put_all,
    read_log,
)
from support.store_files import StoreFiles, made_again, overwrite_file
from support.trees import tree_with_times

COUNT = 200
NOW_MS = START_MS + 3_600_000
GOLDEN_NOW_MS = 1_795_300_000_000


@pytest.fixture
def offsets(tmp_path):
    """Build a store of 200 messages over several log files; return where they lie."""
    return build_store(tmp_path / "store", COUNT, Clock())


@pytest.fixture
def root(tmp_path, offsets):
    return tmp_path / "store"


def verify(root: Path) -> VerifyReport:
    return verify_store(root, CONFIG, now_ms=NOW_MS)


def only(report: VerifyReport, kind: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.kind == kind]
    return found


def test_a_broken_table_is_out_of_the_way_as_verify_says(root):
    broken = [root / "config" / f"consumerOffset.json{end}" for end in ("", ".bak")]
    for path in broken:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{")
    assert "move it and its backup (.bak) away" in only(verify(root), "table").action
    for path in broken:
        path.unlink()
    assert all(one.kind != "table" for one in verify(root).findings)


def golden_stores() -> list[tuple[str, str]]:
    inner = {
        "broker": ["store", "store_live_before_shutdown"],
        "expired": ["base", "files_removed", "files_and_cq_removed", "deleted_by_store"],
    }
    return [(case, name) for case in CASES for name in inner.get(case, ["store"])]


@pytest.mark.parametrize(("case", "name"), golden_stores())
def test_a_store_that_java_wrote_verifies(case, name):
    root = golden_case(case) / name
    slots = StoreConfig(max_hash_slot_num=500, max_index_num=2000)
    report = verify_store(root, slots, now_ms=GOLDEN_NOW_MS)
    assert not report.is_damaged
    assert not report.has_warnings
    assert report.counts.message_count > 0
    described = golden_case(case)
    if (described / "manifest.json").exists() and name == "store":
        records = manifest(described)["records"]
        assert report.counts.message_count == sum(r["type"] == "msg" for r in records)
        assert report.counts.message_bytes == sum(r["size"] for r in records if r["type"] == "msg")
        assert report.counts.unwitnessed_bytes == sum(
            r["size"] - r["bodyLen"] for r in records if r["type"] == "msg"
        )


def test_a_healthy_store_is_counted_and_nothing_is_changed(root):
    before = tree_with_times(root)
    report = verify(root)
    assert report.findings == []
    assert report.counts.message_count == COUNT
    assert report.counts.entry_count == COUNT
    assert report.counts.queue_count == 2
    assert report.counts.index_item_count == COUNT
    after = tree_with_times(root)
    assert after == before


def test_a_header_of_an_index_may_count_slots_as_any_broker_did(root):
    # Until 4.7.0 each item counted, and the broker after an upgrade goes on with that number.
    [path] = (root / "index").iterdir()
    content = path.read_bytes()
    [used] = struct.unpack_from(">i", content, 32)
    right = {used, used + 1, COUNT - 1, COUNT}
    for slots in {used - 1, *right, COUNT + 1}:
        path.write_bytes(content[:32] + struct.pack(">i", slots) + content[36:])
        kinds = [one.kind for one in verify(root).findings]
        assert kinds == ([] if slots in right else ["index-header"]), slots


def test_a_broken_body_is_named_with_file_offset_and_reason(root, offsets):
    broken = next(n for n, offset in enumerate(offsets) if offset > LOG_FILE_BYTES)
    overwrite(root, offsets[broken] + 120, b"\xff" * 8)
    report = verify(root)
    found = only(report, "log-damage")
    assert found.severity is Severity.DAMAGE
    assert found.file == f"commitlog/{LOG_FILE_BYTES:020d}"
    assert found.offset == offsets[broken] - LOG_FILE_BYTES
    assert found.size == offsets[broken + 1] - offsets[broken]
    assert found.reason.startswith("bad crc: body CRC: expected")
    assert only(report, "queue-hole").offset == broken // 2 * 20
    assert report.counts.damaged_bytes == found.size


def test_one_thread_or_several_find_the_same(monkeypatch, root, offsets):
    overwrite(root, offsets[50] + 100, b"\0\0")
    log_path(root, 2 * LOG_FILE_BYTES).unlink()
    shutil.rmtree(root / "consumequeue" / "Topic1")  # found again by records of every file
    reports = []
    for cores in ({0}, {0, 1, 2}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process, cores=cores: cores)
        reports.append(verify(root))
    assert reports[0] == reports[1]
    assert {"log-damage", "log-hole", "queue-missing"} <= {f.kind for f in reports[0].findings}


def test_queue_faults_are_told_apart(root):
    queue = root / "consumequeue" / "Topic0" / "0" / "00000000000000000000"
    content = bytearray(queue.read_bytes())
    content[200:220] = content[400:420]
    content[99 * 20 : 100 * 20] = bytes(20)
    queue.write_bytes(content)
    other = root / "consumequeue" / "Topic1" / "0"
    shutil.rmtree(other)
    report = verify(root)
    missing = [f for f in report.findings if f.kind == "queue-missing"]
    assert [(f.file, f.offset, f.size) for f in missing] == [
        ("consumequeue/Topic0/0", 200, 20),
        ("consumequeue/Topic0/0", 1980, 20),
        ("consumequeue/Topic1/0", 0, 2000),
    ]
    assert only(report, "queue-wrong").offset == 200
    assert report.is_damaged


@pytest.mark.parametrize("count", [-1, 400, 401])
def test_a_count_of_items_that_no_index_file_has_is_named_where_it_stands(count, root):
    (path,) = (root / "index").iterdir()
    overwrite_file(path, 36, struct.pack(">i", count))
    found = [f.reason for f in verify(root).findings if f.offset == 36]
    assert found == ([] if count == 400 else [f"item count: expected 0 to 400, found {count}"])


def test_lost_keys_are_a_warning_because_lookups_stay_right(root):
    shutil.rmtree(root / "index")
    report = verify(root)
    assert only(report, "index-missing").severity is Severity.WARNING
    assert not report.is_damaged


def test_a_torn_record_that_a_queue_knew_is_damage_before_and_after_somebody_opens_the_store(
    root, offsets
):
    overwrite(root, offsets[-1] + 150, bytes(200))
    crashed(root)
    report = verify(root)
    assert report.is_damaged
    assert {f.kind for f in report.findings} == {
        "log-tail",
        "queue-stale",
        "index-stale",
        "checkpoint-ahead",
        "abort",
    }
    open_store(root, Clock(NOW_MS)).close()
    report = verify(root)
    assert report.is_damaged
    assert {f.kind for f in report.findings} == {"queue-kept", "checkpoint-ahead"}


@pytest.fixture(params=[1, 30, COUNT])
def killed(request, tmp_path):
    """A store whose writer was killed when so many messages had not been dispatched."""
    root, clock = tmp_path / "killed", Clock()
    with open_store(tmp_path / "store", clock) as store:
        put_all(store, messages(COUNT - request.param), clock)
        for message in messages(request.param, first=COUNT - request.param):
            store.put(message).raise_for_status()
        shutil.copytree(tmp_path / "store", root)
    return root


def test_a_store_that_a_kill_ended_is_not_damaged_but_completed_by_the_next_opening(killed):
    report = verify(killed)
    assert {f.kind for f in report.findings} - {"checkpoint"} == {
        "queue-missing", "index-missing", "abort",
    }  # fmt: skip
    assert report.exit_code == 1
    assert state_of(report.findings).endswith("no damage; the next opening completes the store")
    for found in report.findings:
        assert found.kind == "checkpoint" or "the next opening" in found.action
        if found.kind == "queue-missing":
            assert found.action == "nothing to do: the next opening writes them"
    open_store(killed, Clock(NOW_MS)).close()
    report = verify(killed)
    assert (report.findings, report.counts.message_count) == ([], COUNT)


def promise_all(root: Path) -> None:
    """Let the checkpoint say that all is on the disk."""
    times = Checkpoint(NOW_MS, NOW_MS, NOW_MS)
    (root / "checkpoint").write_bytes(encode_checkpoint(times))


@pytest.mark.parametrize("killed", [1, 30], indirect=True)
@pytest.mark.parametrize("lost", ["consumequeue/Topic0", "consumequeue/Topic1/0"])
def test_a_queue_that_was_lost_besides_a_kill_is_damage(killed, lost):
    promise_all(killed)
    shutil.rmtree(killed / lost)
    report = verify(killed)
    missing = [f for f in report.findings if f.kind == "queue-missing"]
    lost_ones = [f for f in missing if f.severity is Severity.DAMAGE]
    assert [f.file for f in lost_ones] == [f"consumequeue/{lost.split('/')[1]}/0"]
    assert report.exit_code == 4


@pytest.mark.parametrize(
    ("back", "is_promised"), [(0, True), (1, True), (0, False), (1, False), (3, False)]
)
@pytest.mark.parametrize("torn", [bytes(20), b"\1" * 20, bytes(8) + b"\1" * 12])
def test_entries_that_the_power_took_are_damage_where_no_opening_makes_them_again(
    root, offsets, torn, back, *, is_promised
):
    """An opening after a crash begins with the file that the checkpoint allows."""
    crashed(root)
    if is_promised:
        promise_all(root)
    last_file = offsets[-1] // LOG_FILE_BYTES
    number = next(at for at, it in enumerate(offsets) if it // LOG_FILE_BYTES == last_file - back)
    queue = f"consumequeue/Topic{number % 2}/0/{0:020}"
    overwrite_file(root / queue, number // 2 * 20, torn)
    of_queue = [f for f in verify(root).findings if f.kind in {"queue-missing", "queue-wrong"}]
    assert {f.offset for f in of_queue} == {number // 2 * 20}
    is_made_again = not (is_promised and back)
    assert {f.severity for f in of_queue} == {
        Severity.WARNING if is_made_again else Severity.DAMAGE
    }
    assert keys(audited(root, CONFIG, now_ms=NOW_MS).findings) == keys(verify(root).findings)
    open_store(root, Clock(NOW_MS)).close()
    left = {f.offset for f in verify(root).findings if f.kind in {"queue-missing", "queue-wrong"}}
    assert left == (set() if is_made_again else {number // 2 * 20})


TORN_INDEX = {
    "a slot": (40 + 4 * 3, b"\xff" * 4),
    "the last item's chain": (-4, b"\1" * 4),
    "items": (-30, bytes(30)),
    "its header": (8, bytes(32)),
}


@pytest.mark.parametrize("torn", TORN_INDEX)
def test_an_index_file_that_the_power_tore_is_damage_where_no_opening_mends_it(root, torn):
    newest = max((root / "index").iterdir())
    content = newest.read_bytes()
    count = int.from_bytes(content[36:40], "big")
    end = len(content) - (CONFIG.max_index_num - count) * 20
    at, what = TORN_INDEX[torn]
    overwrite_file(newest, at % end, what)
    before = {f.severity for f in verify(root).findings if f.file == f"index/{newest.name}"}
    assert before == {Severity.DAMAGE}
    crashed(root)
    report = verify(root)
    assert {f.severity for f in report.findings if f.file.startswith("index/")} == {
        Severity.WARNING
    }
    assert report.exit_code == 1
    assert keys(audited(root, CONFIG, now_ms=NOW_MS).findings) == keys(report.findings)
    open_store(root, Clock(NOW_MS)).close()
    assert verify(root).findings == []


@pytest.mark.parametrize(
    ("named", "lost", "severity"),
    [
        (["SELF_TEST_TOPIC", "Topic0"], "Topic1", Severity.WARNING),
        (["SELF_TEST_TOPIC", "Topic0", "Topic1"], "Topic1", Severity.DAMAGE),
        (["Topic0"], "Topic1", Severity.DAMAGE),
        (["SELF_TEST_TOPIC", "Topic0"], "Topic1/0/*", Severity.DAMAGE),
    ],
    ids=["deleted", "in the table", "no broker's table", "its directory is there"],
)
def test_a_topic_that_a_broker_deleted_is_no_damage(root, named, lost, severity):
    (root / "config").mkdir(exist_ok=True)
    rows = ",".join(f'"{topic}":{{"topicName":"{topic}"}}' for topic in named)
    (root / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{{rows}}}}}')
    assert verify(root).findings == []
    for path in (root / "consumequeue").glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = only(verify(root), "queue-missing")
    assert (found.severity, "a broker deleted it" in found.action) == (
        severity, severity is Severity.WARNING
    )  # fmt: skip
    assert keys(audited(root, CONFIG, now_ms=NOW_MS).findings) == keys(verify(root).findings)


def test_entries_that_are_missing_after_an_orderly_end_are_damage(killed):
    (killed / "abort").unlink()
    assert verify(killed).exit_code == 4


@pytest.mark.parametrize(
    ("content", "severity"),
    [
        (b"", Severity.WARNING), (b"short", Severity.WARNING), (bytes(24), Severity.WARNING),
        (b"\x7f" * 4096, Severity.WARNING), (None, Severity.NOTE),
    ],
)  # fmt: skip
def test_a_broken_checkpoint_is_named(content, severity, root):
    path = root / "checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    findings = [f for f in verify(root).findings if f.kind == "checkpoint"]
    assert len(findings) == (3 if content and len(content) == 4096 else 1), "one of each fault"
    assert {f.severity for f in findings} == {severity}
    # What it says of a repair is what a repair does.
    is_replaced = bool(repair_store(root, CONFIG, now_ms=NOW_MS).actions)
    assert all(f.action.startswith("repair writes it again") == is_replaced for f in findings)


@pytest.mark.parametrize(
    ("main", "backup", "severity"),
    [
        (b"{", b'{"offsetTable":{}}', Severity.WARNING),
        (b"", b"{", Severity.DAMAGE),
        (b'{"offsetTable":{}}', b"{", Severity.WARNING),
        (b"{", None, Severity.DAMAGE),
        (None, b'{"offsetTable":{}}', Severity.WARNING),
        (b'{"offsetTable":{"t@g":{0:5}}}', None, None),
    ],
)
def test_broken_tables_and_backups_are_named(main, backup, severity, root):
    (root / "config").mkdir(exist_ok=True)
    for name, content in (("consumerOffset.json", main), ("consumerOffset.json.bak", backup)):
        if content is not None:
            (root / "config" / name).write_bytes(content)
    found = [f.severity for f in verify(root).findings if f.kind == "table"]
    assert found == ([] if severity is None else [severity])


def test_a_live_writer_is_no_fault(root):
    clock = Clock(NOW_MS)
    with open_store(root, clock) as opened:
        put_all(opened, messages(10, first=COUNT), clock)
        opened.put(messages(1)[0], queue_id=0)
        assert [f for f in verify(root).findings if f.severity is not Severity.NOTE] == []


def test_a_record_that_claims_the_place_of_another_is_reported(root, offsets):
    claimed = read_log(root, offsets[20] + 20, 8)
    overwrite(root, offsets[40] + 20, claimed)
    report = verify(root)
    assert only(report, "queue-conflict").file == "consumequeue/Topic0/0"


def test_a_topic_that_was_deleted_and_made_again_lacks_nothing_and_gets_nothing_back(tmp_path):
    again = made_again(StoreFiles(tmp_path, LOG_FILE_BYTES, QUEUE_FILE_BYTES))
    for bring_back in (repair_store, MessageStore.open):
        found = [one for one in verify(tmp_path).findings if one.kind.startswith("queue")]
        assert {one.kind for one in found} == {"queue-conflict"}
        assert [one.reason[:9] for one in found] == ["5 records", "4 records"]
        (tmp_path / "abort").touch()
        done = bring_back(tmp_path, config=CONFIG)
        if bring_back == MessageStore.open:
            page = done.get("again", 0, 0)
            assert [one.physical_offset for one in page.messages] == again
            done.close()


def test_a_slave_to_which_nothing_came_is_not_told_to_bring_files_back(tmp_path):
    config = StoreConfig.small(broker_role=BrokerRole.SLAVE, ha_master_address="127.0.0.1:1")
    MessageStore.open(tmp_path, config, threads=False).close()
    report = verify_store(tmp_path)
    found = only(report, "log-empty")
    assert (found.severity, found.action[:13], report.exit_code) == (
        Severity.NOTE,
        "nothing to do",
        0,
    )


def test_an_empty_file_is_named(root, offsets):
    last = offsets[-1] // LOG_FILE_BYTES * LOG_FILE_BYTES
    path = root / "commitlog" / f"{last + LOG_FILE_BYTES:020d}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    assert only(verify(root), "log-file-empty").severity is Severity.WARNING


def test_extensions_of_queues_are_named_by_verify_and_repair(root):
    directory = root / "consumequeue_ext" / "Topic0" / "0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000").write_bytes(bytes(100))
    (directory / "00000000000000000100").write_bytes(b"\xff" * 100)
    (found,) = verify(root).findings
    assert (found.kind, found.severity) == ("queue-ext", Severity.NOTE)
    assert (found.file, found.size) == ("consumequeue_ext/Topic0/0", 200)
    assert "entries that refer there were compared with it" in found.reason
    repaired = repair_store(root, config=CONFIG, now_ms=NOW_MS)
    assert repaired.findings == [found]
    assert not repaired.is_changed


@pytest.mark.parametrize("has_extension", [False, True])
def test_a_tags_code_with_its_top_bit_flipped_is_no_address_where_no_unit_is(
    root, *, has_extension
):
    path = root / "consumequeue" / "Topic0" / "0" / f"{0:020d}"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[20 * 3 + 12] ^= 0x80
    path.write_bytes(flipped)
    if has_extension:
        directory = root / "consumequeue_ext" / "Topic0" / "0"
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(bytes(100))
    kinds = {finding.kind for finding in verify(root).findings}
    repair_store(root, config=CONFIG, now_ms=NOW_MS)
    assert "queue-wrong" in kinds
    assert path.read_bytes() == whole
    left = {finding.kind for finding in verify(root).findings}
    assert left == ({"queue-ext"} if has_extension else set())


@pytest.mark.parametrize(("hours", "is_wrong"), [(23, False), (25, True)])
def test_a_checkpoint_may_be_a_day_ahead_of_this_machine_s_clock(hours, *, is_wrong):
    content = encode_checkpoint(Checkpoint(NOW_MS + hours * 3_600_000, 0, 0))
    assert any(checkpoint_findings(content, NOW_MS)) is is_wrong


def test_entries_before_a_queue_s_first_file_are_written_by_a_repair_only(tmp_path):
    """Log files that had expired were put back from a copy: no opening goes back so far."""
    root = tmp_path / "store"
    build_store(root, 260, Clock())
    (root / "consumequeue" / "Topic0" / "0" / f"{0:020d}").unlink()
    (root / "known-ends").unlink()
    missing = only(verify(root), "queue-missing")
    assert (missing.queue_offset, missing.size, missing.action) == (0, 2000, "repair writes them")
    repair_store(root, CONFIG, now_ms=NOW_MS)
    assert not verify(root).findings


@pytest.mark.parametrize(("at", "is_mended"), [(100, False), (101, True), (None, False)])
def test_only_entries_past_the_last_that_a_dead_writer_made_are_not_made_yet(at, is_mended):
    found = Finding(Severity.DAMAGE, "queue-lacks", "f", 0, 20, "why", "do", physical_offset=at)
    judged = LastWriter(dispatched_to=100).judged(found)
    assert (judged.severity is Severity.WARNING) == is_mended
