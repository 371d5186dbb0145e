"""Commits of the sink: once per batch, in order, refused in time, swept behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from rocketstore import Message, MessageStore
from rocketstore.errors import (
    ConfigError,
    NotAStoreError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from rocketstore.pipeline.sink.driver_commit import (
    check_target,
    commit_batch,
    read_intent,
    sweep_job,
)
from rocketstore.pipeline.sink.intent import DoneMarks, Intent, done_path
from rocketstore.pipeline.sink.rows import EncodedRow
from rocketstore.pipeline.sink.staging import (
    JobOwner,
    StagedFile,
    StagingWriter,
    read_chunks,
    staging_root,
)
from rocketstore.storage.files.disk import Disk
from support.sink_parts import (
    CONFIG,
    check_whole,
    new_owner,
    rows,
    sink_options,
    stage,
    stored_numbers,
)
from support.small_store import Clock


def commit(root, tasks, batch_id=0, *, streaming=True, disk=None, clock=None, **given):
    options = sink_options(root, streaming=streaming, **given)
    owner = new_owner(options, streaming=streaming)
    files = stage(options, owner, tasks)
    more = {} if clock is None else {"clock": clock}
    return commit_batch(options, owner, files, batch_id, disk=disk, **more)


def numbers(*tasks):
    return [int(row["body"][:6]) for task in tasks for row in task]


# --- once ---------------------------------------------------------------------------------------


def test_a_new_directory_becomes_a_store_with_the_tasks_rows_in_order(tmp_path):
    root = tmp_path / "deep" / "store"
    tasks = [rows(30), rows(20, 30), [], rows(1, 50)]
    outcome = commit(root, tasks)
    assert (outcome.is_new, outcome.start, outcome.messages) == (True, 0, 51)
    assert stored_numbers(root) == numbers(*tasks)
    check_whole(root)


def test_a_batch_that_is_committed_again_changes_no_byte(tmp_path):
    commit(tmp_path, [rows(30)], 3)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    assert not commit(tmp_path, [rows(30)], 3).is_new
    assert not commit(tmp_path, [rows(5, 70)], 3).is_new
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before
    check_whole(tmp_path)


def test_batches_are_known_by_sink_and_number(tmp_path):
    assert commit(tmp_path, [rows(3)], 0).is_new
    assert commit(tmp_path, [rows(3, 3)], 1).is_new
    assert commit(tmp_path, [rows(3, 6)], 0, sinkId="other").is_new
    assert not commit(tmp_path, [rows(3, 6)], 0, sinkId="other").is_new
    assert not commit(tmp_path, [rows(3)], 1).is_new
    assert stored_numbers(tmp_path) == list(range(9))


def test_a_stream_that_begins_again_under_a_used_name_is_refused(tmp_path):
    for number in range(3):
        commit(tmp_path, [rows(3, 3 * number)], number + 4)
    for number in (0, 3, 4, 5):
        with pytest.raises(ConfigError, match=f"of sinkId sink up to 6, and batch {number} comes"):
            commit(tmp_path, [rows(3, 100)], number)
    with pytest.raises(ConfigError, match="give it a new sinkId"):
        commit(tmp_path, [[]], 0)
    assert not commit(tmp_path, [rows(3, 100)], 6).is_new
    assert commit(tmp_path, [rows(3, 9)], 7).is_new
    assert commit(tmp_path, [rows(3, 12)], 0, sinkId="new").is_new
    assert stored_numbers(tmp_path) == list(range(15))
    check_whole(tmp_path)


def test_a_write_may_repeat_any_batch_that_it_numbered(tmp_path):
    def write(number):
        named = {"sinkId": "nightly", "batchId": str(number)}
        return commit(tmp_path, [rows(2)], number, streaming=False, **named)

    assert all(write(number).is_new for number in (20240601, 20240603, 20240602))
    assert not any(write(number).is_new for number in (20240601, 20240602, 20240603))
    assert stored_numbers(tmp_path) == [0, 1] * 3


def test_a_write_without_a_sink_is_appended_each_time(tmp_path):
    for _ in range(2):
        commit(tmp_path, [rows(3)], None, streaming=False)
    assert stored_numbers(tmp_path) == [0, 1, 2, 0, 1, 2]
    check_whole(tmp_path)


def test_an_empty_batch_is_done_as_well(tmp_path):
    assert commit(tmp_path, [[], []], 0).messages == 0
    assert not commit(tmp_path, [rows(3)], 0).is_new
    assert stored_numbers(tmp_path) == []
    assert {path.name for path in (tmp_path / "sink").rglob("*")} == {
        "staging",
        "done",
        "sink.json",
    }


def test_marks_of_a_stream_stay_one_run_however_long_it_goes_on():
    marks = DoneMarks("s")
    for number in (0, 1, 2, 7, 3, 9, 8):
        marks = marks.marking(number)
    assert marks.ranges == ((0, 3), (7, 9))
    assert 3 in marks
    assert 5 not in marks


# --- the store ----------------------------------------------------------------------------------


def test_messages_that_were_there_stay_and_queues_go_on(tmp_path):
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        for number in range(40):
            store.put(Message(topic="Topic1", body=b"%06d" % (500 + number)), 1)
    commit(tmp_path, [rows(40)])
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        store.put(Message(topic="Topic1", body=b"000999"), 1)
    assert stored_numbers(tmp_path) == [*range(500, 540), *range(40), 999]
    check_whole(tmp_path)


def test_store_times_never_go_back_when_the_clock_does(tmp_path):
    clock = Clock()
    commit(tmp_path, [rows(12)], 0, clock=clock)
    clock.now_ms -= 60_000
    commit(tmp_path, [rows(12, 12)], 1, clock=clock)
    with MessageStore.open(tmp_path, CONFIG, read_only=True) as store:
        page = store.get("Topic0", 0, 0)
        times = [message.store_timestamp_ms for message in page.messages]
    assert times == [clock.now_ms + 60_000] * len(times)
    assert len(times) > 1


@pytest.mark.parametrize("size", ["60", "16376", "1000000"])
def test_chunks_of_any_size_make_the_same_log(tmp_path, size):
    clock = Clock()
    for name, chunk_bytes in (("a", "3000"), ("b", size)):
        tasks = [rows(150), rows(70, 150)]
        commit(tmp_path / name, tasks, clock=clock, chunkBytes=chunk_bytes)
    for path in sorted((tmp_path / "a" / "commitlog").iterdir()):
        assert (tmp_path / "b" / "commitlog" / path.name).read_bytes() == path.read_bytes()


HOLDER = """
import sys, time
from rocketstore import MessageStore
with MessageStore.open(sys.argv[1], threads=False):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_store_that_is_open_elsewhere_is_refused_with_the_process_before_any_work(tmp_path):
    commit(tmp_path, [rows(3)], 0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        for work in (
            lambda: check_target(sink_options(tmp_path)),
            lambda: commit(tmp_path, [rows(3)], 1),
        ):
            with pytest.raises(StoreLockedError, match=f"process {holder.pid} holds") as caught:
                work()
            assert caught.value.owner_pid == holder.pid
        holder.stdin.close()
        holder.wait(60)
    assert commit(tmp_path, [rows(3, 3)], 1).is_new
    assert stored_numbers(tmp_path) == list(range(6))
    check_whole(tmp_path)


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("draft")
    with pytest.raises(NotAStoreError, match="is no store and not empty"):
        check_target(sink_options(tmp_path))
    with pytest.raises(NotAStoreError, match="is no directory"):
        check_target(sink_options(tmp_path / "thesis.txt"))
    check_target(sink_options(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


class FullDisk(Disk):
    """Has room for so many CommitLog files."""

    def __init__(self, files):
        self.left = files

    def allocate(self, descriptor, path, size):
        if size == CONFIG.mapped_file_size_commit_log:
            self.left -= 1
            if self.left < 0:
                raise StoreFullError(f"no room for {path}")
        return super().allocate(descriptor, path, size)


def test_a_disk_that_is_full_in_the_middle_leaves_a_batch_that_the_next_commit_finishes(tmp_path):
    commit(tmp_path, [rows(10, 900)], 0)
    with pytest.raises(StoreFullError):
        commit(tmp_path, [rows(200)], 1, disk=FullDisk(1))
    options = sink_options(tmp_path)
    # What Spark does then; it may not take away what the next commit needs.
    sweep_job(options, new_owner(options))
    assert read_intent(tmp_path).batch_id == 1
    commit(tmp_path, [rows(1, 300)], 2)
    assert stored_numbers(tmp_path) == [*range(900, 910), *range(200), 300]
    check_whole(tmp_path)


# --- staged files and marks that were changed ---------------------------------------------------


def staged(root):
    options = sink_options(root)
    owner = new_owner(options)
    files = stage(options, owner, [rows(40)])
    return options, owner, files, staging_root(root) / owner.job / files[0].name


def test_a_staged_file_that_was_changed_or_cut_appends_nothing(tmp_path):
    commit(tmp_path, [rows(3, 900)], 0)
    for number, change in enumerate(
        (
            lambda data: data[:-1],
            lambda data: data[:20],
            lambda data: b"",
            lambda data: b"X" + data[1:],
            lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
            lambda data: data[:9] + b"\xff" + data[10:],
        )
    ):
        options, owner, files, path = staged(tmp_path)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(StoreDamagedError, match="nothing of it was appended"):
            commit_batch(options, owner, files, 1)
        assert stored_numbers(tmp_path) == [900, 901, 902], number
        assert read_intent(tmp_path) is None


def test_every_bit_of_a_staged_file_is_vouched_for(tmp_path):
    _, _, files, path = staged(tmp_path)
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(StoreDamagedError):
            list(read_chunks(path, files[0].size))


def test_a_done_mark_that_cannot_be_trusted_stops_the_commit(tmp_path):
    commit(tmp_path, [rows(3)], 0)
    path = done_path(tmp_path, "sink")
    for content in (b"", b"{}", path.read_bytes().replace(b'"sink"', b'"sunk"')):
        path.write_bytes(content)
        with pytest.raises(StoreDamagedError, match="cannot be trusted"):
            commit(tmp_path, [rows(3)], 0)
    path.unlink()
    assert stored_numbers(tmp_path) == [0, 1, 2]


def test_an_intent_reads_back_as_it_was_written(tmp_path):
    intent = Intent(
        job="j", sink_id="s", batch_id=4, start=10, length=300, crc=7, messages=2,
        store_timestamp_ms=99, runs=((10, 200), (220, 90)), file_start=0, file_size=1000,
        first_offsets=(("T", 1, 5),), files=(StagedFile(0, "a", 10, 2),), skipped=((0, 1),),
    )  # fmt: skip
    assert Intent.decode(intent.encode(), tmp_path) == intent
    fields = json.loads(intent.encode())
    fields["content"]["length"] = 301
    with pytest.raises(StoreDamagedError, match="checksum"):
        Intent.decode(json.dumps(fields).encode(), tmp_path)


# --- leftovers ----------------------------------------------------------------------------------


def test_files_of_attempts_that_were_not_committed_are_not_used_and_swept(tmp_path):
    options = sink_options(tmp_path)
    owner = new_owner(options)
    stage(options, owner, [rows(40)])
    files = stage(options, owner, [rows(40)])
    commit_batch(options, owner, files, 0)
    assert stored_numbers(tmp_path) == list(range(40))
    check_whole(tmp_path)


def test_a_task_makes_no_directory_where_the_drivers_is_not_to_be_seen(tmp_path):
    options = sink_options(tmp_path / "here")
    owner = new_owner(options)
    stage(options, owner, [rows(3)])
    elsewhere = str(tmp_path / "there" / "store")
    staged = StagingWriter(elsewhere, owner, partition_id=0, chunk_bytes=100)
    with pytest.raises(StoreError, match="the directory is not shared") as caught:
        staged.add(EncodedRow(("Topic0", 0), b"x" * 200))
    assert f"{staging_root(elsewhere) / owner.job} is not there" in str(caught.value)
    staged.discard()
    assert not (tmp_path / "there").exists()


def test_what_a_dead_driver_staged_is_swept_and_what_a_living_one_stages_is_not(tmp_path):
    options = sink_options(tmp_path, streaming=False)
    living = new_owner(options, streaming=False)
    dead = replace(living, job="dead", started=living.started - 1)
    elsewhere = replace(living, job="elsewhere", host="another")
    old = replace(elsewhere, job="old")
    for owner in (living, dead, elsewhere, old):
        stage(options, owner, [rows(3)])
    for path in (staging_root(tmp_path) / "old", *(staging_root(tmp_path) / "old").iterdir()):
        os.utime(path, (0, 0))
    commit(tmp_path, [rows(3)], 0)
    left = {path.name for path in staging_root(tmp_path).iterdir()}
    assert left == {living.job, "elsewhere"}


def test_an_aborted_job_takes_its_files_with_it(tmp_path):
    options = sink_options(tmp_path)
    stage(options, new_owner(options), [rows(3)])
    # A stream's abort comes to a writer that never saw the job.
    sweep_job(options, new_owner(options))
    assert list(tmp_path.iterdir()) == []


def test_a_driver_is_the_process_that_it_was():
    owner = JobOwner.new(None, streaming=False)
    assert owner.is_gone is False
    assert replace(owner, started=owner.started + 1).is_gone is True
    assert replace(owner, host="another").is_gone is None


def test_a_store_that_was_moved_goes_on(tmp_path):
    commit(tmp_path / "here", [rows(3)], 0)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert not commit(tmp_path / "there", [rows(3)], 0).is_new
    assert commit(tmp_path / "there", [rows(3, 3)], 1).is_new
    check_whole(tmp_path / "there")


# --- places that cannot be written --------------------------------------------------------------


def test_a_place_without_permission_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(StoreError, match=f"^{tmp_path} cannot be written: Permission denied"):
        check_target(sink_options(tmp_path / "deep" / "store"))


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EACCES, StoreError, "Permission denied; nothing was appended; let the users"),
        (errno.ENOSPC, StoreFullError, "No space left on device; nothing was appended; make room"),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_what_the_system_refuses_a_task_is_one_sentence(
    tmp_path, monkeypatch, number, kind, message, call
):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    options = sink_options(tmp_path / "store")
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(kind, match=message):
        stage(options, new_owner(options), [rows(30)])
