"""Repair: what it keeps, what it says, that it can be interrupted and repeated."""

import os
import random
import shutil
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from rocketstore import repair_store, verify_store
from rocketstore.audit.repair_plan import RepairReport
from rocketstore.errors import StoreLockedError
from rocketstore.rules.findings import Severity
from support.clock import START_MS, Clock
from support.failing_disk import FailingDisk
from support.hooked_disk import KilledError, dying_disk
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    bodies,
    build_store,
    crashed,
    log_path,
    messages,
    open_store,
    overwrite,
)
from support.trees import tree

COUNT = 200
NOW_MS = START_MS + 3_600_000


def repair(
    root: Path,
    *,
    policy: Literal["salvage", "compatible"] = "salvage",
    dry_run: bool = False,
    now_ms: int = NOW_MS,
) -> RepairReport:
    return repair_store(root, policy=policy, dry_run=dry_run, config=CONFIG, now_ms=now_ms)


def content(root: Path) -> dict[str, bytes]:
    """Return everything below a root except evidence."""
    return {name: found for name, found in tree(root).items() if not name.startswith("repair/")}


def assert_repaired(root: Path, *, remaining: set[str] = frozenset()) -> None:
    """Claim that a store needs no repair and that verify finds nothing but `remaining`."""
    before = content(root)
    again = repair(root, now_ms=NOW_MS + 1)
    assert again.actions == []
    assert content(root) == before
    assert {finding.kind for finding in again.remaining} == remaining
    report = verify_store(root, CONFIG, now_ms=NOW_MS)
    found = {finding.kind for finding in report.findings if finding.severity is not Severity.NOTE}
    assert found == remaining


@pytest.fixture
def offsets(tmp_path):
    """Build a store of 200 messages over several log files; return where they lie."""
    return build_store(tmp_path / "store", COUNT, Clock())


@pytest.fixture
def root(tmp_path, offsets):
    return tmp_path / "store"


def test_a_healthy_store_needs_nothing(root):
    before = content(root)
    report = repair(root)
    assert not report.is_changed
    assert not report.is_damaged
    assert report.findings == []
    assert report.lost_for_broker == []
    assert content(root) == before


@pytest.mark.parametrize("checks", [True, False])
def test_damage_in_the_middle_stays_and_is_reported_range_by_range(root, offsets, checks):
    """A repair compares checksums, whatever openings do."""
    for number in (10, 60, 61):
        overwrite(root, offsets[number] + 120, b"\xff" * 8)
    damaged = content(root)
    config = msgspec.structs.replace(CONFIG, check_crc_on_recover=checks)
    report = repair_store(root, config=config, now_ms=NOW_MS)
    ranges = [
        (int(f.file[-20:]) + f.offset, f.size) for f in report.remaining if f.kind == "log-damage"
    ]
    assert ranges == [
        (offsets[10], offsets[11] - offsets[10]),
        (offsets[60], offsets[62] - offsets[60]),
    ]
    assert {n: b for n, b in content(root).items() if "commitlog" in n} == {
        n: b for n, b in damaged.items() if "commitlog" in n
    }
    with open_store(root, Clock(NOW_MS)) as opened:
        found = bodies(opened, "Topic0")
    assert set(found) == set(range(100)) - {5, 30}
    assert_repaired(root, remaining={"log-damage", "queue-hole"})


def test_what_a_broker_would_drop_is_reported(root, offsets):
    last_files = max(offsets) // LOG_FILE_BYTES * LOG_FILE_BYTES
    broken = next(n for n, offset in enumerate(offsets) if offset > last_files)
    overwrite(root, offsets[broken] + 120, b"\xff" * 8)
    (lost,) = repair(root).lost_for_broker
    assert (lost.verb, lost.start) == ("drop", offsets[broken])
    assert lost.record_count == COUNT - broken - 1


def test_damage_before_the_last_three_files_is_not_dropped_by_a_broker(root, offsets):
    assert offsets[-1] // LOG_FILE_BYTES >= 3
    overwrite(root, offsets[1] + 120, b"\xff" * 8)
    assert repair(root).lost_for_broker == []


def test_compatible_repair_ends_the_log_and_keeps_all_copies(root, offsets):
    crashed(root)
    overwrite(root, offsets[100] + 120, b"\xff" * 8)
    (root / "checkpoint").write_bytes(bytes(4096))
    damaged = content(root)
    report = repair(root, policy="compatible")
    assert report.counts.max_physical_offset == offsets[100]
    assert report.counts.message_count == 100
    kept = root / str(report.evidence)
    for name, old in damaged.items():
        if not name.startswith("commitlog"):
            continue
        base = int(name[-20:])
        if base > offsets[100] and any(old):
            assert (kept / name).read_bytes() == old
    with open_store(root, Clock(NOW_MS)) as opened:
        assert opened.max_offset("Topic0", 0) == 50


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_deleted_part_is_created_again(part, root):
    before = content(root)
    shutil.rmtree(root / part)
    report = repair(root)
    assert report.is_changed
    assert not report.is_damaged
    after = content(root)
    queues = {n: b for n, b in before.items() if n.startswith("consumequeue")}
    assert {n: b for n, b in after.items() if n.startswith("consumequeue")} == queues
    assert_repaired(root)
    with open_store(root, Clock(NOW_MS)) as opened:
        assert all(
            opened.find(f"Topic{n % 2}", key=f"key-{n}")[0].body == message.body
            for n, message in enumerate(messages(COUNT))
        )


def test_entries_that_point_elsewhere_are_replaced(root):
    queue = root / "consumequeue" / "Topic0" / "0" / "00000000000000000000"
    good = queue.read_bytes()
    wrong = bytearray(good)
    wrong[200:220] = wrong[400:420]
    wrong[600:620] = b"\xff" * 20
    wrong[800:820] = bytes(20)
    queue.write_bytes(wrong)
    report = repair(root)
    assert queue.read_bytes() == good
    assert "queue Topic0/0: write 3 entries (10, 30, 40)" in report.actions
    assert_repaired(root)


def test_the_place_of_a_lost_record_keeps_its_entry_or_gets_a_filler(root, offsets):
    overwrite(root, offsets[20] + 120, b"\xff" * 8)
    overwrite(root, offsets[40] + 120, b"\xff" * 8)
    queue = root / "consumequeue" / "Topic0" / "0" / "00000000000000000000"
    good = queue.read_bytes()
    queue.write_bytes(good[: 20 * 20] + bytes(20) + good[21 * 20 :])
    repair(root)
    repaired = queue.read_bytes()
    assert repaired[10 * 20 : 11 * 20] == good[10 * 20 : 11 * 20]
    assert repaired[20 * 20 : 21 * 20].hex() == "00000000000000007fffffff0000000000000000"
    assert repaired[:400] == good[:400]
    assert repaired[21 * 20 :] == good[21 * 20 :]


def test_files_of_a_wrong_length_or_name_are_named_and_put_right(root):
    log = root / "commitlog"
    second = log / f"{LOG_FILE_BYTES:020d}"
    second.write_bytes(second.read_bytes() + b"more")
    (log / "notes.txt").write_bytes(b"who put this here?")
    (log / f".{5 * LOG_FILE_BYTES:020d}.aB3dEf").touch()  # by rsync
    (log / f"{LOG_FILE_BYTES // 2:020d}").write_bytes(b"x" * LOG_FILE_BYTES)
    queue = root / "consumequeue" / "Topic1" / "0" / "00000000000000000000"
    queue.write_bytes(queue.read_bytes()[:777])
    longer = root / "consumequeue" / "Topic0" / "0" / "00000000000000000000"
    longer.write_bytes(longer.read_bytes() + b"more")
    report = repair_store(root, config=CONFIG, now_ms=NOW_MS, disk=(disk := FailingDisk()))
    moved = disk.calls.index(("replace", "notes.txt"))
    assert disk.calls[moved + 1 :][:2] == [("fsync_directory", "commitlog")] * 2, "to, and from"
    kinds = {finding.kind: finding.file for finding in report.findings}
    assert kinds["log-file-wrong-size"] == f"commitlog/{second.name}"
    does = {one.file: one.action for one in report.findings if one.kind == "log-file-wrong-name"}
    assert does.pop("commitlog/notes.txt").startswith("repair moves a file away")
    (copied,) = does.values()
    assert f"if {5 * LOG_FILE_BYTES:020d} is lost, let the copying end, unpack the file" in copied
    assert kinds["log-file-misplaced"] == f"commitlog/{LOG_FILE_BYTES // 2:020d}"
    named = {one.file for one in report.findings if one.kind == "queue-file-wrong-size"}
    assert named == {f"consumequeue/Topic{number}/0/{queue.name}" for number in range(2)}
    assert not (log / "notes.txt").exists()
    assert (root / str(report.evidence) / "commitlog" / "notes.txt").exists()
    assert queue.stat().st_size == longer.stat().st_size == QUEUE_FILE_BYTES
    assert_repaired(root)
    with open_store(root, Clock(NOW_MS)) as opened:
        assert len(bodies(opened, "Topic1")) == COUNT // 2


def test_a_truncated_last_file_costs_only_what_was_cut_off(root, offsets):
    last = log_path(root, offsets[-1])
    cut_at = offsets[-5] + 50
    last.write_bytes(last.read_bytes()[: cut_at % LOG_FILE_BYTES])
    report = repair(root)
    assert any(finding.severity is Severity.DAMAGE for finding in report.findings)
    assert report.counts.message_count == COUNT - 5
    assert last.stat().st_size == LOG_FILE_BYTES
    assert_repaired(root, remaining={"queue-kept"})


def test_a_missing_file_in_the_middle_is_a_hole(root, offsets):
    log_path(root, LOG_FILE_BYTES).unlink()
    report = repair(root)
    lost = sum(offset // LOG_FILE_BYTES == 1 for offset in offsets)
    assert report.counts.message_count == COUNT - lost
    assert report.counts.hole_count == lost
    assert report.is_damaged
    (hole,) = [finding for finding in report.remaining if finding.kind == "log-hole"]
    assert (hole.offset, hole.size) == (LOG_FILE_BYTES, LOG_FILE_BYTES)


def test_a_store_in_use_is_refused(root):
    with open_store(root, Clock(NOW_MS)):
        for dry_run in (True, False):
            with pytest.raises(StoreLockedError):
                repair(root, dry_run=dry_run)


def damage_everything(root: Path, offsets: list[int]) -> None:
    crashed(root)
    overwrite(root, offsets[-1] + 100, b"\xff" * 60)
    overwrite(root, offsets[33] + 130, b"\xff" * 8)
    shutil.rmtree(root / "consumequeue" / "Topic1")
    queue = root / "consumequeue" / "Topic0" / "0" / "00000000000000000000"
    queue.write_bytes(queue.read_bytes()[:500] + b"\x11" * 1500)
    for path in (root / "index").iterdir():
        path.write_bytes(path.read_bytes()[:300])


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 70])
def test_a_repair_that_is_killed_is_finished_by_the_next(calls, tmp_path, root, offsets):
    damage_everything(root, offsets)
    twin = tmp_path / "twin"
    shutil.copytree(root, twin)
    repair(twin)
    try:
        repair_store(root, config=CONFIG, now_ms=NOW_MS - 1, disk=dying_disk(calls))
    except KilledError:
        repair(root)
    expected, found = content(twin), content(root)
    drop = ("index/",)
    assert {n: b for n, b in found.items() if not n.startswith(drop)} == {
        n: b for n, b in expected.items() if not n.startswith(drop)
    }
    assert [b for n, b in found.items() if n.startswith(drop)] == [
        b for n, b in expected.items() if n.startswith(drop)
    ]
    assert_repaired(root, remaining={"log-damage", "queue-hole"})


@pytest.mark.parametrize("seed", range(25))
def test_random_damage_never_costs_an_intact_record(seed, root, offsets):
    dice = random.Random(seed)
    originals = content(root)
    for _ in range(dice.randint(1, 6)):
        path = dice.choice(sorted(p for p in root.rglob("0000*") if p.is_file()))
        changed = bytearray(path.read_bytes())
        at = dice.randrange(len(changed))
        size = dice.choice([1, 1, 8, 300, 4096])
        fill = dice.choice([b"\0", b"\xff", dice.randbytes(1)])
        changed[at : at + size] = (fill * size)[: len(changed) - at]
        path.write_bytes(changed)
    if dice.random() < 0.5:
        crashed(root)
    damaged = content(root)
    report = repair(root)
    intact = []
    for number, offset in enumerate(offsets):
        name = f"commitlog/{offset // LOG_FILE_BYTES * LOG_FILE_BYTES:020d}"
        at = offset % LOG_FILE_BYTES
        size = int.from_bytes(originals[name][at : at + 4], "big")
        if originals[name][at : at + size] == damaged[name][at : at + size]:
            intact.append(number)
    with open_store(root, Clock(NOW_MS)) as opened:
        for number in intact:
            topic = f"Topic{number % 2}"
            message = messages(1, first=number)[0]
            (found,) = opened.find(topic, key=f"key-{number}")
            assert found.body == message.body
            page = opened.get(topic, queue_id=0, offset=number // 2, max_messages=1)
            assert page.messages[0].physical_offset == offsets[number], report
    assert repair(root, now_ms=NOW_MS + 1).actions == []


def test_a_blank_after_the_last_record_is_no_record_that_a_broker_drops(root, offsets):
    last = max(offsets) // LOG_FILE_BYTES * LOG_FILE_BYTES
    overwrite(root, last, bytes(LOG_FILE_BYTES))
    assert repair(root).lost_for_broker == []


def test_dropped_records_are_counted_one_by_one(root, offsets):
    last = max(offsets) // LOG_FILE_BYTES * LOG_FILE_BYTES
    newest = [offset for offset in offsets if offset >= last]
    assert len(newest) > 5
    # Inside an unbroken chain for us: 4.9 does not read the magic of 5.x.
    content = log_path(root, last).read_bytes()
    start, stop = newest[2] - last, newest[3] - last
    topic_at = start + 88 + int.from_bytes(content[start + 84 : start + 88], "big")
    rest_at = topic_at + 1 + content[topic_at]
    properties_size = int.from_bytes(content[rest_at : rest_at + 2], "big") - 1
    as_v2 = (
        content[start : start + 7]
        + b"\xab"
        + content[start + 8 : topic_at]
        + b"\0"
        + content[topic_at:rest_at]
        + properties_size.to_bytes(2, "big")
        + content[rest_at + 2 : stop - 1]
    )
    overwrite(root, newest[2], as_v2)
    report = repair(root)
    assert "log-damage" not in {finding.kind for finding in report.findings}
    (lost,) = report.lost_for_broker
    assert (lost.start, lost.record_count) == (newest[2], len(newest) - 2)


def test_an_empty_file_in_front_of_the_log_is_moved_away(root, offsets):
    os.truncate(log_path(root, 0), 0)
    planned = repair(root, dry_run=True)
    report = repair(root)
    assert not log_path(root, 0).exists()
    assert planned.lost_for_broker == report.lost_for_broker == []
    assert planned.actions == report.actions
    with open_store(root, Clock(NOW_MS)) as opened:
        found = bodies(opened, "Topic0")
    kept = [number for number, offset in enumerate(offsets) if offset >= LOG_FILE_BYTES]
    assert set(found) == {number // 2 for number in kept if number % 2 == 0}
    assert_repaired(root)


@pytest.mark.parametrize(
    "content",
    [b"", bytes(10), (2**62).to_bytes(8, "big") * 3 + bytes(4072), b"\xff" * 4096, bytes(5000)],
)
def test_a_checkpoint_that_cannot_be_true_is_kept_and_written_again(content, root):
    (root / "checkpoint").write_bytes(content)
    before = repair(root, dry_run=True)
    assert before.actions == ["checkpoint: move it to repair/ and write a new one"]
    report = repair(root)
    assert report.actions == before.actions
    assert report.evidence is not None
    assert [path.read_bytes() for path in (root / report.evidence).rglob("checkpoint*")] == [
        content
    ]
    assert_repaired(root)


def test_a_damaged_store_time_does_not_get_into_the_checkpoint(root, offsets):
    overwrite(root, offsets[-1] + 56, b"\x81")
    crashed(root)
    repair(root)
    assert_repaired(root)


def test_the_queue_of_a_topic_that_is_no_utf_8_stays_when_the_store_is_opened(root, offsets):
    content = log_path(root, 0).read_bytes()
    body_size = int.from_bytes(content[84:88], "big")
    overwrite(root, offsets[0] + 88 + body_size + 1, b"\x8b")
    repair(root)
    assert_repaired(root)
    with open_store(root, Clock(NOW_MS)) as opened:
        assert len(bodies(opened, "\ufffdopic0")) == 1
    assert_repaired(root)


def test_repair_gives_no_number_again_that_a_lost_end_of_the_log_had(root, offsets):
    last = log_path(root, offsets[-1])
    lost = sum(offset >= int(last.name) for offset in offsets)
    last.unlink()
    found = {finding.kind for finding in verify_store(root, CONFIG, now_ms=NOW_MS).findings}
    assert "queue-beyond-log" in found
    repaired = repair(root)
    assert {finding.kind for finding in repaired.remaining} == {"queue-kept"}
    assert repaired.counts.hole_count == lost
    assert_repaired(root, remaining={"queue-kept"})
    with open_store(root, Clock(NOW_MS)) as opened:
        results = [opened.put(message, queue_id=0) for message in messages(2)]
        assert [result.queue_offset for result in results] == [len(offsets) // 2] * 2
        assert opened.wait_dispatched()
    assert_repaired(root, remaining={"queue-hole"})


def test_compatible_repair_gives_the_numbers_of_a_lost_end_again_as_java_does(root, offsets):
    last = log_path(root, offsets[-1])
    first_lost = sum(offset < int(last.name) for offset in offsets)
    last.unlink()
    repair(root, policy="compatible")
    with open_store(root, Clock(NOW_MS)) as opened:
        results = [opened.put(message, queue_id=0) for message in messages(2)]
        assert [result.queue_offset for result in results] == [
            first_lost - first_lost // 2, first_lost // 2,
        ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 3])
def test_records_whose_topic_is_no_utf_8_get_the_queue_entries_that_repair_writes(
    count, tmp_path, root, offsets
):
    content = log_path(root, 0).read_bytes()
    body_size = int.from_bytes(content[84:88], "big")
    # Two byte sequences that Java reads as one name, and the name itself.
    for number, name in enumerate((b"\x8bopic0", b"\x9aopic0", b"\xfdopic0")[:count]):
        overwrite(root, offsets[2 * number] + 88 + body_size + 1, name)
    repaired = tmp_path / "repaired"
    shutil.copytree(root, repaired)
    repair(repaired)
    shutil.rmtree(root / "consumequeue")
    crashed(root)
    with open_store(root, Clock(NOW_MS)) as opened:
        assert len(bodies(opened, "\ufffdopic0")) == count
    name = "consumequeue/\ufffdopic0/0/00000000000000000000"
    assert (root / name).read_bytes() == (repaired / name).read_bytes()
    assert_repaired(repaired)
