"""The compiled append and the plain one: the same bytes, numbers and refusals; and no crash."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.errors import RefusedMessageError, StoreFullError
from rocketstore.format.host import encode_host
from rocketstore.format.record import decode_record
from rocketstore.scan import kernels
from rocketstore.storage.clock import system_clock_ms
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.preallocate import Preallocator
from rocketstore.storage.log import append_state
from rocketstore.storage.log.append_state import PlainAppendState, PlainQueueCell
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.units import QueueKey
from support.failing_disk import FailingDisk
from support.log_parts import SettableClock

pytestmark = pytest.mark.skipif(
    not append_state.IS_COMPILED,
    reason="the compiled append is optional: switched off, or built without a C compiler",
)

V4_HOST, V6_HOST = encode_host("10.0.0.1:1234"), encode_host("[2001:db8::1]:1234")
FILE_BYTES = 4096
QUEUES = [QueueKey("orders", 0), QueueKey("orders", 2**31 - 1), QueueKey("p" * 127, 3)]


def log_in(directory: Path, clock=None, *, disk=None, store_host: bytes = V4_HOST) -> CommitLog:
    disk = FailingDisk() if disk is None else disk
    files = MappedFileQueue(directory, FILE_BYTES, disk=disk)
    return CommitLog(
        files,
        preallocator=Preallocator(files.directory_of, FILE_BYTES, disk=disk),
        clock=clock or SettableClock(),
        store_host=store_host,
    )


INT32 = st.integers(-(2**31), 2**31 - 1)
ARGUMENTS = st.tuples(
    st.sampled_from(QUEUES),
    st.binary(max_size=300),
    st.binary(max_size=300),
    INT32 | st.sampled_from([2**31, -(2**31) - 1, 2**70, "x", None, 1.5, True]),
    st.sampled_from([0, 1, 2, 0x700, 4, 8, 12, -16, 2**31]),
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63, "x"]),
    st.sampled_from([V4_HOST, V6_HOST]),
    INT32 | st.just(2**31),
    st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63, None]),
)


def outcome(append, log: CommitLog, arguments) -> object:
    key, *fields = arguments
    if fields[5] == V6_HOST and isinstance(fields[3], int):
        fields[3] |= 0x10
    try:
        return append(log.cell(key), *fields)
    except RefusedMessageError as error:
        return type(error)


def picture(log: CommitLog) -> object:
    return (
        [file.read_at(0, file.size) for file in log.files.files],
        [file.write_position for file in log.files.files],
        (log.max_offset, log.last_store_timestamp_ms, log.clock_steps_back, log.locked_since_ms),
        {key: (cell.next_offset, cell.stored_bytes) for key, cell in log.cells.items()},
    )


@settings(max_examples=60)
@given(
    st.lists(st.tuples(ARGUMENTS, st.integers(-3, 3)), max_size=30),
    st.sampled_from([V4_HOST, V6_HOST]),
)
def test_both_leave_the_same_bytes_numbers_and_refusals(tmp_path_factory, puts, store_host):
    results = []
    for name in ("append", "append_plainly"):
        clock = SettableClock()
        log = log_in(tmp_path_factory.mktemp("log"), clock, store_host=store_host)
        outcomes = []
        for arguments, step in puts:
            clock.now_ms += step
            if store_host == V6_HOST:
                arguments = (*arguments[:4], arguments[4] | 0x20, *arguments[5:])  # noqa: PLW2901
            outcomes.append(outcome(getattr(log, name), log, arguments))
        results.append((outcomes, picture(log)))
    assert results[0] == results[1]


def test_the_compiled_way_is_taken_and_falls_back_when_it_must(tmp_path):
    log = log_in(tmp_path)
    plainly = []
    original = CommitLog.append_plainly

    class Counting(CommitLog):
        def append_plainly(self, *arguments):
            plainly.append(arguments)
            return original(self, *arguments)

    log.__class__ = Counting
    cell = log.cell(QUEUES[0])
    for _ in range(60):
        log.append(cell, b"x" * 100, b"", 0, 0, None, V4_HOST, 0, 0)
    # Once for each file, which only the plain way can make.
    assert len(plainly) == len(log.files.files) == 3
    log.append(cell, bytearray(b"x"), b"", 0, 0, None, V4_HOST, 0, 0)
    assert len(plainly) == 4


def test_an_empty_body_has_the_checksum_0(tmp_path):
    log = log_in(tmp_path)
    cell = log.cell(QUEUES[0])
    for _ in range(2):
        offset, *_ = log.append(cell, b"", b"", 0, 0, None, V4_HOST, 0, 0)
    record = decode_record(log.files.files[0].mapping, offset, base=0)
    assert record.body_crc == 0


def test_the_system_clock_is_read_without_python(tmp_path):
    log = log_in(tmp_path, system_clock_ms)
    cell = log.cell(QUEUES[0])
    before = system_clock_ms()
    times = [log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)[3] for _ in range(10)]
    assert before <= times[0] <= times[-1] <= system_clock_ms()


def test_errors_of_clock_and_checksum_come_through_and_store_nothing(tmp_path):
    def broken() -> int:
        raise OSError("no time")

    log = log_in(tmp_path)
    cell = log.cell(QUEUES[0])
    log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    end = log.max_offset
    for odd in (broken, lambda: "late", lambda: None, lambda: 2**63):
        other = log_in(tmp_path / "other", odd)
        with pytest.raises((OSError, TypeError, OverflowError)):
            other.append(other.cell(QUEUES[0]), b"x", b"", 0, 0, None, V4_HOST, 0, 0)
        assert other.max_offset == 0
        assert not other.lock.locked()
    assert log.max_offset == end


def test_while_a_batch_is_under_way_a_put_waits_for_it(tmp_path):
    log = log_in(tmp_path)
    cell = log.cell(QUEUES[0])
    log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    log.lock.acquire()
    log._busy = 1
    done = threading.Event()

    def put() -> None:
        log.append(cell, b"y", b"", 0, 0, None, V4_HOST, 0, 0)
        done.set()

    thread = threading.Thread(target=put)
    thread.start()
    assert not done.wait(0.05)
    log._busy = 0
    log.lock.release()
    thread.join()
    assert cell.next_offset == 2


def test_a_file_that_cannot_be_made_is_the_same_error(tmp_path):
    disk = FailingDisk()
    disk.is_full = True
    log = log_in(tmp_path, disk=disk)
    with pytest.raises(StoreFullError):
        log.append(log.cell(QUEUES[0]), b"x", b"", 0, 0, None, V4_HOST, 0, 0)


def test_odd_calls_are_errors_of_python(tmp_path):
    log = log_in(tmp_path)
    cell = log.cell(QUEUES[0])
    good = (cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    log.append(*good)
    for position in range(len(good)):
        for odd in (None, object(), "text", 5, [], SimpleNamespace(topic=b"", topic_size=0)):
            arguments = [*good[:position], odd, *good[position + 1 :]]
            with contextlib.suppress(TypeError, AttributeError, RefusedMessageError):
                log.append(*arguments)
    for arguments in ((), good[:5], (*good, 1)):
        with pytest.raises(TypeError):
            log.append(*arguments)
    for unfit in (b"not writable", object()):
        with pytest.raises((TypeError, BufferError)):
            log._mapping = unfit
    end = log.max_offset
    for file in log.files.files:
        assert file.write_position <= file.size
    position = 0
    mapping = log.files.files[0].mapping
    while position < end:
        position += decode_record(mapping, position, base=0).size


def test_a_log_without_its_mapping_or_file_is_no_crash(tmp_path):
    log = log_in(tmp_path)
    cell = log.cell(QUEUES[0])
    log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    log._limit = 2**62
    log._position = FILE_BYTES - 10
    with pytest.raises((RefusedMessageError, IndexError)):
        log.append(cell, b"x" * 100, b"", 0, 0, None, V4_HOST, 0, 0)
    log._mapping = None
    assert log._mapping is None
    with pytest.raises((RefusedMessageError, IndexError)):
        log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    bare = append_state.AppendState.__new__(append_state.AppendState)
    with pytest.raises((AttributeError, TypeError)):
        bare.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)


def test_nothing_is_kept_alive_by_a_log_that_is_gone(tmp_path):
    log = log_in(tmp_path)
    cell = log.cell(QUEUES[0])
    for _ in range(3):
        log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    gone = weakref.ref(log.files.files[0])
    counts = sys.getrefcount(V4_HOST), sys.getrefcount(None)
    for _ in range(1000):
        log._limit = 2**40
        log._position = 0
        log.append(cell, b"x", b"", 0, 0, None, V4_HOST, 0, 0)
    assert abs(sys.getrefcount(V4_HOST) - counts[0]) < 10
    del log, cell
    gc.collect()
    assert gone() is None


def test_many_threads_leave_one_unbroken_row(tmp_path):
    log = log_in(tmp_path)
    puts = 400

    def put_many(seed: int) -> None:
        random_source = random.Random(seed)
        cell = log.cell(QueueKey("t", seed))
        for _ in range(puts):
            body = bytes(random_source.randrange(300))
            name = random_source.choice(["append", "append", "append_plainly"])
            getattr(log, name)(cell, body, b"", 0, 0, None, V4_HOST, 0, 0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=put_many, args=(seed,)) for seed in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    counts = dict.fromkeys(range(4), 0)
    for file in log.files.files:
        position = 0
        while position < file.write_position:
            size = int.from_bytes(file.mapping[position : position + 4], "big")
            if file.mapping[position + 4] != 0xCB:
                message = decode_record(file.mapping, position, base=file.base)
                assert message.queue_offset == counts[message.queue_id]
                counts[message.queue_id] += 1
            position += size
    assert counts == dict.fromkeys(range(4), puts)


def test_switched_off_kernels_switch_the_compiled_append_off_too(monkeypatch):
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    assert append_state._chosen() == (PlainQueueCell, PlainAppendState)
