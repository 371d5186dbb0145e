"""Ctrl-C, or any exception out of a signal handler, at every place of what a store does.

Whatever was acknowledged is there, unchanged, no number is given twice, the store goes on (over
several rolls), and it closes. The oracle reads the files without the store's code.
"""

import errno
import functools
import gc
import itertools
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketstore import (
    FlushDiskType,
    Message,
    MessageStore,
    StoreConfig,
    repair_store,
    verify_store,
)
from rocketstore.audit.repair import rebuild_store
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.storage.files import mapped_file
from rocketstore.storage.files.lock import writer_pid
from rocketstore.storage.results import PutMessageStatus, PutResult
from support.failing_disk import QuickDisk
from support.fault_settings import stride
from support.inside import parts_of
from support.interrupts import InterruptAt
from support.patience import PATIENCE_S
from support.reading import all_messages
from support.store_oracle import LogContent, check_queues, read_log, read_queues

pytestmark = [pytest.mark.usefixtures("watchdog")]

LOG_FILE_BYTES = 4096
QUEUE_FILE_BYTES = 800
QUEUES = 3
_PAGE = 32


def small_config(flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> StoreConfig:
    return StoreConfig(
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=50,
        max_index_num=200,
        flush_disk_type=flush,
    )


class Run:
    """Puts into a store, and remembers what it acknowledged."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.acknowledged: dict[int, tuple[int, int, bytes]] = {}
        self._numbers = itertools.count()

    def message(self, size: int) -> tuple[Message, int]:
        number = next(self._numbers)
        body = (b"%06d-" % number) * (size // 7)
        return Message(topic="t", body=body, keys=f"k{number}"), number % QUEUES

    def note(self, result: PutResult, queue_id: int, *bodies: bytes) -> None:
        assert result.status is PutMessageStatus.PUT_OK, result
        for number, (offset, body) in enumerate(zip(result.record_offsets, bodies, strict=True)):
            assert offset not in self.acknowledged, f"offset {offset} was given before"
            self.acknowledged[offset] = (queue_id, result.queue_offset + number, body)

    def put(self, size: int = 70) -> None:
        message, queue_id = self.message(size)
        self.note(self.store.put(message, queue_id), queue_id, message.body)

    def put_large(self) -> None:
        self.put(1400)

    def put_prepared(self) -> None:
        message, queue_id = self.message(1400)
        prepared = self.store.prepare(message)
        self.note(self.store.put_prepared(prepared, None, queue_id), queue_id, message.body)

    def put_odd(self) -> None:
        """One that no compiled put takes."""
        message, queue_id = self.message(1400)
        result = self.store.put(message, queue_id=queue_id)
        self.note(result, queue_id, message.body)

    def put_new_queue(self) -> None:
        message, _ = self.message(1400)
        queue_id = QUEUES + next(self._numbers)
        self.note(self.store.put(message, queue_id), queue_id, message.body)

    def put_batch(self) -> None:
        messages = [self.message(size)[0] for size in (0, 500, 900)]
        result = self.store.put_batch(messages, 1)
        self.note(result, 1, *(message.body for message in messages))

    def put_client_batch(self) -> None:
        bodies = [self.message(size)[0].body for size in (700, 0, 700)]
        batch = encode_client_batch((0, body, b"") for body in bodies)
        # Properties as a mapping are not for the compiled batch.
        result = self.store.put_client_batch("t", 2, batch, properties={"p": "v"})
        self.note(result, 2, *bodies)

    def check_log(self, root: Path) -> LogContent:
        content = read_log(root / "commitlog", LOG_FILE_BYTES)
        assert content.damage == []
        places = [(record.queue, record.queue_offset) for record in content.records]
        assert len(set(places)) == len(places), "a queue offset was given twice"
        found = {
            record.physical_offset: (record.queue.queue_id, record.queue_offset, record.body)
            for record in content.records
        }
        lost = {at: self.acknowledged[at] for at in self.acknowledged if at not in found}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged are not in the log"
        assert {at: found[at] for at in self.acknowledged} == self.acknowledged
        return content

    def check(self, root: Path, config: StoreConfig) -> None:
        """Look at a store that was closed, then open it and read all by queue."""
        self.check_log(root)
        unread = dict(self.acknowledged)
        with MessageStore.open(root, config, disk=QuickDisk(), threads=False) as store:
            self.store = store
            store.wait_dispatched()
            for queue in store.queues():
                for message in all_messages(store, *queue, max_messages=_PAGE):
                    unread.pop(message.physical_offset, None)
            assert not unread, f"not in their queues: {unread}"
            for _ in range(LOG_FILE_BYTES // 200):
                self.put()
        content = self.check_log(root)
        check_queues(content.records, read_queues(root / "consumequeue"), [])


def settle_in(run: Run) -> None:
    """Compile what is compiled at first use, and know the queues."""
    for _ in range(QUEUES):
        run.put()
    for operation in (run.put_batch, run.put_client_batch, run.put_prepared):
        operation()
    run.store.wait_dispatched()


OPERATIONS = [
    Run.put_large, Run.put_prepared, Run.put_odd, Run.put_new_queue, Run.put_batch,
    Run.put_client_batch,
]  # fmt: skip


def make_room(run: Run, *, rolls: bool) -> None:
    """Put until an operation goes into the next file, or fits this one."""
    while True:
        room = LOG_FILE_BYTES - run.store.max_physical_offset % LOG_FILE_BYTES
        if room < 1400 if rolls else room > 2200:
            return
        run.put()


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interrupted_put_is_stored_as_a_whole_or_not_at_all(
    operation, flush, tmp_path, *, rolls
):
    config = small_config(flush)
    interrupt = InterruptAt()
    with MessageStore.open(tmp_path, config, disk=QuickDisk(), threads=False) as store:
        run = Run(store)
        settle_in(run)
        for lines in itertools.count(1):
            make_room(run, rolls=rolls)
            if not interrupt.run(lines, lambda: operation(run)):
                break
            # Of other sizes, so that some go where the interrupted one was to go, and end before.
            run.put(7 * (lines % 11))
    run.check(tmp_path, config)


class FailingMap:
    """Refuses the next so many mappings."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.left = 0
        self._mmap = mmap.mmap

    def __call__(self, *args: Any) -> mmap.mmap:
        if self.left:
            self.left -= 1
            raise self.error
        return self._mmap(*args)


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many"), OSError(errno.ENOMEM, "none"), MemoryError()]
)
def test_a_roll_whose_file_cannot_be_mapped_changes_nothing(
    error, times, flush, tmp_path, monkeypatch
):
    config = small_config(flush)
    mapping = FailingMap(error)
    with MessageStore.open(tmp_path, config, disk=QuickDisk()) as store:
        run = Run(store)
        settle_in(run)
        monkeypatch.setattr(mapped_file.mmap, "mmap", mapping)
        make_room(run, rolls=True)
        end = store.max_physical_offset
        mapping.left = times
        for number in range(times):
            message, queue_id = run.message(1400)
            if isinstance(error, MemoryError):
                with pytest.raises(MemoryError):
                    store.put(message, queue_id)
            else:
                result = store.put(message, queue_id)
                assert result.status is PutMessageStatus.UNKNOWN_ERROR
            assert store.max_physical_offset == end, number
        assert mapping.left == 0
        for _ in range(2 * LOG_FILE_BYTES // 200):
            run.put()
    run.check(tmp_path, config)


def put_and_read(run: Run) -> None:
    """Put into new and old queues, and take the messages out of them."""
    run.put_new_queue()
    run.put()
    run.store.wait_dispatched()
    run.store.get("t", 0, 0)
    run.store.get_raw("t", 1, 0)
    run.store.find("t", "k1")
    run.store.runtime_info()


def put_and_flush(run: Run) -> None:
    run.put()
    run.store.flush()


def find_by_key(run: Run) -> None:
    run.put()
    run.store.wait_dispatched()
    for key in ("k1", "k2", "unknown"):
        run.store.find("t", key)


@pytest.mark.parametrize("operation", [put_and_read, put_and_flush, find_by_key])
def test_an_interrupted_dispatch_get_find_or_flush_goes_on_where_it_was(operation, tmp_path):
    config = small_config()
    interrupt = InterruptAt()
    with MessageStore.open(tmp_path, config, disk=QuickDisk(), threads=False) as store:
        run = Run(store)
        settle_in(run)
        operation(run)
        # What it does grows with the store; the first lines are those of all.
        for lines in range(1, 700):
            if not interrupt.run(lines, lambda: operation(run)):
                break
            if lines % 10 == 0:
                operation(run)
        assert lines > 150
        operation(run)
    run.check(tmp_path, config)


def test_an_interrupted_retention_deletes_files_as_a_whole(tmp_path):
    config = small_config()
    config = msgspec.structs.replace(config, retention=True, delete_commit_log_files_interval=0)
    interrupt, now_ms = InterruptAt(), 1_700_000_000_000
    with MessageStore.open(
        tmp_path, config, disk=QuickDisk(), threads=False, clock=lambda: now_ms
    ) as store:
        run = Run(store)
        settle_in(run)
        retention = parts_of(store).retention
        for lines in itertools.count(1, stride(5)):
            for _ in range(12):  # four files
                run.put_large()
            store.wait_dispatched()
            now_ms += 100 * 3_600_000
            store.delete_expired_files()
            was_interrupted = interrupt.run(lines, retention.run_once)
            for topic, queue_id in store.queues():
                first = store.min_offset(topic, queue_id)
                assert not store.get(topic, queue_id, first, 1).skipped_entries, interrupt.where
            if not was_interrupted:
                break
        assert lines > 300
        retention.run_once()
        first = store.min_physical_offset
        assert first > 0
        left = {at: one for at, one in run.acknowledged.items() if at >= first}
        names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
        assert names[0] == f"{first:020d}", "a file is deleted whole, and in order"
        for at, (_, _, body) in left.items():
            assert store.at_physical_offset(at).body == body
    assert list(verify_store(tmp_path, config, now_ms=now_ms).findings) == []


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_close_ends_what_it_began(times, tmp_path):
    """A second interrupt comes ten lines after the first; after a single one all is done."""
    config = small_config()
    interrupt = InterruptAt()
    for lines in itertools.count(1, stride(17) * times):
        root = tmp_path / str(lines)
        store = MessageStore.open(root, config, disk=QuickDisk(), threads=False)
        run = Run(store)
        for _ in range(QUEUES):
            run.put_large()
        if lines == 1:
            run.put_batch()
        was_interrupted = interrupt.run(lines, store.close, times=times, apart=10)
        if times == 1 and lines > 10:  # before, nothing was begun
            assert writer_pid(root / "lock") is None, interrupt.where
        store.close()
        assert store.is_closed
        run.check(root, config)
        if not was_interrupted:
            break
    assert lines > 50


def opened_beside(store):
    """Return the other open stores, also one that nobody has: no call is safe as it returns."""
    found = [one for one in gc.get_objects() if type(one) is MessageStore and one is not store]
    return [one for one in found if not one.is_closed]


@pytest.mark.parametrize("way", ["open", "open with threads", "repair", "rebuild"])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # said of the lock's file
def test_an_interrupted_opening_or_repair_holds_no_lock(way, tmp_path):
    """Nor a thread; and the next one is not disturbed by what it began."""
    config, root = small_config(), tmp_path / "store"
    store = MessageStore.open(root, config, disk=QuickDisk(), threads=False)
    run = Run(store)
    for _ in range(QUEUES):
        run.put_large()
    store.abandon()
    opened: list[MessageStore] = []

    def operation() -> None:
        if way == "repair":
            repair_store(root, config)
        elif way == "rebuild":
            rebuild_store(root, config, what="index", now_ms=1)
        else:
            opened.append(MessageStore.open(root, config, disk=QuickDisk(), threads=way != "open"))

    interrupt, alive, lines = InterruptAt(), set(threading.enumerate()), 0

    def is_over(lines: int) -> bool:
        was_interrupted = interrupt.run(lines, operation)
        is_over_or_ahead = interrupt.caller == "operation"
        for left in opened_beside(store) if is_over_or_ahead else opened:
            left.close()
        opened.clear()
        assert writer_pid(root / "lock") is None, interrupt.where
        assert alive.issuperset(threading.enumerate()), interrupt.where
        return not was_interrupted

    first = range(1, 250, stride(2))  # the lock is taken among these
    for lines in itertools.chain(first, itertools.count(250, 97)):
        if is_over(lines):
            break
    assert lines > 300
    for late in range(lines - 97, lines, stride(2)):  # and released among these
        is_over(late)
    run.check(root, config)


def test_an_interrupted_close_lets_no_thread_outlive_the_lock(tmp_path):
    config = small_config(FlushDiskType.SYNC_FLUSH)
    interrupt = InterruptAt()
    alive = set(threading.enumerate())
    for lines in itertools.count(1, stride(29)):
        root = tmp_path / str(lines)
        store = MessageStore.open(root, config, disk=QuickDisk())
        run = Run(store)
        for _ in range(QUEUES):
            run.put_large()
        was_interrupted = interrupt.run(lines, store.close, times=2, apart=5)
        if set(threading.enumerate()) - alive:
            assert writer_pid(root / "lock") == os.getpid()
        store.close()
        assert set(threading.enumerate()) <= alive
        assert writer_pid(root / "lock") is None
        run.check(root, config)
        if not was_interrupted:
            break
    assert lines > 100


def test_interrupted_puts_beside_the_threads_of_a_store_leave_them_working(tmp_path):
    for flush in FlushDiskType:
        root, config = tmp_path / flush.name, small_config(flush)
        interrupt = InterruptAt()
        with MessageStore.open(root, config, disk=QuickDisk()) as store:
            run = Run(store)
            settle_in(run)
            for operation in (Run.put_large, Run.put_odd, Run.put_batch):
                for lines in itertools.count(1, 5):
                    if not interrupt.run(lines, functools.partial(operation, run)):
                        break
                    run.put(7 * (lines % 11))
            assert store.wait_dispatched(timeout_s=PATIENCE_S)
        run.check(root, config)


class OutOfTimeError(TimeoutError):
    """What a program's time limit may raise: an `OSError` that is none of the system's."""


class LateDisk(QuickDisk):
    """A time limit ends while it syncs or makes a file."""

    is_late = False

    def fdatasync(self, descriptor: int, path: Path) -> None:
        if self.is_late:
            raise OutOfTimeError

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        if self.is_late:
            raise OutOfTimeError
        return super().allocate(descriptor, path, size)


def test_an_exception_of_a_handler_is_not_taken_for_one_of_the_system(tmp_path):
    config = small_config(FlushDiskType.SYNC_FLUSH)
    disk = LateDisk()
    with MessageStore.open(tmp_path, config, disk=disk, threads=False) as store:
        run = Run(store)
        settle_in(run)
        for rolls in (False, True):
            make_room(run, rolls=rolls)
            disk.is_late = True
            with pytest.raises(OutOfTimeError):
                run.put_large()
            disk.is_late = False
            run.put_large()
    run.check(tmp_path, config)


def test_nor_is_it_at_opening_or_in_a_flush(tmp_path):
    config, disk = small_config(), LateDisk()
    with MessageStore.open(tmp_path, config, disk=disk, threads=False) as store:
        run = Run(store)
        run.put()
        disk.is_late = True
        with pytest.raises(OutOfTimeError):
            store.flush()
        disk.is_late = False
    (tmp_path / "checkpoint").unlink()
    disk.is_late = True
    with pytest.raises(OutOfTimeError):
        MessageStore.open(tmp_path, config, disk=disk)
    run.check(tmp_path, config)
