"""A second thread that walks the log ahead of dispatch: equal results, and nothing left behind."""

import random
import shutil
import threading

import numpy as np
import pytest

from rocketstore.config import RecoveryPolicy
from rocketstore.format.queue_entry import FILLER
from rocketstore.message import Message
from rocketstore.message_store import MessageStore
from rocketstore.scan import kernels
from rocketstore.scan.columns import StopReason, new_columns
from rocketstore.storage.dispatch import dispatcher as dispatching
from rocketstore.storage.queues.consume_queue import ConsumeQueue
from rocketstore.units import MiB
from support.clock import Clock
from support.configured_store import open_small
from support.dispatch_parts import DispatchParts
from support.small_store import CONFIG, LOG_FILE_BYTES, build_store, crashed
from support.store_files import overwrite_file
from support.trees import tree

COUNT = 150
BATCH_RECORDS = 4

pytestmark = pytest.mark.skipif(not kernels.is_compiled(), reason="references hold the lock")


@pytest.fixture
def ahead(monkeypatch):
    """Walk ahead everywhere, in batches of a few records, on any machine."""
    monkeypatch.setattr(dispatching, "can_walk_ahead", lambda: True)
    monkeypatch.setattr(dispatching, "LEAST_AHEAD_BYTES", 1)
    monkeypatch.setattr(dispatching, "AHEAD_RECORDS", BATCH_RECORDS)


def alone(monkeypatch):
    monkeypatch.setattr(dispatching, "can_walk_ahead", lambda: False)


def walkers():
    return [thread for thread in threading.enumerate() if "rocketstore-walk" in thread.name]


# --- equal results --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(RecoveryPolicy))
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("ahead")
def test_a_damaged_store_is_recovered_to_the_same_bytes_with_and_without(
    policy, seed, tmp_path, monkeypatch, clock
):
    original = tmp_path / "original"
    build_store(original, COUNT, clock, body_size=random.Random(seed).choice([40, 200, 700]))
    crashed(original)
    damage(original, random.Random(seed))
    now_ms = clock.now_ms
    recovered = {}
    for walks_ahead in (True, False):
        if not walks_ahead:
            alone(monkeypatch)
        root = tmp_path / "copy"
        shutil.copytree(original, root)
        store = MessageStore.open(root, CONFIG, clock=Clock(now_ms), policy=policy, threads=False)
        store.close()
        recovered[walks_ahead] = (store.recovery, tree(root))
        shutil.rmtree(root)
    assert recovered[True] == recovered[False]
    assert walkers() == []


def damage(root, chosen):
    """Flip, zero or tear some places of the log; sometimes of a queue or the index."""
    files = sorted((root / "commitlog").iterdir())
    for _ in range(chosen.randrange(6)):
        size = chosen.choice([1, 4, 30, 600, LOG_FILE_BYTES // 2])
        content = chosen.choice([bytes(size), chosen.randbytes(size)])
        _overwrite(chosen.choice(files), chosen, content)
    if chosen.random() < 0.5:
        queues = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
        _overwrite(chosen.choice(queues), chosen, bytes(chosen.choice([20, 400])))
    if len(files) > 2 and chosen.random() < 0.2:
        chosen.choice(files[1:-1]).unlink()


def _overwrite(path, chosen, content):
    size = path.stat().st_size
    content = content[:size]
    overwrite_file(path, chosen.randrange(size - len(content) + 1), content)


def refused(_thread):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("has_threads", [True, False])
def test_the_batches_are_the_rows_of_one_walk(tmp_path, monkeypatch, check_crc, has_threads):
    monkeypatch.setattr(dispatching, "AHEAD_RECORDS", BATCH_RECORDS)
    if not has_threads:
        monkeypatch.setattr(threading.Thread, "start", refused)
    parts = DispatchParts(tmp_path)
    placed = parts.append(15)
    file, start = parts.log.files[0], placed[1]
    file.array[placed[13] + 88] ^= 1  # of its body
    wanted = new_columns(100)
    count, walked, reason = kernels.walk(
        file.array, start, file.size, file.base, file.size, check_crc, wanted
    )
    batches = dispatching.walked_ahead(file, start, file.size, check_crc=check_crc)
    got = [(batch.columns.cols.copy(), batch.walked, batch.reason) for batch in batches]
    assert np.array_equal(np.concatenate([rows for rows, _, _ in got]), wanted[:count])
    ends = (placed[13], StopReason.BAD_CRC) if check_crc else (parts.end, StopReason.UNWRITTEN)
    assert got[-1][1:] == (walked, reason) == ends
    assert {reason for _, _, reason in got[:-1]} == {StopReason.END}


@pytest.mark.usefixtures("ahead")
def test_a_stretch_ends_where_it_was_asked_to(tmp_path):
    parts = DispatchParts(tmp_path)
    placed = parts.append(10)
    parts.dispatcher.dispatch_range(0, placed[7])
    assert parts.dispatcher.dispatched_offset == placed[7]
    assert [entry[0] for entry in parts.entries()] == placed[:7]


@pytest.mark.usefixtures("ahead")
def test_no_thread_is_started_again_right_after_a_break(tmp_path, monkeypatch):
    parts = DispatchParts(tmp_path, log_file_bytes=65_536)
    placed = parts.append(300)
    for broken in placed[20:260:4]:
        parts.log.files[0].array[broken + 40] ^= 0xFF
        parts.log.files[0].array[broken + 4] ^= 0xFF
    monkeypatch.setattr(dispatching, "LEAST_AHEAD_BYTES", placed[8])
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread))
    )
    parts.dispatcher.dispatch_range(0, parts.end, check_crc=True)
    assert len(parts.dispatcher.stepped_over) == 60
    assert len([entry for entry in parts.entries() if entry != tuple(FILLER)]) == 240
    assert started == ["rocketstore-walk"] * 2


# --- nothing left behind --------------------------------------------------------------------------


@pytest.mark.usefixtures("ahead")
def test_an_error_of_the_walk_ends_the_pass_and_the_thread(tmp_path, monkeypatch):
    parts = DispatchParts(tmp_path)
    placed = parts.append(20)
    walk = kernels.walk
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError("no room")
        return walk(*arguments)

    monkeypatch.setattr(kernels, "walk", failing)
    with pytest.raises(MemoryError, match="no room"):
        parts.dispatcher.dispatch_range(0, parts.end)
    assert walkers() == []
    assert parts.dispatcher.dispatched_offset == placed[2 * BATCH_RECORDS]
    parts.dispatcher.dispatch_range(parts.dispatcher.dispatched_offset, parts.end)
    assert [entry[0] for entry in parts.entries()] == placed


@pytest.mark.usefixtures("ahead")
def test_an_error_of_dispatch_ends_the_thread_and_is_tried_again_from_its_record(
    tmp_path, monkeypatch
):
    parts = DispatchParts(tmp_path)
    placed = parts.append(20)
    map_for_write = ConsumeQueue.map_for_write

    def failing(queue, position):
        if position >= 100:
            raise OSError("no room")
        return map_for_write(queue, position)

    monkeypatch.setattr(ConsumeQueue, "map_for_write", failing)
    with pytest.raises(OSError, match="no room"):
        parts.dispatcher.dispatch_range(0, parts.end)
    assert walkers() == []
    assert parts.dispatcher.dispatched_offset == placed[5]
    monkeypatch.setattr(ConsumeQueue, "map_for_write", map_for_write)
    parts.dispatcher.dispatch_range(placed[5], parts.end)
    assert [entry[0] for entry in parts.entries()] == placed


@pytest.mark.usefixtures("ahead")
def test_the_walk_holds_a_fixed_number_of_batches(tmp_path, monkeypatch):
    made = []

    def counted(records):
        made.append(records)
        return new_columns(records)

    parts = DispatchParts(tmp_path, log_file_bytes=65_536)
    parts.append(200)
    monkeypatch.setattr(dispatching, "new_columns", counted)
    parts.dispatcher.dispatch_range(0, parts.end)
    assert len(parts.entries()) == 200
    assert made == [BATCH_RECORDS] * dispatching.AHEAD_BATCHES


@pytest.mark.usefixtures("ahead")
def test_a_process_that_may_start_no_thread_walks_where_it_dispatches(tmp_path, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", refused)
    parts = DispatchParts(tmp_path)
    placed = parts.append(30)
    parts.dispatcher.dispatch_range(0, parts.end)
    assert [entry[0] for entry in parts.entries()] == placed


# --- where it does not pay ------------------------------------------------------------------------


def test_one_core_gets_no_second_thread(monkeypatch):
    monkeypatch.setattr(dispatching.os, "sched_getaffinity", lambda _pid: {0})
    assert not dispatching.can_walk_ahead()
    monkeypatch.setattr(dispatching.os, "sched_getaffinity", lambda _pid: {0, 1})
    assert dispatching.can_walk_ahead()


def test_the_tail_of_a_clean_stop_is_walked_where_it_is_dispatched(tmp_path, monkeypatch):
    config = {"mapped_file_size_commit_log": 48 * MiB}
    with open_small(tmp_path, **config) as store:
        for _ in range(40):
            store.put(Message(topic="t", body=bytes(1_000_000)))
    monkeypatch.setattr(dispatching, "can_walk_ahead", lambda: True)
    monkeypatch.setattr(
        dispatching, "walked_ahead", lambda *_, **__: pytest.fail("a thread was asked for")
    )
    with open_small(tmp_path, **config) as store:
        report = store.recovery
        assert report.end - report.start > 7 * MiB


@pytest.mark.usefixtures("ahead")
def test_a_running_dispatcher_and_one_with_listeners_walk_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(
        dispatching, "walked_ahead", lambda *_, **__: pytest.fail("a thread was asked for")
    )
    parts = DispatchParts(tmp_path)
    parts.append(12)
    parts.run()
    seen = []
    parts.dispatcher.board.add_listener(seen.append)
    parts.dispatcher.dispatch_range(0, parts.end)
    assert len(seen) == 12
