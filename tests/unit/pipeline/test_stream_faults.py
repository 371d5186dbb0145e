"""A stream over a log that was cut, deleted, torn or damaged: an error or counted, never silent."""

import json
import logging
import re
import shutil

import pytest
from pyarrow import fs

from rocketstore import Message
from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.pipeline.streaming import live_log, live_queues
from rocketstore.pipeline.streaming.stream_options import UNLIMITED, BatchLimits
from rocketstore.places import files
from rocketstore.units import QueueKey
from support.clock import Clock
from support.golden_stores import LOGS, golden_root
from support.pipeline_tables import read_table
from support.small_store import (
    LOG_FILE_BYTES,
    build_store,
    crashed,
    flip_body,
    log_path,
    messages,
    open_store,
    overwrite,
    put_all,
)
from support.store_files import StoreFiles
from support.stream_run import StreamRun, flat, places_of, sorted_places

ALL = {"startingOffsets": "earliest"}
LOG_FILE_BYTES_OF_CUT = 4096


def tolerant(root, run, **options):
    """Go on after a loss, as a user does who has read the error."""
    return StreamRun(root, run.checkpoint.copy(), failOnDataLoss="false", **options)


class CutLog:
    """A log that is cut and written anew, as a 4.9 broker does after a crash."""

    def __init__(self, root):
        self.files = StoreFiles(root)
        self.time_ms = 1_000
        self.saved: tuple[int, dict[QueueKey, int]] = (0, {})

    def put(self, count, body, *, topic="TopicA"):
        self.time_ms += 10
        return [
            self.files.put(topic, b"%s-%d" % (body, number), store_timestamp_ms=self.time_ms)
            for number in range(count)
        ]

    def mark(self):
        self.saved = self.files.end, dict(self.files.next_offsets)

    def cut(self, *, zero=True):
        """Go back to the mark."""
        end, offsets = self.saved
        if zero:
            self.files.write_log(end, bytes(self.files.log_file_size - end % 4096))
        for key, stop in self.files.next_offsets.items():
            for offset in range(offsets.get(key, 0), stop):
                self.files.write_entry(key, offset, 0, 0)
        self.files.end, self.files.next_offsets = end, dict(offsets)


@pytest.fixture
def log(root):
    return CutLog(root)


# --- a log that was cut and written anew --------------------------------------------------------


@pytest.fixture
def cut_log(root, mode, log):
    """A log with 10 records that were read and 5 others in the place of the last 5."""
    old = log.put(5, b"old")
    log.mark()
    old += log.put(5, b"gone")
    run = StreamRun(root, **ALL, **mode)
    assert sorted_places(run.drain()) == old
    log.cut()
    return log, run, old


def test_a_log_that_was_written_again_is_an_error_with_offset_expected_and_found(
    root, mode, cut_log
):
    log, run, old = cut_log
    log.put(8, b"other")
    with pytest.raises(StoreError, match="data loss") as caught:
        run.batch()
    told = str(caught.value)
    saved = json.loads(run.checkpoint.offsets[-1])
    text = json.dumps(saved)
    number = re.search(r'"offset": (\d+)', text)[1]
    crc = int(re.search(r'"crc": (\d+)', text)[1])
    assert f"offset {number}" in told
    assert f"at physical offset {old[-1]}" in told or f"at {old[-1]}" in told
    assert f"a record with CRC {crc:08x}, found" in told
    assert 'option("failOnDataLoss", "false")' in told
    assert run.checkpoint.committed == len(run.checkpoint.offsets)


def test_an_accepted_loss_goes_on_after_the_saved_offset_and_is_counted(
    root, mode, cut_log, caplog
):
    log, run, old = cut_log
    new = log.put(8, b"longer-than-before")
    caplog.set_level(logging.WARNING)
    again = tolerant(root, run, **mode)
    rows = flat(again.drain())
    end = int(json.loads(run.checkpoint.offsets[-1])[run.kind]["store"]["offset"])
    assert places_of(rows) == [at for at in new if at >= end]
    assert rows
    assert len(again.reader.losses.accepted) == 1
    assert "stream.loss count=1" in caplog.text
    later = log.put(3, b"later")
    assert sorted_places(again.drain()) == later
    assert len(again.reader.losses.accepted) == 1
    assert old


def test_other_records_in_the_very_places_of_those_that_were_read_are_a_loss(root, mode, cut_log):
    log, run, old = cut_log
    assert log.put(5, b"fake") == old[5:]
    with pytest.raises(StoreError, match=r"data loss.*CRC \w+, found a record with CRC"):
        run.batch()
    again = tolerant(root, run, **mode)
    later = log.put(3, b"later")
    assert sorted_places(again.drain()) == later


def test_a_log_that_is_shorter_than_the_saved_offset_goes_on_at_its_end(root, mode, cut_log):
    log, run, _ = cut_log
    with pytest.raises(StoreError, match="data loss"):
        run.batch()
    again = tolerant(root, run, **mode)
    assert flat(again.drain()) == []
    assert len(again.reader.losses.accepted) == 1
    later = log.put(3, b"later")
    assert sorted_places(again.drain()) == later
    # The loss is in the checkpoint's past: nothing is lost any more.
    assert sorted_places([StreamRun(root, again.checkpoint, **mode).batch() or []]) == []


def test_a_loss_that_was_accepted_is_not_moved_by_a_restart(root, mode, cut_log):
    log, run, _ = cut_log
    again = tolerant(root, run, **mode)
    assert again.plan_next()
    later = log.put(3, b"later")
    third = tolerant(root, again, **mode)
    assert sorted_places(third.drain()) == later


def test_a_log_that_was_cut_where_the_stream_stands_has_lost_nothing(root, mode, log):
    old = log.put(5, b"old")
    log.mark()
    run = StreamRun(root, **ALL, **mode)
    assert sorted_places(run.drain()) == old
    log.put(5, b"gone")
    log.cut()
    new = log.put(2, b"new")
    assert sorted_places(run.drain()) == new


def test_a_planned_batch_whose_end_was_cut_away_is_an_error_and_then_what_is_there(root, mode, log):
    old = log.put(5, b"old")
    log.mark()
    log.put(5, b"gone")
    run = StreamRun(root, **ALL, **mode)
    run.plan_next()
    log.cut()
    with pytest.raises(StoreError, match=r"the batch ends at .*found"):
        run.run_planned()
    again = tolerant(root, run, **mode)
    assert sorted(places_of(again.batch())) == old
    new = log.put(3, b"new")
    assert set(sorted_places(again.drain())) <= set(new)


def test_a_crash_that_recovery_cut_is_noticed_through_our_own_store(root, mode):
    clock = Clock()
    offsets = build_store(root, 40, clock)
    run = StreamRun(root, **ALL, **mode)
    assert sorted_places(run.drain()) == offsets
    crashed(root)
    size = offsets[-1] - offsets[-2]
    overwrite(root, offsets[-3], bytes(4 * size))
    with open_store(root, clock) as store:
        new = put_all(store, messages(6, first=100), clock)
        assert new[0] == offsets[-3]
        with pytest.raises(StoreError, match=r"data loss.*expected.*found"):
            run.batch()
        again = tolerant(root, run, **mode)
        found = places_of(flat(again.drain()))
        # Recovery may go on counting where the queue was, and then no number was given twice.
        assert set(found) <= set(new)
        assert mode or set(found) < set(new)
        later = put_all(store, messages(6, first=200), clock)
        assert sorted_places(again.drain()) == later


# --- files that are gone ------------------------------------------------------------------------


def test_retention_of_what_the_stream_has_read_is_no_loss(root, mode):
    clock = Clock()
    with open_store(root, clock) as store:
        put = put_all(store, messages(200), clock)
        run = StreamRun(root, **ALL, **mode)
        assert sorted_places(run.drain()) == put
        for base in range(0, put[-1] - LOG_FILE_BYTES, LOG_FILE_BYTES):
            log_path(root, base).unlink()
        later = put_all(store, messages(60, first=200), clock)
        assert sorted_places(run.drain()) == later


def test_retention_up_to_the_very_place_of_the_stream_is_no_loss(root, log):
    put = log.put(60, b"x" * 100)
    second = next(at for at in put if at >= 4096)
    count = put.index(second)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=count)
    assert places_of(run.batch()) == put[:count]
    log.files.log_path(0).unlink()
    assert sorted_places(run.drain()) == put[count:]


def test_retention_in_front_of_the_stream_is_a_loss(root, mode, caplog, log):
    put = log.put(100, b"x" * 100)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=5, **mode)
    run.batch()
    log.files.log_path(0).unlink()
    log.files.log_path(4096).unlink()
    with pytest.raises(StoreError, match=r"data loss.*(deleted|gone)"):
        run.batch()
    caplog.set_level(logging.WARNING)
    again = tolerant(root, run, **mode)
    left = [at for at in put if at >= 8192]
    assert sorted_places(again.drain()) == left
    assert len(again.reader.losses.accepted) == 1
    lost = len(put) - len(left) - 5
    if mode:
        assert f"{lost} messages are gone" in caplog.text


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_deleted_between_plan_and_read_is_a_loss(root, mode, is_first, log):
    put = log.put(100, b"x" * 100)
    base = 0 if is_first else 4096
    run = StreamRun(root, **ALL, **mode)
    run.plan_next()
    log.files.log_path(base).unlink()
    with pytest.raises(StoreError, match="data loss"):
        run.run_planned()
    again = tolerant(root, run, **ALL, **mode)
    left = [at for at in put if not base <= at < base + 4096]
    assert sorted_places(again.drain()) == left


def test_a_planned_batch_that_is_gone_as_a_whole_is_a_loss(root, mode, log):
    put = log.put(60, b"x" * 100)
    count = sum(at < 4096 for at in put)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=count, **mode)
    run.plan_next()
    log.files.log_path(0).unlink()
    with pytest.raises(StoreError, match=r"data loss"):
        run.run_planned()
    again = tolerant(root, run, **ALL, **mode)
    assert again.batch() == []
    assert sorted_places(again.drain()) == put[count:]


def test_the_beginning_of_a_new_queue_is_not_moved_by_retention_without_a_word(root, log):
    log.put(1, b"x", topic="TopicB")
    run = StreamRun(root, subscribePattern="Topic.*")
    run.drain()
    put = log.put(60, b"x" * 100)
    run.plan_next()
    log.files.log_path(0).unlink()
    again = StreamRun(root, run.checkpoint.copy(), subscribePattern="Topic.*")
    with pytest.raises(StoreError, match="data loss"):
        again.run_planned()
    again = tolerant(root, run, subscribePattern="Topic.*")
    assert sorted_places(again.drain()) == [at for at in put if at >= 4096]


def test_a_file_that_goes_after_it_was_listed_is_only_lost_if_it_was_wanted(
    root, mode, monkeypatch, log
):
    put = log.put(100, b"x" * 100)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=10, **mode)
    run.batch()
    unlisted = files.LocalFiles.open
    gone = str(log.files.log_path(0))

    def open_late(self, path):
        if path == gone:
            log.files.log_path(0).unlink(missing_ok=True)
        return unlisted(self, path)

    monkeypatch.setattr(files.LocalFiles, "open", open_late)
    with pytest.raises(StoreError, match="data loss"):
        run.batch()
    again = tolerant(root, run, **mode)
    assert sorted_places(again.drain()) == [at for at in put if at >= 4096]


def test_a_file_that_goes_while_a_task_runs_is_a_loss(root, mode, monkeypatch, log):
    put = log.put(100, b"x" * 100)
    for tolerance in ("true", "false"):
        run = StreamRun(root, **ALL, failOnDataLoss=tolerance, maxSplitBytes=4096, **mode)
        run.plan_next()
        plan = run.reader.partitions

        def plan_and_delete(start, end, plan=plan):
            tasks = plan(start, end)
            log.files.log_path(4096).rename(root / "moved")
            return tasks

        monkeypatch.setattr(run.reader, "partitions", plan_and_delete)
        if tolerance == "true":
            with pytest.raises(StoreError, match=r"data loss.*the file is gone"):
                run.run_planned()
            (root / "moved").rename(log.files.log_path(4096))
        else:
            assert sorted(places_of(run.run_planned())) == [
                at for at in put if not 4096 <= at < 8192
            ]


@pytest.mark.parametrize("limits", [UNLIMITED, BatchLimits(12)])
@pytest.mark.parametrize("long_bytes", [0, live_queues.LONG_BYTES])
@pytest.mark.parametrize("count", [0, 3, 20, 40])
def test_a_topic_that_was_deleted_and_made_again_has_lost_nothing(
    root, count, log, long_bytes, limits, monkeypatch
):
    monkeypatch.setattr(live_queues, "LONG_BYTES", long_bytes)
    monkeypatch.setattr(live_queues, "MiB", 1)
    put = log.put(1, b"other", topic="TopicB") + log.put(20, b"old")
    key, topics = QueueKey("TopicA", 0), {"subscribe": "TopicA,TopicB"}
    run = StreamRun(root, **ALL, **topics)
    assert places_of(run.batch(BatchLimits(12))) == put[:12]
    shutil.rmtree(log.files.queue_directory(key).parent)
    del log.files.next_offsets[key]
    put += log.put(count, b"new") + log.put(9, b"other", topic="TopicB")
    # Deleted queues are no deleted records: the log has those of before and of after.
    again = StreamRun(root, **ALL, **topics, failOnDataLoss="false")
    for job, wanted in ((run, put[12:]), (again, put)):
        batches = job.drain(limits)
        assert sorted_places(batches) == wanted
        assert limits is UNLIMITED or max(map(len, batches)) <= 12


def test_a_store_that_is_not_there_any_more_is_named(tmp_path, mode):
    for name in ("a", "b"):
        CutLog(tmp_path / "stores" / name).put(3, b"x")
    run = StreamRun(tmp_path / "stores", **ALL, **mode)
    run.drain()
    (tmp_path / "stores" / "b").rename(tmp_path / "elsewhere")
    with pytest.raises(
        StoreError,
        match=r"data loss: the checkpoint has (a store 'b' .*, found store 'a'|queue .* of b)",
    ):
        run.batch()
    again = tolerant(tmp_path / "stores", run, **mode)
    assert again.batch() is None
    (tmp_path / "elsewhere").rename(tmp_path / "stores" / "b")
    assert again.batch() is None
    (tmp_path / "stores" / "b").rename(tmp_path / "stores" / "c")
    with pytest.raises(StoreError, match="if that was renamed, call it 'b' by brokerName"):
        run.batch()
    named = StreamRun(tmp_path / "stores", run.checkpoint, **mode, brokerName="a,b")
    assert named.batch() is None


# --- the end of a live log ----------------------------------------------------------------------


@pytest.mark.parametrize("length", [4, 8, 60, 100, 140])
def test_a_torn_tail_is_read_once_it_is_whole(root, length, log):
    put = log.put(5, b"x" * 50)
    (root / "abort").touch()
    run = StreamRun(root, **ALL)
    log.mark()
    last = log.put(1, b"y" * 50)
    whole = read_at(root, last[0], log.files.end - last[0])
    log.files.write_log(last[0], whole[:length] + bytes(len(whole) - length))
    assert sorted_places(run.drain()) == put
    log.files.write_log(last[0], whole)
    assert sorted_places(run.drain()) == last


def read_at(root, offset, size):
    data = (root / "commitlog" / f"{offset // 4096 * 4096:020}").read_bytes()
    return data[offset % 4096 :][:size]


@pytest.mark.parametrize("limit", [2, 30, 1000])
@pytest.mark.parametrize("zero", [True, False])
def test_an_end_that_was_seen_is_forgotten_when_the_log_is_cut(root, log, zero, limit, monkeypatch):
    monkeypatch.setattr(live_log, "NEAR_BYTES", 0)
    put = log.put(40, b"in the first file, and in the second one a little")
    assert put[-1] > LOG_FILE_BYTES_OF_CUT
    log.mark()
    log.put(10, b"gone, and seen as the end before it was read")
    (root / "abort").touch()
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=2)
    found = [run.batch()]
    log.cut(zero=zero)
    put += log.put(2, b"new")
    again = StreamRun(root, run.checkpoint, maxOffsetsPerTrigger=limit)
    again.reader = run.reader
    found += again.drain()
    assert sorted_places(found) == put


@pytest.mark.parametrize("length", [8, 100])
def test_an_entry_ahead_of_its_record_waits_for_it(root, length, log):
    put = log.put(5, b"x" * 50)
    run = StreamRun(root, **ALL, subscribe="TopicA")
    last = log.put(3, b"y" * 50)
    whole = read_at(root, last[1], log.files.end - last[1])
    log.files.write_log(last[1], whole[:length] + bytes(len(whole) - length))
    assert sorted_places(run.drain()) == [*put, last[0]]
    log.files.write_log(last[1], whole)
    assert sorted_places(run.drain()) == last[1:]


def test_records_that_are_not_dispatched_yet_come_once_and_do_not_wait_for_their_entries(root, log):
    put = log.put(5, b"x")
    key = QueueKey("TopicA", 0)
    put.append(log.files.put("TopicA", b"late", dispatch=False, store_timestamp_ms=5_000))
    size = log.files.end - put[-1]
    run = StreamRun(root, **ALL, subscribe="TopicA")
    assert sorted_places(run.drain()) == put
    log.files.write_entry(key, 5, put[-1], size)
    assert run.batch() is None


def test_records_that_an_earlier_log_left_behind_are_not_read(root, log):
    put = log.put(5, b"kept")
    log.mark()
    log.put(12, b"left behind by an earlier log")
    log.cut(zero=False)
    (root / "abort").touch()
    new = log.put(3, b"n")
    run = StreamRun(root, **ALL)
    assert sorted_places(run.drain()) == put + new
    for _ in range(30):
        new = log.put(1, b"m")
        assert sorted_places(run.drain()) == new


def test_the_filler_of_an_earlier_log_is_not_the_end_of_a_file(root, log):
    put = log.put(36, b"kept")
    assert 4096 - 400 < log.files.end < 4096 - 300
    log.mark()
    # One more in the first file, which ends after it, and one in the second file.
    log.put(2, b"left behind by an earlier log, as long as what is left of its file" * 2)
    log.cut(zero=False)
    log.files.log_path(4096).unlink()
    (root / "abort").touch()
    put += log.put(1, b"new")
    run = StreamRun(root, **ALL)
    assert sorted_places(run.drain()) == put
    later = log.put(3, b"over the filler")
    assert sorted_places(run.drain()) == later


def test_a_file_that_is_closed_while_its_end_is_looked_for_is_no_loss(root, mode, monkeypatch, log):
    put = log.put(36, b"kept")
    run = StreamRun(root, **ALL, **mode)
    look, later = live_log.LiveLog._checked_end, []

    def look_and_then_close(*place):
        found = look(*place)
        later.extend(
            [] if later else log.put(2, b"in the next file, for this one is too short" * 10)
        )
        return found

    monkeypatch.setattr(live_log.LiveLog, "_checked_end", look_and_then_close)
    assert places_of(run.batch()) == put
    assert '"crc"' in run.checkpoint.offsets[-1]
    assert places_of(flat(run.drain())) == later
    assert later[0] == 4096


@pytest.mark.parametrize("row", [0, 11])
def test_a_page_that_is_filled_while_it_is_copied_is_no_damage(root, monkeypatch, row, log):
    put = log.put(20, b"x" * 50)
    read_into = files.LocalFile.read_into
    calls = []

    def racing(self, position, view):
        got = read_into(self, position, view)
        if len(view) > 1000 and not calls:
            # The first page was copied before the writer came, the second one after it.
            calls.append(position)
            hidden = max(0, put[row] - position)
            view[hidden : hidden + 700] = bytes(700)
        return got

    monkeypatch.setattr(files.LocalFile, "read_into", racing)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=5)
    batches = run.drain()
    assert calls
    assert sorted_places(batches) == put
    # A record that the walk had not seen would have come with the others, above the limit.
    assert [len(rows) for rows in batches] == [5, 5, 5, 5]


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [7, 17, 39])
def test_damage_is_an_error_or_left_out_as_asked(root, mode, row, caplog):
    put = build_store(root, 40, Clock(), body_size=1000)
    assert put[7] < LOG_FILE_BYTES < put[17] < put[39]
    flip_body(root, put[row])
    rest = [at for at in put if at != put[row]]
    if row < 39:
        with pytest.raises(StoreDamagedError, match=f"physical offset {put[row]}"):
            StreamRun(root, **ALL, **mode).drain()
    caplog.set_level(logging.WARNING)
    for limit in (1000, 13, 1):
        run = StreamRun(root, **ALL, damage="report", maxOffsetsPerTrigger=limit, **mode)
        assert sorted_places(run.drain()) == rest
    if row < 39:
        assert f"(physical offset {put[row]})" in caplog.text


def test_records_after_a_record_whose_length_is_gone_are_the_log_s(root, mode):
    put = build_store(root, 80, Clock(), body_size=500)
    overwrite(root, put[-10], b"\xff" * 40)
    rest = [at for at in put if at != put[-10]]
    for limit in (1000, 1):
        run = StreamRun(root, **ALL, damage="skip", maxOffsetsPerTrigger=limit, **mode)
        assert sorted_places(run.drain()) == rest


def test_a_damaged_record_at_the_saved_place_is_told_from_nothing(root, mode):
    clock = Clock()
    put = build_store(root, 50, clock)
    run = StreamRun(root, **ALL, **mode)
    run.drain()
    with open_store(root, clock) as store:
        later = put_all(store, messages(20, first=50), clock)
    flip_body(root, put[-1])
    flip_body(root, put[-2])
    with pytest.raises(StoreError, match=r"found no intact record"):
        run.batch()
    again = tolerant(root, run, **mode)
    assert sorted_places(again.drain()) == later


@pytest.mark.parametrize(("since", "content"), [(0, b"\xff"), (4000, b"\0")])
def test_a_file_that_was_overwritten_or_emptied_is_damage_and_not_the_end(
    root, mode, since, content
):
    put = build_store(root, 250, Clock())
    begin = next(at for at in put if at >= LOG_FILE_BYTES + since)
    overwrite(root, begin, content * (2 * LOG_FILE_BYTES - begin))
    with pytest.raises(StoreDamagedError):
        StreamRun(root, **ALL, **mode).drain()
    rest = [at for at in put if not begin <= at < 2 * LOG_FILE_BYTES]
    for limit in (20, 1000):
        run = StreamRun(root, **ALL, damage="skip", maxOffsetsPerTrigger=limit, **mode)
        assert sorted_places(run.drain()) == rest


def test_entries_that_are_missing_are_damage_and_their_records_are_found(root, log):
    put = log.put(40, b"x")
    key = QueueKey("TopicA", 0)
    for offset in (12, 13):
        log.files.write_entry(key, offset, 0, 0)
    run = StreamRun(root, **ALL, subscribe="TopicA")
    with pytest.raises(StoreDamagedError, match=r"expected 40 entries from offset 0 on.*found 38"):
        run.drain()
    for limit in (100, 5, 1):
        run = StreamRun(root, **ALL, subscribe="TopicA", damage="skip", maxOffsetsPerTrigger=limit)
        found = sorted_places(run.drain())
        assert set(put) - set(found) <= {put[12], put[13]}
        assert len(found) == len(set(found))
    assert StreamRun(root, **ALL, subscribe="TopicA", damage="skip").drain()


@pytest.mark.parametrize("number", [999, 20])  # one that no other has, and that of another
def test_a_record_that_is_not_what_its_entry_says_is_counted(root, caplog, log, number):
    put = log.put(40, b"x")
    # No checksum covers the header: the record is intact and says that it has this number.
    log.files.write_log(put[12] + 20, number.to_bytes(8, "big"))
    run = StreamRun(root, **ALL, subscribe="TopicA")
    run.plan_next()
    with pytest.raises(StoreError, match=r"expected 40 records of the batch's queues, found 39"):
        run.run_planned()
    caplog.set_level(logging.WARNING)
    again = tolerant(root, run, **ALL, subscribe="TopicA")
    rows = flat(again.drain())
    assert sorted(places_of(rows)) == put
    assert [row["queueOffset"] for row in rows] == [*range(12), number, *range(13, 40)]
    assert "expected 40 records" in caplog.text


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("parts", [1, 7])
def test_a_record_with_the_number_of_another_is_a_row_and_no_loss(root, caplog, loss, parts, log):
    put = log.put(20, b"x")
    key = QueueKey("TopicA", 0)
    log.files.next_offsets[key] = 5
    surplus = log.files.put("TopicA", b"again", dispatch=False)
    log.files.next_offsets[key] = 20
    put += [surplus, *log.put(20, b"y")]
    options = {**ALL, "subscribe": "TopicA", "failOnDataLoss": loss, "minPartitions": parts}
    run = StreamRun(root, **options)
    run.plan_next()
    caplog.set_level(logging.WARNING)
    assert sorted(places_of(run.run_planned())) == put
    assert "stream.offset_stated_twice records=1" in caplog.text
    assert "queue-conflict" in caplog.text
    assert "stream.loss" not in caplog.text
    again = StreamRun(root, run.checkpoint.copy(), **options)
    assert sorted_places(again.drain()) == put


def test_an_entry_that_points_elsewhere_is_reported(root, log):
    put = log.put(40, b"x")
    key = QueueKey("TopicA", 0)
    log.files.write_entry(key, 12, put[12] + 3, 100)
    run = StreamRun(root, **ALL, subscribe="TopicA")
    assert sorted_places(run.drain()) == put
    log.files.write_entry(key, 12, put[30], 100)
    with pytest.raises(StoreDamagedError, match="in disorder"):
        StreamRun(root, **ALL, subscribe="TopicA").drain()


@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith("crash/")])
def test_a_stream_over_a_crashed_store_has_the_intact_rows(name):
    root = golden_root(name)
    rows = read_table(root, damage="skip")
    run = StreamRun(root, **ALL, damage="skip", maxOffsetsPerTrigger=50)
    assert flat(run.drain()) == rows
    assert rows


def test_a_store_that_may_not_be_read_is_an_error(root, mode, monkeypatch):
    build_store(root, 5, Clock())

    def refuse(self, path):
        with files.plain_reads(path):
            raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(files.LocalFiles, "open", refuse)
    with pytest.raises(StoreError, match="cannot be read: Permission denied"):
        StreamRun(root, **ALL, failOnDataLoss="false", **mode).batch()


def test_a_store_elsewhere_is_followed_alike(root, mode, monkeypatch):
    system = fs.LocalFileSystem()
    monkeypatch.setattr(files, "LocalFiles", lambda: files.ArrowFiles(system))
    clock = Clock()
    with open_store(root, clock) as store:
        put = put_all(store, messages(100, body_size=900), clock)
        run = StreamRun(root, **ALL, maxOffsetsPerTrigger=30, **mode)
        assert sorted_places(run.drain()) == put
        later = put_all(store, messages(30, first=100), clock)
        assert sorted_places(run.drain()) == later
    log_path(root, 0).unlink()
    assert sorted_places(StreamRun(root, **ALL, **mode).drain()) == [
        at for at in put + later if at >= LOG_FILE_BYTES
    ]


def test_a_message_that_is_put_twice_is_two_rows(root, mode):
    clock = Clock()
    with open_store(root, clock) as store:
        same = Message(topic="Topic0", body=b"same")
        put = [store.put(same, queue_id=0).physical_offset for _ in range(2)]
        assert store.wait_dispatched()
        assert sorted_places(StreamRun(root, **ALL, **mode).drain()) == put
