"""Recovery: what survives, what is cut, and what consumers see afterwards."""

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from rocketstore import Message, StoreConfig, verify_store
from rocketstore.config import RecoveryPolicy
from rocketstore.errors import StoreDamagedError
from rocketstore.message_store import MessageStore
from rocketstore.storage.recovery import recover
from rocketstore.units import MiB
from support.clock import Clock
from support.hooked_disk import KilledError, dying_disk
from support.inside import parts_of
from support.said import capture_logs
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    bodies,
    build_store,
    copy_store,
    crashed,
    log_path,
    messages,
    open_store,
    overwrite,
    put_all,
    read_log,
)
from support.store_files import overwrite_file

COUNT = 200


def expected_bodies(topic: str, *, without: tuple[int, ...] = ()) -> dict[int, bytes]:
    wanted = [message for message in messages(COUNT) if message.topic == topic]
    return {
        n: message.body for n, message in enumerate(wanted) if 2 * n + int(topic[-1]) not in without
    }


@pytest.fixture
def offsets(tmp_path, clock):
    """Build a store of 200 messages; return where they lie."""
    return build_store(tmp_path, COUNT, clock)


def assert_all_there(store: MessageStore, *, without: tuple[int, ...] = ()) -> None:
    for topic in ("Topic0", "Topic1"):
        assert bodies(store, topic) == expected_bodies(topic, without=without)
    for number in range(COUNT):
        found = store.find(f"Topic{number % 2}", key=f"key-{number}")
        assert len(found) == (number not in without)


def test_a_clean_stop_leaves_nothing_to_recover(tmp_path, clock, offsets):
    with capture_logs() as logs, open_store(tmp_path, clock) as store:
        assert store.recovery.was_clean
        assert store.recovery.findings == []
        assert_all_there(store)
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


@pytest.mark.parametrize(("looked_at", "file_size"), [(4096, 1 << 20), (1 << 20, 1 << 14)])
def test_after_a_clean_stop_only_the_end_of_the_log_is_looked_at(
    tmp_path, monkeypatch, looked_at, file_size
):
    """At most the last file."""
    assert 8 * MiB == recover.CLEAN_TAIL_BYTES
    monkeypatch.setattr(recover, "CLEAN_TAIL_BYTES", looked_at)
    clock, config = Clock(), StoreConfig.small(mapped_file_size_commit_log=file_size)
    with MessageStore.open(tmp_path, config, clock=clock, threads=False) as store:
        put_all(store, messages(COUNT), clock)
        end = store.max_physical_offset
    with MessageStore.open(tmp_path, config, clock=clock, threads=False) as store:
        assert end > 40_000
        assert max(end - looked_at, end - end % file_size) <= store.recovery.start < end
        assert store.recovery.end == end
        assert_all_there(store)


def test_a_crash_without_damage_loses_nothing(tmp_path, clock, offsets):
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert not store.recovery.was_clean
        assert store.recovery.evidence is None
        assert_all_there(store)


def test_a_torn_last_record_is_cut_and_kept_as_evidence(tmp_path, clock, offsets):
    overwrite(tmp_path, offsets[-1] + 150, bytes(300))
    torn = read_log(tmp_path, offsets[-1], 1000).rstrip(b"\0")
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert store.recovery.end == offsets[-1]
        assert_all_there(store, without=(COUNT - 1,))
        (kept,) = tmp_path.glob("repair/*T*Z/commitlog/*@*")
        assert kept.parents[1] == tmp_path / str(store.recovery.evidence)
        assert kept.read_bytes().endswith(torn)
        assert not any(read_log(tmp_path, offsets[-1], 1000))
        put_all(store, messages(1, first=COUNT - 1), clock)
        # A consumer may have seen the lost message, so its number is not given again.
        assert sorted(bodies(store, "Topic1")) == [*range(COUNT // 2 - 1), COUNT // 2]


def test_damage_in_the_middle_costs_only_its_record(tmp_path, clock, offsets):
    broken = offsets[10] + 120
    before = read_log(tmp_path, broken, 8)
    overwrite(tmp_path, broken, b"\xff" * 8)
    crashed(tmp_path)
    files = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    with open_store(tmp_path, clock) as store:
        assert store.recovery.start == 0
        damage = [f for f in store.recovery.findings if f.kind == "log-damage"]
        assert [(f.offset, f.size) for f in damage] == [(offsets[10], offsets[11] - offsets[10])]
        assert bodies(store, "Topic0") == expected_bodies("Topic0", without=(10,))
        assert bodies(store, "Topic1") == expected_bodies("Topic1")
        page = store.get("Topic0", queue_id=0, offset=5, max_messages=1)
        assert page.skipped_entries == 1
        assert page.messages[0].queue_offset == 6
        assert read_log(tmp_path, broken, 8) == b"\xff" * 8 != before
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == files


def test_compatible_recovery_cuts_at_the_first_damage_and_keeps_copies(tmp_path, clock, offsets):
    overwrite(tmp_path, offsets[10] + 120, b"\xff" * 8)
    crashed(tmp_path)
    original = copy_store(tmp_path / "commitlog", tmp_path.with_name("original"))
    with MessageStore.open(
        tmp_path, CONFIG, clock=clock, threads=False, policy=RecoveryPolicy.COMPATIBLE
    ) as store:
        assert store.recovery.end == offsets[10]
        assert set(bodies(store, "Topic0")) == set(range(5))
        kept = tmp_path / str(store.recovery.evidence) / "commitlog"
        for path in sorted(original.iterdir())[1:]:
            if any(path.read_bytes()):
                assert (kept / path.name).read_bytes() == path.read_bytes()


def test_a_missing_log_file_is_reported_and_passed_over(tmp_path, clock, offsets):
    log_path(tmp_path, LOG_FILE_BYTES).unlink()
    crashed(tmp_path)
    lost = tuple(number for number, offset in enumerate(offsets) if offset // LOG_FILE_BYTES == 1)
    with open_store(tmp_path, clock) as store:
        (hole,) = [f for f in store.recovery.findings if f.kind == "log-hole"]
        assert (hole.offset, hole.size) == (LOG_FILE_BYTES, LOG_FILE_BYTES)
        assert store.recovery.end > offsets[-1]
        assert bodies(store, "Topic0") == expected_bodies("Topic0", without=lost)
        (offset,) = put_all(store, messages(1, first=COUNT), clock)
        assert offset == store.recovery.end


def test_deleted_queues_are_built_again_from_the_first_file_on(tmp_path, clock, offsets):
    clock.now_ms += 10_000
    with open_store(tmp_path, clock) as store:
        put_all(store, messages(COUNT, first=COUNT), clock)
    for path in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert store.max_offset("Topic0", 0) == COUNT
        assert len(bodies(store, "Topic0")) == COUNT
    assert verify_store(tmp_path, CONFIG, now_ms=clock()).findings == []


@pytest.mark.parametrize(("first", "count", "was_clean"), [(60, 40, True), (30, 20, False)])
def test_a_queue_that_lost_entries_gets_them_back(
    tmp_path, clock, offsets, first, count, was_clean
):
    queue = tmp_path / "consumequeue" / "Topic0" / "0" / "00000000000000000000"
    overwrite_file(queue, first * 20, bytes(count * 20))
    if not was_clean:
        crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert store.recovery.was_clean is was_clean
        assert_all_there(store)


@pytest.mark.parametrize("content", [b"", b"\x7f" * 4096, bytes(4096), None])
def test_a_broken_checkpoint_only_makes_recovery_go_back_further(content, tmp_path, clock, offsets):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.unlink() if content is None else checkpoint.write_bytes(content)
    for path in (tmp_path / "consumequeue").rglob("0000*"):
        overwrite_file(path, 0, bytes(QUEUE_FILE_BYTES))
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert store.recovery.start == 0
        assert_all_there(store)


def test_a_store_time_far_in_the_future_does_not_stop_the_clock(tmp_path, clock, offsets):
    overwrite(tmp_path, offsets[-1] + 56, (2**62).to_bytes(8, "big"))
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert store.recovery.last_store_timestamp_ms <= clock()
        put_all(store, messages(1, first=COUNT), clock)
        assert store.find("Topic0", key=f"key-{COUNT}")[0].store_timestamp_ms == clock()


def test_queues_without_a_log_are_refused(tmp_path, clock, offsets):
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(StoreDamagedError, match="no CommitLog file"):
        open_store(tmp_path, clock)


def earlier_longer_log(tmp_path: Path, *, later_body_size: int) -> tuple[Path, int, Clock]:
    """Return a store whose log was cut at 50 of 100 messages and went on with 20 others.

    What follows the end is what the first 100 messages left there.
    """
    first_clock, second_clock = Clock(), Clock()
    long_root, root = tmp_path / "long", tmp_path / "short"
    with open_store(long_root, first_clock) as store:
        put_all(store, messages(100), first_clock)
    with open_store(root, second_clock) as store:
        put_all(store, messages(50), second_clock)
        second_clock.now_ms += 60_000
        put_all(store, messages(20, first=50, body_size=later_body_size), second_clock)
        end = parts_of(store).log.max_offset
    for path in sorted((long_root / "commitlog").iterdir()):
        base = int(path.name)
        target = root / "commitlog" / path.name
        old = path.read_bytes()
        keep = min(max(end - base, 0), LOG_FILE_BYTES)
        mine = target.read_bytes()[:keep] if target.exists() else b""
        target.write_bytes(mine + old[len(mine) :])
    return root, end, second_clock


@pytest.mark.parametrize("later_body_size", [77, 133, 10])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_records_of_an_earlier_longer_log_do_not_come_back(later_body_size, how, tmp_path):
    root, end, clock = earlier_longer_log(tmp_path, later_body_size=later_body_size)
    if how == "killed":
        crashed(root)
    with open_store(root, clock) as store:
        assert store.recovery.end == end
        assert [f.kind for f in store.recovery.findings if f.kind == "log-leftover"]
        for topic in ("Topic0", "Topic1"):
            found = bodies(store, topic)
            assert sorted(found) == list(range(35))
            assert len(found[30]) == later_body_size
        put_all(store, messages(40, first=70), clock)
        assert len(bodies(store, "Topic0")) == 55
    report = verify_store(root, CONFIG, now_ms=clock())
    assert report.findings == []
    assert report.counts.message_count == 110


def test_records_of_an_earlier_log_amid_later_ones_are_kept_and_zeroed_to_the_byte(tmp_path):
    """As a disk leaves them that lost pages, which begin and end amid a record."""
    root, clock, earlier = tmp_path / "now", Clock(), tmp_path / "earlier"
    with open_store(earlier, clock) as store:  # with lower numbers at the same places
        put_all(store, [replace(one, topic="Topic2") for one in messages(30)], clock)
        put_all(store, messages(70, first=10), clock)
    clock.now_ms += 60_000
    offsets = build_store(root, 100, clock)
    torn, start, stop = offsets[60] + 100, offsets[61], offsets[70]
    overwrite(root, torn, read_log(earlier, torn, stop + 100 - torn))
    path, lost = log_path(root, torn), range(60, 71)
    whole, left = path.read_bytes(), read_log(root, start, stop - start)
    crashed(root)
    with open_store(root, clock) as store:
        assert "log-leftover" in {one.kind for one in store.recovery.findings}
        assert sorted(bodies(store, "Topic0")) == [n for n in range(50) if 2 * n not in lost]
        assert next(root.glob("repair/*T*Z/commitlog/*@*")).read_bytes().endswith(left)
        assert path.read_bytes() == whole.replace(left, bytes(len(left)))


@pytest.mark.parametrize("calls", range(0, 66, 5))
def test_a_recovery_that_is_killed_is_finished_by_the_next(calls, tmp_path):
    root, end, clock = earlier_longer_log(tmp_path, later_body_size=77)
    crashed(root)
    try:
        open_store(root, clock, disk=dying_disk(calls)).close()
    except KilledError:
        crashed(root)
    clock.now_ms += 1
    with open_store(root, clock) as store:
        assert store.recovery.end == end
        assert sorted(bodies(store, "Topic0")) == list(range(35))
    assert verify_store(root, CONFIG, now_ms=clock()).findings == []


def test_an_empty_last_file_is_taken_for_new(tmp_path, clock, offsets):
    last = max(int(path.name) for path in (tmp_path / "commitlog").iterdir())
    path = tmp_path / "commitlog" / f"{last + LOG_FILE_BYTES:020d}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert_all_there(store)


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("lost", ["file", "content"])
def test_numbers_of_messages_lost_with_the_end_of_the_log_are_not_given_again(
    how, lost, tmp_path, clock, offsets
):
    last = log_path(tmp_path, offsets[-1])
    first_lost = sum(offset < int(last.name) for offset in offsets)
    if lost == "file":
        last.unlink()
    else:
        last.write_bytes(bytes(LOG_FILE_BYTES))
    if how == "killed":
        crashed(tmp_path)
    kept_from = sum(message.topic == "Topic0" for message in messages(first_lost))
    for round_number in range(2):  # what is kept stays kept, also without a new message
        with open_store(tmp_path, clock) as store:
            kinds = [finding.kind for finding in store.recovery.findings]
            assert kinds.count("queue-kept") == (2 if round_number == 0 else 0)
            assert store.max_offset("Topic0", 0) == kept_from
        report = verify_store(tmp_path, CONFIG, now_ms=clock())
        kinds = {finding.kind for finding in report.findings}
        assert kinds - {"checkpoint-ahead"} == {"queue-kept"}
        assert report.counts.hole_count == COUNT - first_lost
    with open_store(tmp_path, clock) as store:
        result = store.put(messages(1)[0], queue_id=0)
        assert result.queue_offset == COUNT // 2
        assert store.wait_dispatched()
        found = bodies(store, "Topic0")
        assert sorted(found) == [*range(kept_from), COUNT // 2]
        page = store.get("Topic0", queue_id=0, offset=kept_from)
        assert page.skipped_entries == COUNT // 2 - kept_from
    crashed(tmp_path)
    with open_store(tmp_path, clock) as store:
        assert sorted(bodies(store, "Topic0")) == [*range(kept_from), COUNT // 2]
        assert store.put(messages(2)[1], queue_id=0).queue_offset == COUNT // 2


def test_a_message_that_stands_where_a_lost_one_stood_keeps_its_number_without_its_queue(tmp_path):
    """More numbers are missing before it than records would fit there (decision 0014)."""
    config = StoreConfig(mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200)

    def opened():
        return MessageStore.open(tmp_path, config, threads=False)

    with opened() as store:
        store.put(Message(topic="orders", body=b"kept"))
        lost = store.put(Message(topic="orders", body=b"lost"))
    overwrite_file(tmp_path / "commitlog" / f"{0:020d}", lost.physical_offset, bytes(200))
    (tmp_path / "abort").touch()
    with opened() as store:
        after = store.put(Message(topic="orders", body=b"after"))
        assert (after.physical_offset, after.queue_offset) == (lost.physical_offset, 2)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "abort").touch()
    with opened() as store:
        store.wait_dispatched()
        page = store.get("orders", 0, 0, 32)
        assert [(one.queue_offset, one.body) for one in page.messages] == [
            (0, b"kept"),
            (2, b"after"),
        ]
