"""Retention: which file goes when, and by which rule; and the flags of a full disk."""

import os
import time
from datetime import UTC

import pytest

from rocketstore import Message
from rocketstore.config import StoreConfig
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.retention import (
    HOUR_MS,
    QUEUE_FORCE_AFTER_MS,
    DeletedFile,
    DiskUsage,
    Retention,
    RetentionRule,
    newest_store_time,
)
from rocketstore.storage.running_flags import RunningFlag, RunningFlags
from support.clock import Clock
from support.configured_store import open_small
from support.dispatch_parts import DispatchParts
from support.inside import parts_of
from support.said import capture_logs

FOUR_O_CLOCK = 1_700_020_800_000
"""2023-11-15 04:00 UTC."""
NOON = FOUR_O_CLOCK + 8 * HOUR_MS
OLD = FOUR_O_CLOCK - 100 * HOUR_MS
YOUNG = FOUR_O_CLOCK - 71 * HOUR_MS


class Bench:
    """A store of log files with 10 records each, and a retention whose world is settable."""

    def __init__(self, root, **settings):
        self.parts = DispatchParts(root)
        self.parts.clock.now_ms = FOUR_O_CLOCK
        self.log_ratio = 0.1
        self.queue_ratio = 0.1
        self.flags = RunningFlags()
        self.pauses = []
        self.layout = StoreLayout.of(root)
        self.dispatched = None
        self.retention = Retention(
            self.parts.log,
            self.parts.table,
            self.parts.index,
            config=StoreConfig(**{"retention": True, **settings}),
            layout=self.layout,
            used_ratio=lambda path: (
                self.log_ratio if path == root / "commitlog" else self.queue_ratio
            ),
            flags=self.flags,
            dispatched_offset=lambda: (
                self.parts.dispatcher.dispatched_offset
                if self.dispatched is None
                else self.dispatched
            ),
            clock=self.parts.clock,
            monotonic=self.parts.clock,
            tz=UTC,
            pause=self.pauses.append,
        )

    def fill(self, *times):
        """One log file per store time."""
        for stored in times:
            self.parts.append(
                10, body=b"x" * 290, properties=b"KEYS\x01k", store_timestamp_ms=stored
            )
        assert len(self.parts.log.files) == len(times)
        self.parts.run()
        return self

    def run(self):
        return self.retention.run_once()

    def log_rules(self):
        """Rules of the log files that go in one round."""
        return [rule for path, rule in self.run() if path.parent.name == "commitlog"]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


# --- age and hour ---------------------------------------------------------------------------------


def test_expired_files_go_in_the_right_hour(bench):
    bench.fill(OLD, OLD, YOUNG, YOUNG)
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR] * 2
    assert [file.base for file in bench.parts.log.files] == [8192, 12288]
    assert bench.log_rules() == []


def test_expired_files_stay_at_other_hours(bench):
    bench.fill(OLD, OLD, OLD)
    bench.parts.clock.now_ms = NOON
    assert bench.run() == []
    assert len(bench.parts.log.files) == 3


def test_several_hours_may_be_given(tmp_path):
    bench = Bench(tmp_path, delete_when="01;12").fill(OLD, OLD)
    assert bench.log_rules() == []
    bench.parts.clock.now_ms = NOON
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR]


def test_age_is_that_of_the_last_record_and_not_of_the_file(bench):
    """K-E1: a copy or a restore makes every file look new, or old."""
    bench.fill(YOUNG, OLD, OLD)
    for file in bench.parts.log.files:
        os.utime(file.path, (0, 0))
    assert bench.log_rules() == []
    first, second, _ = bench.parts.log.files
    assert newest_store_time(first, FOUR_O_CLOCK) == YOUNG
    assert newest_store_time(second, FOUR_O_CLOCK) == OLD


def test_a_file_is_as_old_as_its_newest_record(bench):
    for stored in (OLD, YOUNG, OLD):
        bench.parts.append(3, body=b"x" * 290, store_timestamp_ms=stored)
    bench.parts.append(12, body=b"x" * 290, store_timestamp_ms=OLD)
    bench.parts.run()
    assert bench.log_rules() == []
    assert newest_store_time(bench.parts.log.files[0], FOUR_O_CLOCK) == YOUNG


def test_one_damaged_header_does_not_make_a_file_look_old(bench):
    bench.fill(YOUNG, YOUNG)
    file = bench.parts.log.files[0]
    last = bench.parts.entries()[9][0]
    file.write_bytes(last + 56, bytes(8))
    assert newest_store_time(file, FOUR_O_CLOCK) == YOUNG


def test_a_store_time_in_the_future_says_nothing_about_age(bench):
    bench.fill(OLD, OLD)
    file = bench.parts.log.files[0]
    last = bench.parts.entries()[9][0]
    file.write_bytes(last + 56, b"\x7f" * 8)
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR]


@pytest.mark.parametrize(("next_one", "goes"), [(OLD, 2), (YOUNG, 0)])
def test_a_file_without_a_readable_record_is_as_old_as_the_next_one(bench, next_one, goes):
    bench.fill(OLD, next_one, YOUNG)
    bench.parts.log.files[0].write_bytes(0, bytes(4096))
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR] * goes


def test_a_log_without_a_readable_record_does_not_expire(bench):
    bench.fill(OLD, OLD)
    for file in bench.parts.log.files:
        file.write_bytes(0, bytes(4096))
    assert bench.log_rules() == []


def test_a_file_to_which_more_is_written_is_not_as_old_as_it_was(bench):
    bench.fill(YOUNG)
    bench.parts.log.files[0].write_bytes(0, bytes(4096))
    bench.parts.append(1, body=b"x" * 290, store_timestamp_ms=YOUNG)
    assert bench.log_rules() == []  # for which the last file is looked at
    bench.parts.append(10, body=b"x" * 290, store_timestamp_ms=FOUR_O_CLOCK)
    bench.parts.run()
    bench.parts.clock.now_ms += 24 * HOUR_MS
    assert bench.log_rules() == []


def test_the_newest_log_file_is_never_deleted(bench):
    bench.fill(OLD, OLD)
    bench.log_ratio = 0.99
    bench.dispatched = 1 << 40  # else it would stay for that reason
    for _ in range(3):
        bench.run()
    assert len(bench.parts.log.files) == 1


def test_a_file_that_is_not_wholly_dispatched_stays(bench):
    bench.fill(OLD, OLD, OLD)
    bench.dispatched = 4096
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR]
    bench.dispatched = 2 * 4096 - 1
    assert bench.log_rules() == []


def test_switched_off_retention_deletes_nothing_but_watches_the_disk(tmp_path):
    bench = Bench(tmp_path, retention=False).fill(OLD, OLD)
    bench.log_ratio = 0.95
    assert bench.run() == []
    assert bench.flags.bits == RunningFlag.DISK_FULL


# --- space ----------------------------------------------------------------------------------------


def test_forced_deletion_can_be_forbidden_and_is_then_missed_aloud(tmp_path):
    """K-E5"""
    bench = Bench(tmp_path, clean_file_forcibly_enable=False).fill(YOUNG, YOUNG)
    bench.log_ratio = 0.95
    with capture_logs() as logs:
        assert bench.run() == []
    assert "retention.nothing_to_delete" in [log["event"] for log in logs]


@pytest.mark.parametrize(("ratio", "warns"), [(0.75, False), (0.76, True), (0.86, True)])
def test_from_75_percent_on_a_round_that_frees_nothing_warns(tmp_path, ratio, warns):
    bench = Bench(tmp_path).fill(YOUNG)
    bench.log_ratio = ratio
    with capture_logs() as logs:
        assert bench.run() == []
    assert [log["used_ratio"] for log in logs if log["event"] == "retention.nothing_to_delete"] == (
        [ratio] if warns else []
    )


def test_a_disk_that_stays_nearly_full_is_told_of_every_ten_minutes(tmp_path):
    bench = Bench(tmp_path, clean_file_forcibly_enable=False).fill(YOUNG, YOUNG)

    def told(rounds, ratio):
        bench.log_ratio = ratio
        with capture_logs() as logs:
            for _ in range(rounds):
                bench.parts.clock.now_ms += 10_000
                bench.run()
        return [log["event"] for log in logs].count("retention.nothing_to_delete")

    assert told(59, 0.76) == 1
    assert told(2, 0.77) == 1  # ten minutes are over
    assert told(59, 0.86) == 1  # another cause: deletion by force is forbidden
    assert told(1, 0.5) == 0
    assert told(1, 0.76) == 1


def test_each_round_that_may_delete_says_by_what_rule(bench):
    bench.fill(OLD, OLD)
    with capture_logs() as logs:
        bench.run()
        bench.parts.clock.now_ms = NOON
        bench.run()
        bench.retention.delete_manually()
        bench.run()
    rounds = [log for log in logs if log["event"] == "retention.round"]
    assert [(one["rule"], one["manual_rounds_left"]) for one in rounds] == [
        ("EXPIRED_AT_HOUR", 0),
        ("EXPIRED_MANUALLY", 20),
    ]


def test_the_two_partitions_have_a_flag_each(bench):
    """K-E4: in Java the check of one disk clears the flag of the other."""
    bench.fill(OLD)
    bench.queue_ratio = 0.95
    bench.retention.check_disk()
    assert bench.flags.bits == RunningFlag.QUEUE_DISK_FULL
    bench.log_ratio, bench.queue_ratio = 0.95, 0.1
    bench.retention.check_disk()
    assert bench.flags.bits == RunningFlag.DISK_FULL


def test_an_unknown_fullness_is_not_full(bench):
    """K-E8: Java takes -1 for a full disk and deletes."""
    bench.fill(OLD, OLD)
    bench.parts.clock.now_ms = NOON
    bench.log_ratio = bench.queue_ratio = None
    assert bench.run() == []
    assert bench.flags.bits == 0
    assert bench.retention.check_disk().highest == 0.0


def test_of_several_log_directories_the_emptiest_counts(tmp_path):
    bench = Bench(tmp_path).fill(OLD, OLD)
    one, other = tmp_path / "commitlog", tmp_path / "more"
    bench.layout.commit_log_directories = (one, other)
    bench.log_ratio, bench.queue_ratio = 0.95, 0.3
    assert bench.retention.check_disk().log == 0.3
    assert bench.retention.full_directories == {one}
    assert bench.flags.bits == 0


@pytest.mark.parametrize(
    ("settings", "ratio", "partition"),
    [({}, 0.75, "queue_ratio"), ({"disk_max_used_space_ratio": 50}, 0.5, "log_ratio")],
    ids=["by default", "by the setting"],
)
def test_the_ratio_above_which_expired_files_go_at_any_hour_is_a_setting(
    tmp_path, settings, ratio, partition
):
    bench = Bench(tmp_path, **settings).fill(OLD, OLD, YOUNG)
    bench.parts.clock.now_ms = NOON
    setattr(bench, partition, ratio)
    assert bench.log_rules() == []
    setattr(bench, partition, ratio + 0.01)
    assert bench.log_rules() == [RetentionRule.EXPIRED_DISK_FILLING] * 2


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [({}, 0.85), ({"disk_space_clean_forcibly_ratio": 0.5}, 0.5)],
    ids=["by default", "by the setting"],
)
def test_the_ratio_above_which_files_go_before_their_time_is_a_setting(tmp_path, settings, ratio):
    bench = Bench(tmp_path, **settings).fill(YOUNG, YOUNG, YOUNG)
    bench.log_ratio = ratio
    assert bench.log_rules() == []
    assert bench.retention.full_directories == frozenset()
    bench.log_ratio = ratio + 0.01
    with capture_logs() as logs:
        assert bench.log_rules() == [RetentionRule.FORCED] * 2
    levels = [log["log_level"] for log in logs if log["event"] == "retention.deleted"]
    assert levels[:2] == ["warning"] * 2
    assert bench.retention.full_directories == {tmp_path / "commitlog"}


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [({}, 0.9), ({"disk_space_warning_level_ratio": 0.6}, 0.6)],
    ids=["by default", "by the setting"],
)
def test_the_ratio_above_which_puts_stop_is_a_setting(tmp_path, settings, ratio):
    bench = Bench(tmp_path, **settings)
    bench.log_ratio = ratio
    assert bench.retention.check_disk() == DiskUsage(ratio, 0.1)
    assert not bench.flags.bits
    bench.log_ratio = ratio + 0.01
    bench.retention.check_disk()
    assert bench.flags.bits
    assert f"{bench.log_ratio:.0%}" in bench.flags.reasons[0]
    bench.log_ratio = 0.5
    bench.retention.check_disk()
    assert not bench.flags.bits


@pytest.mark.parametrize(
    ("settings", "hours"),
    [({}, 72), ({"file_reserved_time": 2}, 2)],
    ids=["by default", "by the setting"],
)
def test_the_age_of_files_that_go_is_a_setting(tmp_path, settings, hours):
    expired = FOUR_O_CLOCK - hours * 3_600_000
    bench = Bench(tmp_path, **settings).fill(expired, expired + 1, YOUNG)
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR]


def test_how_many_files_go_in_a_round_is_a_setting(tmp_path):
    bench = Bench(tmp_path, delete_file_batch_max=3).fill(*[OLD] * 8)
    assert len(bench.log_rules()) == 3


@pytest.mark.parametrize(
    ("now_ms", "is_their_hour"),
    [(FOUR_O_CLOCK, False), (FOUR_O_CLOCK - 9 * HOUR_MS, True)],
    ids=["four o'clock UTC", "four o'clock of the machine"],
)
def test_the_hour_is_that_of_the_machine_s_own_zone(tmp_path, monkeypatch, now_ms, is_their_hour):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        try:
            clock = Clock(OLD)
            with open_small(tmp_path / "store", clock, retention=True) as store:
                for _ in range(5):
                    store.put(Message(topic="t", body=bytes(30_000)))
                store.wait_dispatched()
                store.flush()
                clock.now_ms = now_ms
                parts_of(store).retention.used_ratio = lambda _path: 0.1
                parts_of(store).retention.run_once()
                assert (store.min_physical_offset > 0) is is_their_hour
        finally:
            patch.undo()
            time.tzset()


# --- how ------------------------------------------------------------------------------------------


def test_ten_files_go_per_round_with_pauses_between(bench):
    bench.fill(*[OLD] * 14)
    assert len(bench.log_rules()) == 10
    assert bench.pauses[:9] == [0.1] * 9
    assert len(bench.log_rules()) == 3
    assert len(bench.parts.log.files) == 1


def test_a_manual_request_lasts_for_its_rounds(bench):
    bench.fill(*[OLD] * 14)
    bench.parts.clock.now_ms = NOON
    bench.retention.delete_manually()
    view = memoryview(bench.parts.log.files[0].mapping)[:100]
    assert bench.log_rules() == []
    assert bench.retention.manual_rounds_left == 20, "a reader has the first file"
    del view
    assert bench.log_rules() == [RetentionRule.EXPIRED_MANUALLY] * 10
    assert bench.retention.manual_rounds_left == 20 - 1
    assert bench.log_rules() == [RetentionRule.EXPIRED_MANUALLY] * 3
    assert bench.log_rules() == []
    assert bench.retention.manual_rounds_left == 0, "K-E10: nothing left to do"


def test_a_held_file_blocks_until_its_reader_lets_go(bench):
    bench.fill(OLD, OLD, OLD)
    first = bench.parts.log.files[0]
    view = memoryview(first.mapping)[:100]
    assert bench.log_rules() == []
    assert bench.parts.log.min_offset == 4096, "no new reader gets it"
    del view
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR] * 2


def test_what_a_reader_took_stays_as_it_was_when_the_files_go(tmp_path):
    clock = Clock(FOUR_O_CLOCK)
    with open_small(
        tmp_path / "store", clock, retention=True, destroy_mapped_file_interval_forcibly=0
    ) as store:
        for number in range(9):
            store.put(Message(topic="t", body=bytes([number]) * 30_000, keys="k"))
        store.wait_dispatched()
        store.flush()
        views = store.get_views("t", 0, 0, 2).records
        before = [bytes(view) for view in views]
        clock.now_ms += 100 * HOUR_MS
        store.delete_expired_files()
        parts_of(store).retention.run_once()
        assert store.min_physical_offset > 0
        assert not (tmp_path / "store" / "commitlog" / f"{0:020d}").exists()
        assert [bytes(view) for view in views] == before
        assert b"\x01" * 30_000 in before[1]


@pytest.mark.parametrize(
    ("settings", "wait_ms"),
    [({}, 120_000), ({"destroy_mapped_file_interval_forcibly": 500}, 500)],
    ids=["by default", "by the setting"],
)
def test_a_file_held_for_too_long_goes_and_its_reader_keeps_its_bytes(tmp_path, settings, wait_ms):
    bench = Bench(tmp_path, **settings).fill(OLD, OLD)
    first = bench.parts.log.files[0]
    view = memoryview(first.mapping)[:100]
    before = bytes(view)
    assert bench.log_rules() == []
    bench.parts.clock.now_ms += wait_ms - 1
    assert bench.log_rules() == []
    bench.parts.clock.now_ms += 1
    assert bench.log_rules() == [RetentionRule.EXPIRED_AT_HOUR]
    assert bytes(view) == before
    assert not first.path.exists()


def test_when_a_hung_file_is_tried_again_is_a_setting(tmp_path):
    settings = {"destroy_mapped_file_interval_forcibly": 24 * HOUR_MS}
    bench = Bench(tmp_path, redelete_hanged_file_interval=700, **settings).fill(OLD, OLD)
    view = memoryview(bench.parts.log.files[0].mapping)[:100]
    assert bench.log_rules() == []
    bench.parts.clock.now_ms = NOON
    assert bench.log_rules() == []
    del view
    bench.parts.clock.now_ms += 700
    assert bench.log_rules() == []
    bench.parts.clock.now_ms += 1
    assert bench.log_rules() == [RetentionRule.HUNG]


def test_a_hung_file_is_tried_again_at_other_hours(bench):
    bench.fill(OLD, OLD)
    first = bench.parts.log.files[0]
    view = memoryview(first.mapping)[:100]
    assert bench.log_rules() == []
    del view
    bench.parts.clock.now_ms = FOUR_O_CLOCK + HOUR_MS
    assert bench.run()[0] == DeletedFile(first.path, RetentionRule.HUNG)


# --- queues and index follow ----------------------------------------------------------------------


def test_queue_and_index_files_follow_the_log(bench):
    bench.fill(OLD, OLD, YOUNG, YOUNG)
    queue = bench.parts.queue()
    with capture_logs() as logs:
        deleted = bench.run()
    kinds = [path.parent.name for path, _ in deleted]
    assert kinds.count("commitlog") == 2
    assert queue.first_offset == 20
    assert queue.min_offset == 20
    assert kinds.count("0") == 4
    assert kinds.count("index") == 2
    assert all(rule is RetentionRule.BELOW_LOG for _, rule in deleted[2:])
    said = [(log["path"], log["rule"]) for log in logs if log["event"] == "retention.deleted"]
    assert said == [(str(path), rule.name) for path, rule in deleted]
    assert bench.run() == []


def test_queues_and_index_are_looked_at_only_when_the_log_has_lost_files(bench, monkeypatch):
    bench.fill(OLD, OLD, YOUNG)
    looked_at = []
    real = type(bench.parts.queue()).delete_expired

    def counted(queue, log_min_offset, **options):
        looked_at.append(log_min_offset)
        return real(queue, log_min_offset, **options)

    monkeypatch.setattr(type(bench.parts.queue()), "delete_expired", counted)
    bench.run()
    bench.run()
    assert looked_at == [8192]


def test_the_newest_file_of_a_queue_and_of_the_index_stays_whatever_it_knows(bench):
    bench.parts.append(3, topic=b"Rare", store_timestamp_ms=OLD, properties=b"KEYS\x01k")
    bench.parts.append(40, body=b"x" * 290, store_timestamp_ms=OLD)
    bench.parts.run()
    (rare,) = bench.parts.queue("Rare").files.files
    newest = bench.parts.index.files[-1].file
    assert bench.log_rules()
    # Longer than a file waits for those who have a view of it, as the writer has.
    bench.parts.clock.now_ms += 2 * QUEUE_FORCE_AFTER_MS
    bench.retention._cleaned_to = -1
    bench.run()
    assert newest.path.exists()
    assert bench.parts.index.end_physical_offset < bench.parts.log.min_offset
    assert rare.path.exists()
    assert bench.parts.queue("Rare").files.files == (rare,)


@pytest.mark.parametrize("count", [3, 5], ids=["in a part of a file", "in a full file"])
def test_a_queue_of_expired_messages_keeps_its_number(bench, count):
    """K-C4"""
    bench.parts.append(count, topic=b"Rare", store_timestamp_ms=OLD)
    bench.parts.append(40, body=b"x" * 290, store_timestamp_ms=OLD)
    bench.parts.run()
    rare = bench.parts.queue("Rare")
    bench.parts.table.mappings.dismiss_writer(rare.row)  # no kernel holds its last file
    bench.run()
    assert (rare.min_offset, rare.max_offset, len(rare.files.files)) == (count, count, 1)
    bench.parts.append(topic=b"Rare")
    bench.parts.run()
    assert (rare.min_offset, rare.max_offset) == (count, count + 1)


def test_a_queue_file_that_is_held_for_a_minute_goes_and_its_reader_keeps_its_bytes(bench):
    bench.fill(OLD, OLD, YOUNG)
    first = bench.parts.queue().files.files[0]
    view = first.array[:20]
    before = bytes(view)
    bench.run()
    for passed_ms, stays in ((59_999, True), (1, False)):
        bench.parts.clock.now_ms += passed_ms
        bench.run()
        assert first.path.exists() is stays
    assert bytes(view) == before


def test_a_held_queue_file_is_tried_again_in_the_next_round(bench):
    bench.fill(OLD, OLD, YOUNG)
    first = bench.parts.queue().files.files[0]
    view = first.array[:20]
    bench.run()
    assert first.path.exists()
    del view
    bench.parts.clock.now_ms = NOON
    assert first.path in [path for path, _ in bench.run()]
