"""Commits of the sink: once per batch, in order, refused in time, swept behind."""

import errno
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from rocketstore import Message, MessageStore
from rocketstore.errors import (
    ConfigError,
    NotAStoreError,
    RefusedMessageError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.pipeline.jobs.sweeping import OWNER
from rocketstore.pipeline.sink import sink_commit
from rocketstore.pipeline.sink.row_encoder import RowEncoder
from rocketstore.pipeline.sink.sink_commit import (
    Intent,
    check_staged,
    check_target,
    commit_batch,
    is_among,
    ledger_path,
    read_intent,
    sealed,
    sweep_job,
    with_numbers,
)
from rocketstore.pipeline.sink.sink_writer import StagedFile, new_job, stage_chunks, staging_root
from support.batch_stores import BATCHES, PLAIN, mark
from support.clock import Clock
from support.faulty_disk import FaultyDisk, nth
from support.patience import PATIENCE_S
from support.sink_parts import (
    CONFIG,
    SCHEMA,
    check_whole,
    commit,
    numbers_of,
    rows,
    sink_options,
    stage,
    staged,
    stored_numbers,
)
from support.small_store import LOG_FILE_BYTES

# --- once ---------------------------------------------------------------------------------------


def test_a_new_directory_becomes_a_store_with_the_tasks_rows_in_order(tmp_path):
    root = tmp_path / "deep" / "store"
    tasks = [rows(30), rows(20, 30), [], rows(1, 50)]
    assert commit(root, tasks) == 51
    assert stored_numbers(root) == numbers_of(*tasks)
    check_whole(root)


def test_a_batch_that_is_committed_again_changes_no_byte(tmp_path):
    commit(tmp_path, [rows(30)], 3)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    assert commit(tmp_path, [rows(30)], 3) is None
    assert commit(tmp_path, [rows(5, 70)], 3) is None
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before
    check_whole(tmp_path)


def test_batches_are_known_by_sink_and_number(tmp_path):
    assert commit(tmp_path, [rows(3)], 0) == 3
    assert commit(tmp_path, [rows(3, 3)], 1) == 3
    assert commit(tmp_path, [rows(3, 6)], 0, sinkId="other") == 3
    assert commit(tmp_path, [rows(3, 6)], 0, sinkId="other") is None
    assert commit(tmp_path, [rows(3)], 1) is None
    assert stored_numbers(tmp_path) == list(range(9))


def test_a_stream_that_begins_again_under_a_used_name_is_refused(tmp_path):
    for number in range(3):
        commit(tmp_path, [rows(3, 3 * number)], number + 4)
    for number in (0, 3, 4, 5):
        message = f"sink.json has batches of sinkId sink up to 6, and batch {number} comes again"
        with pytest.raises(ConfigError, match=message):
            commit(tmp_path, [rows(3, 100)], number)
    with pytest.raises(ConfigError, match="give it a new sinkId"):
        commit(tmp_path, [[]], 0)
    assert commit(tmp_path, [rows(3, 100)], 6) is None
    assert commit(tmp_path, [rows(3, 9)], 7) == 3
    assert commit(tmp_path, [rows(3, 12)], 0, sinkId="new") == 3
    assert stored_numbers(tmp_path) == list(range(15))
    check_whole(tmp_path)


def test_a_write_may_repeat_any_batch_that_it_numbered(tmp_path):
    def write(number):
        named = {"sinkId": "nightly", "batchId": str(number)}
        return commit(tmp_path, [rows(2)], number, streaming=False, **named)

    assert all(write(number) == 2 for number in (20240601, 20240603, 20240602))
    assert all(write(number) is None for number in (20240601, 20240602, 20240603))
    assert stored_numbers(tmp_path) == [0, 1] * 3


def test_a_write_without_a_sink_is_appended_each_time(tmp_path):
    for _ in range(2):
        commit(tmp_path, [rows(3)], None, streaming=False)
    assert stored_numbers(tmp_path) == [0, 1, 2, 0, 1, 2]
    check_whole(tmp_path)


def test_an_empty_batch_is_done_as_well(tmp_path):
    assert commit(tmp_path, [[], []], 0) == 0
    assert commit(tmp_path, [rows(3)], 0) is None
    assert stored_numbers(tmp_path) == []
    assert {path.name for path in (tmp_path / "sink").rglob("*")} == {
        "staging",
        "done",
        "sink.json",
    }


def test_a_batch_with_a_topic_that_no_commit_can_fill_is_refused_before_its_intent(tmp_path):
    config = msgspec.structs.replace(CONFIG, memory_topic_enable=True)
    with MessageStore.open(tmp_path, config, threads=False) as store:
        store.memory_topics.create("Topic1")
    with pytest.raises(RefusedMessageError, match=r"Topic1 is a memory .*nothing was appended"):
        commit(tmp_path, [rows(1), rows(10, 1)])
    assert read_intent(tmp_path) is None
    assert commit(tmp_path, [rows(1), rows(1, 2)], 1) == 2  # Topic0, which goes on
    assert stored_numbers(tmp_path) == [0, 2]


@pytest.mark.parametrize(
    ("topic", "properties", "why"),
    [
        (PLAIN, {}, f"holds a batch, which {PLAIN} does not take"),
        (BATCHES, {"INNER_NUM": "7"}, "property INNER_NUM is not the 1 messages"),
        (BATCHES, {}, "batch of 1 bytes"),
    ],
)
def test_a_batch_that_its_topic_does_not_take_is_refused_before_the_intent(
    tmp_path, topic, properties, why
):
    # Else each later write to the store would come to it, and fail.
    mark(tmp_path, BATCHES)
    body = encode_client_batch([(0, b"x", b"")]) if properties else b"x"
    batch = {"topic": topic, "body": body, "properties": [*properties.items()], "sysFlag": 0x80}
    plain = {"topic": PLAIN, "body": b"000001"}
    columns = [("sysFlag", pa.int32()), ("properties", pa.map_(pa.string(), pa.string()))]
    options, schema = sink_options(tmp_path, streaming=False), pa.schema([*SCHEMA, *columns])
    job = new_job(options)
    chunks = RowEncoder(options, LOG_FILE_BYTES, 0).encode(
        pa.RecordBatch.from_pylist([plain, batch], schema)
    )
    file = stage_chunks(options.root, job, 0, chunks)
    with pytest.raises(RefusedMessageError, match=f"{why}.*nothing was appended"):
        commit_batch(options, job, [file], None)
    assert read_intent(tmp_path) is None
    assert commit(tmp_path, [rows(2)]) == 2


def test_the_ledger_of_a_stream_stays_one_run_however_long_it_goes_on():
    ledger = ()
    for number in (0, 1, 2, 7, 3, 9, 8):
        ledger = with_numbers(ledger, [number])
    assert ledger == ((0, 4), (7, 10))
    assert [is_among(ledger, number) for number in (0, 3, 4, 5, 7, 9, 10)] == [1, 1, 0, 0, 1, 1, 0]


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
        holder.wait(PATIENCE_S)
    assert commit(tmp_path, [rows(3, 3)], 1) == 3
    assert stored_numbers(tmp_path) == list(range(6))
    check_whole(tmp_path)


def test_a_store_in_use_is_waited_for_and_the_holder_named_when_the_time_is_over(
    tmp_path, monkeypatch
):
    commit(tmp_path, [rows(3)], 0)
    options, job, files = staged(tmp_path, [rows(3, 3)], lockTimeout="2s")
    clock = [0.0]
    monkeypatch.setattr(sink_commit.time, "monotonic", lambda: clock[0])

    def pause(seconds):
        clock[0] += seconds

    monkeypatch.setattr(sink_commit.time, "sleep", pause)
    with MessageStore.open(tmp_path, CONFIG, threads=False):
        for work in (lambda: check_target(options), lambda: commit_batch(options, job, files, 1)):
            clock[0] = 0.0
            with pytest.raises(StoreLockedError, match=r"this process holds .*waited 2 s"):
                work()
            assert 2 <= clock[0] < 2.2

    holder = MessageStore.open(tmp_path, CONFIG, threads=False)
    monkeypatch.setattr(sink_commit.time, "sleep", lambda _: holder.close())
    assert commit_batch(options, job, files, 1) == 3
    assert stored_numbers(tmp_path) == list(range(6))


def test_two_sinks_into_one_store_at_once_both_finish(tmp_path):
    def write(name, first):
        for number in range(5):
            tasks = [rows(20, first + 20 * number)]
            outcomes.append(commit(tmp_path, tasks, number, sinkId=name, lockTimeout="60s"))

    outcomes = []
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ("left", "right"), (0, 100)))
    assert outcomes == [20] * 10
    assert sorted(stored_numbers(tmp_path)) == list(range(200))
    check_whole(tmp_path)


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("draft")
    with pytest.raises(NotAStoreError, match="is not a store and not empty"):
        check_target(sink_options(tmp_path))
    with pytest.raises(NotAStoreError, match="is not a store and not empty"):
        check_target(sink_options(tmp_path / "thesis.txt"))
    check_target(sink_options(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def full_disk(files):
    """Return a disk that has room for so many CommitLog files."""
    return FaultyDisk(nth("allocate", files, errno.ENOSPC, below="commitlog"))


def test_a_disk_that_is_full_in_the_middle_leaves_a_batch_that_the_next_commit_finishes(tmp_path):
    commit(tmp_path, [rows(10, 900)], 0)
    with pytest.raises(StoreFullError):
        commit(tmp_path, [rows(200)], 1, disk=full_disk(1))
    options = sink_options(tmp_path)
    # What Spark does then; it may not take away what the next commit needs.
    sweep_job(options, new_job(options))
    assert read_intent(tmp_path).batch_id == 1
    commit(tmp_path, [rows(1, 300)], 2)
    assert stored_numbers(tmp_path) == [*range(900, 910), *range(200), 300]
    check_whole(tmp_path)


def test_a_write_of_which_nothing_got_in_is_forgotten_and_may_be_repeated(tmp_path):
    with pytest.raises(StoreFullError, match="after 0 messages the store took no more"):
        commit(tmp_path, [rows(20)], None, streaming=False, disk=full_disk(0))
    assert str(read_intent(tmp_path)).startswith("write write.")
    assert commit(tmp_path, [rows(20)], None, streaming=False) == 20
    assert stored_numbers(tmp_path) == list(range(20))


# --- staged files and marks that were changed ---------------------------------------------------


def staged_file(root):
    options, job, files = staged(root, [rows(40)])
    return options, job, files, staging_root(root) / job / files[0].name


def test_a_staged_file_that_was_cut_or_is_missing_is_named_and_nothing_is_appended(tmp_path):
    commit(tmp_path, [rows(3, 900)], 0)
    for change in (
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.unlink(),
    ):
        options, job, files, path = staged_file(tmp_path)
        change(path)
        with pytest.raises(StoreDamagedError, match=f"staged file {path}") as caught:
            commit_batch(options, job, files, 1)
        assert "run the write again" in str(caught.value)
        assert read_intent(tmp_path) is None
        assert stored_numbers(tmp_path) == [900, 901, 902]


def test_every_bit_of_a_staged_file_is_vouched_for_before_anything_is_appended(tmp_path):
    commit(tmp_path, [rows(3, 900)], 0)
    options, job, files, path = staged_file(tmp_path)
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(StoreDamagedError, match="was changed: checksum"):
            check_staged(path.parent, files)
    with pytest.raises(StoreDamagedError, match="was changed: checksum"):
        commit_batch(options, job, files, 1)
    assert read_intent(tmp_path) is None
    path.write_bytes(data)
    assert commit_batch(options, job, files, 1) == 40
    assert stored_numbers(tmp_path) == [900, 901, 902, *range(40)]
    check_whole(tmp_path)


def test_a_done_mark_that_cannot_be_trusted_stops_the_commit(tmp_path):
    commit(tmp_path, [rows(3)], 0)
    path = ledger_path(tmp_path, "sink")
    for content in (b"", b"{}", path.read_bytes().replace(b"[0,1]", b"[0,2]")):
        path.write_bytes(content)
        with pytest.raises(StoreDamagedError, match="cannot be trusted"):
            commit(tmp_path, [rows(3)], 0)
    path.unlink()
    assert stored_numbers(tmp_path) == [0, 1, 2]


def test_an_intent_reads_back_as_it_was_written(tmp_path):
    intent = Intent(
        job="j", sink_id="s", batch_id=4, start=10, store_timestamp_ms=99,
        files=(StagedFile("a", 17, 3),), present=((0, 1), (5, 9)),
    )  # fmt: skip
    path = tmp_path / "sink" / "intent.json"
    path.parent.mkdir()
    path.write_bytes(sealed(intent))
    assert read_intent(tmp_path) == intent
    for old, new, what in (
        (b'"start":10', b'"start":11', "checksum"),
        (b"}", b"", "expected a checksum"),
        (b"}", b',"more":1}', "checksum"),
    ):
        path.write_bytes(sealed(intent).replace(old, new))
        with pytest.raises(StoreDamagedError, match=f"intent.json cannot be trusted: .*{what}"):
            read_intent(tmp_path)


# --- leftovers ----------------------------------------------------------------------------------


def test_files_of_attempts_that_were_not_committed_are_not_used_and_swept(tmp_path):
    options, job, _ = staged(tmp_path, [rows(40)])
    files = stage(options, job, [rows(40)])
    commit_batch(options, job, files, 0)
    assert stored_numbers(tmp_path) == list(range(40))
    check_whole(tmp_path)


def test_a_task_makes_no_directory_where_the_drivers_is_not_to_be_seen(tmp_path):
    options = sink_options(tmp_path / "here")
    job = new_job(options)
    elsewhere = tmp_path / "there" / "store"
    chunk = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with pytest.raises(StoreError, match="the directory is not shared") as caught:
        stage_chunks(elsewhere, job, 0, iter([chunk]))
    assert f"{staging_root(elsewhere) / job} is not there" in str(caught.value)
    assert not (tmp_path / "there").exists()


def test_an_attempt_that_fails_leaves_no_file(tmp_path):
    options = sink_options(tmp_path)
    job = new_job(options)
    with pytest.raises(RefusedMessageError):
        stage(options, job, [[*rows(100), {"topic": "no topic", "body": b""}]])
    assert [one.name for one in (staging_root(tmp_path) / job).iterdir()] == [OWNER]


def made_long_ago(root, job):
    for path in (*(staging_root(root) / job).iterdir(), staging_root(root) / job):
        os.utime(path, (1, 1))
    return job


def test_a_commit_sweeps_what_its_own_sink_left_and_nothing_of_another_however_old(tmp_path):
    numbered = {"streaming": False, "sinkId": "sink"}
    stream, longer = sink_options(tmp_path), sink_options(tmp_path, sinkId="sink.2")
    write = sink_options(tmp_path, streaming=False)
    seven, eight = (sink_options(tmp_path, batchId=number, **numbered) for number in "78")
    jobs = [new_job(options) for options in (stream, longer, write, seven, eight)]
    for job in jobs:
        stage(stream, job, [rows(3)])
        made_long_ago(tmp_path, job)

    def left():
        return {jobs.index(path.name) for path in staging_root(tmp_path).iterdir()}

    commit(tmp_path, [rows(3)], 0)
    assert left() == {1, 2, 3, 4}
    commit(tmp_path, [rows(3)], None, streaming=False)
    assert left() == {1, 2, 3, 4}
    commit(tmp_path, [rows(3)], 7, batchId="7", **numbered)
    assert left() == {1, 2, 4}
    sweep_job(write, jobs[2])
    sweep_job(longer, new_job(longer))
    assert left() == {4}


def test_a_sink_that_staged_long_ago_commits_whatever_others_commit_and_abort_meanwhile(tmp_path):
    options, job, files = staged(tmp_path, [rows(40)], streaming=False)
    made_long_ago(tmp_path, job)
    other = sink_options(tmp_path, streaming=False)
    sweep_job(other, new_job(other))
    commit(tmp_path, [rows(3, 40)], 0)
    commit(tmp_path, [rows(3, 43)], None, streaming=False)
    assert commit_batch(options, job, files, None) == 40
    assert sorted(stored_numbers(tmp_path)) == list(range(46))
    check_whole(tmp_path)


def test_what_a_settled_commit_staged_is_deleted_by_whichever_process_settles_it(tmp_path):
    with pytest.raises(StoreFullError):
        commit(tmp_path, [rows(200)], None, streaming=False, disk=full_disk(1))
    check_target(sink_options(tmp_path))
    assert stored_numbers(tmp_path) == list(range(200))
    check_whole(tmp_path)


def test_an_aborted_job_takes_its_files_with_it(tmp_path):
    options, _, _ = staged(tmp_path, [rows(3)])
    # A stream's abort comes to a writer that never saw the job.
    sweep_job(options, new_job(options))
    assert list(staging_root(tmp_path).iterdir()) == []


def test_a_store_that_was_moved_goes_on(tmp_path):
    commit(tmp_path / "here", [rows(3)], 0)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert commit(tmp_path / "there", [rows(3)], 0) is None
    assert commit(tmp_path / "there", [rows(3, 3)], 1) == 3
    check_whole(tmp_path / "there")


# --- places that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EACCES, StoreError, "Permission denied; nothing was appended; Spark's driver"),
        (errno.EDQUOT, StoreFullError, "Disk quota exceeded; nothing was appended; make room"),
        (errno.ENOSPC, StoreFullError, "No space left on device; nothing was appended; make room"),
    ],
)
@pytest.mark.parametrize("call", [(os, "mkdir"), (Path, "open"), (os, "fsync")])
def test_what_the_system_refuses_driver_and_task_is_one_sentence(
    tmp_path, monkeypatch, number, kind, message, call
):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    options = sink_options(tmp_path / "store")
    monkeypatch.setattr(*call, refuse)
    with pytest.raises(kind, match=message):
        stage(options, new_job(options), [rows(30)])


def test_what_the_system_refuses_a_commit_names_the_file(tmp_path, monkeypatch):
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    commit(tmp_path / "store", [rows(3)], 0)
    monkeypatch.setattr(sink_commit, "replace_whole", refuse)
    with pytest.raises(StoreError, match=r"to the store \(.*intent.json\): Permission denied; let"):
        commit(tmp_path / "store", [rows(3, 3)], 1)
