"""Every call of the system that a store makes, made to fail: once, and from then on.

A store's life (made, filled over many rolls, flushed, thinned out by retention, closed, opened,
killed, recovered, closed) is lived once to count its calls, and again and again with one of them
failing. Proved each time: what was acknowledged is there, unchanged; no number is given twice; what
comes out of the store is a status or an error of its own; and a healthy disk finds all in order.

Each day's run takes a few calls of every kind, ``ROCKETSTORE_FAULT_WALK=all`` every one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from rocketstore import (
    FlushFailedError,
    Message,
    MessageStore,
    RocketStoreError,
    StoreConfig,
    StoreFullError,
)
from rocketstore.cli.application import main
from rocketstore.config import FlushDiskType
from rocketstore.errors import SystemRefusedError
from rocketstore.events import ROOT
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.results import PutMessageStatus
from rocketstore.units import ByteRange
from support.descriptors import open_descriptors
from support.failing_calls import CALLS, NO_MEMORY, FailingCalls, Fault
from support.fault_settings import WALKS_ALL
from support.fault_workload import (
    LOG_FILE_BYTES,
    Label,
    check_store,
    labels_of,
    places_of,
    small_files,
    step_of,
)  # fmt: skip
from support.inside import parts_of
from support.memory import memory_directory
from support.patience import PATIENCE_S
from support.power_cut import abandon
from support.python_process import run_python
from support.reading import all_messages

Counts = dict[FlushDiskType, Counter[str]]


RUN = 41
CODES = (
    errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EINTR, NO_MEMORY,
    errno.ENFILE, errno.EDQUOT,
)  # fmt: skip
HOUR_MS = 3_600_000
CALLS_OF_EACH_KIND = 5
"""How many calls of a kind fail in a day's run, spread over the life of the store."""


class Life:
    """The life of a store in which something fails, and what it promised."""

    def __init__(self, root: Path, flush: FlushDiskType, calls: FailingCalls) -> None:
        self.root, self.calls = root, calls
        self.config = small_files(
            flush, max_msgs_num_batch=1000, retention=True,
            delete_commit_log_files_interval=0, delete_consume_queue_files_interval=0,
            delete_when=";".join(f"{hour:02d}" for hour in range(24)),
        )  # fmt: skip
        self.now_ms = 1_700_000_000_000
        self.step = 0
        self.acknowledged: dict[Label, tuple[int, int]] = {}
        self.places: dict[tuple[object, int], Label] = {}
        self.tried: set[Label] = set()
        self.old_end = 0
        """Retention may delete what stands before."""
        self.store: MessageStore | None = None

    def clock(self) -> int:
        self.now_ms += 200
        return self.now_ms

    def guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call of the public API returns, or its error if that may come out of it."""
        try:
            return call(*arguments)
        except RocketStoreError as error:
            return error
        except MemoryError as error:
            fault = self.calls.fault
            if fault is None or fault.code != NO_MEMORY:
                raise
            return error

    def begin(self) -> None:
        self.open()
        self.puts(32)
        self.close()
        self.old_end = -(-self.end() // LOG_FILE_BYTES) * LOG_FILE_BYTES
        self.now_ms += 100 * HOUR_MS

    def take_up(self, begun: Begun) -> None:
        """Go on from a life whose store was closed in order, as if it were this one."""
        life = begun.life
        self.now_ms, self.step, self.old_end = life.now_ms, life.step, life.old_end
        self.acknowledged, self.places = dict(life.acknowledged), dict(life.places)
        self.tried = set(life.tried)
        self.calls.counts = begun.counts.copy()

    def go_on(self) -> None:
        self.open()
        self.puts(14)
        self.retain()
        self.puts(6)
        self.die()
        self.open()
        self.puts(10)
        self.close()

    def open(self) -> None:
        opened = self.guarded(self._open)
        self.store = opened if isinstance(opened, MessageStore) else None

    def _open(self) -> MessageStore:
        return MessageStore.open(self.root, self.config, clock=self.clock, threads=False)

    def end(self) -> int:
        return max((at for at, _ in self.acknowledged.values()), default=0)

    def puts(self, count: int) -> None:
        for number in range(count):
            self.step += 1
            if self.store is None:
                continue
            self.put(self.store)
            if number % 4 == 3:
                self.guarded(self.store.flush)
            if number % 6 == 5:
                self.read(self.store)

    def put(self, store: MessageStore) -> None:
        step = step_of(RUN, 0, self.step)
        labels = labels_of(RUN, 0, self.step)
        self.tried.update(labels)
        result = self.guarded(step.do, store)
        # A put says by its status what the system refused.
        assert not isinstance(result, RocketStoreError) or isinstance(result, FlushFailedError)
        if isinstance(result, BaseException) or result.status is not PutMessageStatus.PUT_OK:
            return
        for label, (offset, number) in places_of(labels, result).items():
            place = (step.queue, number)
            assert place not in self.places, f"{label} and {self.places[place]} at {place}"
            self.places[place] = label
            self.acknowledged[label] = offset, number

    def read(self, store: MessageStore) -> None:
        """A reader is told what is there, or that it cannot be told."""
        if self.guarded(store.wait_dispatched) is not True:
            return
        seen: set[Label] = set()

        def look() -> None:
            for queue in store.queues():
                for message in all_messages(store, *queue):
                    seen.add(Label.parse(message.properties["label"]))

        outcome = self.guarded(look)
        if outcome is None:
            kept = {
                label
                for label, (offset, _) in self.acknowledged.items()
                if offset >= store.min_physical_offset
            }
            assert kept <= seen, f"not given to a reader: {sorted(kept - seen)[:5]}"
        label = next(iter(self.acknowledged), None)
        if label is not None:
            queue = step_of(*label[:3]).queue
            self.guarded(store.find, queue.topic, f"k-{label}")
            self.guarded(store.offset_at, queue.topic, queue.queue_id, self.now_ms - 5000)
            self.guarded(store.at_physical_offset, self.acknowledged[label][0])
            self.guarded(store.get_raw, queue.topic, queue.queue_id, 0)

    def retain(self) -> None:
        if self.store is not None:
            # The thread of retention tries again in its next round, whatever it was.
            with contextlib.suppress(Exception):
                parts_of(self.store).retention.run_once()

    def close(self) -> None:
        if self.store is not None:
            outcome = self.guarded(self.store.close)
            if isinstance(outcome, MemoryError):
                # An interrupted close is called again, once there is memory.
                self.calls.fault = None
                outcome = self.guarded(self.store.close)
            assert outcome is None or isinstance(outcome, FlushFailedError), outcome
            self.store = None

    def die(self) -> None:
        if self.store is not None:
            abandon(self.store)
            self.store = None

    def judge(self) -> None:
        """Open with a healthy disk and compare everything with what was promised."""
        self.calls.fault = None
        with self._open() as store:
            assert store.wait_dispatched()
            first = store.min_physical_offset
            assert first <= self.old_end, f"deleted up to {first}, may go: {self.old_end}"
            check_store(store, self.tried, self.acknowledged, lost=[ByteRange(0, first)])
            self.step += 1
            before = len(self.places)
            self.put(store)
            assert len(self.places) > before


class Begun(NamedTuple):
    """The first part of a life without faults: what it left, and how many calls it made."""

    life: Life
    files: dict[Path, bytes | None]
    """By the path below the store; None for a directory."""
    counts: Counter[str]

    @classmethod
    def by(cls, life: Life) -> Self:
        paths = {path.relative_to(life.root): path for path in sorted(life.root.rglob("*"))}
        files = {at: None if path.is_dir() else path.read_bytes() for at, path in paths.items()}
        return cls(life, files, life.calls.counts.copy())

    def make_files(self, root: Path) -> None:
        root.mkdir()
        for at, content in self.files.items():
            if content is None:
                (root / at).mkdir()
            else:
                (root / at).write_bytes(content)


@contextlib.contextmanager
def watchdog(seconds: int) -> Iterator[None]:
    """Interrupt the main thread when it takes for ever."""

    def bark(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def live_with(root: Path, flush: FlushDiskType, fault: Fault | None, begun: Begun) -> Counter[str]:
    """Live a life, judge it, and return how many calls of each kind it made.

    A first part in which nothing fails was the same in all of them, and is not lived again.
    """
    fails_later = fault is None or fault.number >= begun.counts[fault.call]
    if fails_later:
        begun.make_files(root)
    with watchdog(int(PATIENCE_S)), FailingCalls(root, fault) as calls:
        life = Life(root, flush, calls)
        life.take_up(begun) if fails_later else life.begin()
        life.go_on()
        counts = calls.counts.copy()
        assert fault is None or calls.hits, f"{fault} did not happen"
        life.judge()
    return counts


def chosen(count: int) -> list[int]:
    """Return which calls of a kind fail: all, or some from each part of the store's life."""
    if WALKS_ALL or count <= CALLS_OF_EACH_KIND:
        return list(range(count))
    return [number * count // CALLS_OF_EACH_KIND for number in range(CALLS_OF_EACH_KIND)]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Keep the log of thousands of failures out of the report of one."""
    monkeypatch.setattr(ROOT, "disabled", True)


@pytest.fixture(scope="module")
def in_memory():
    """Where hundreds of stores come and go without waiting for a disk, if there is such a place."""
    with memory_directory() as root:
        yield root


@pytest.fixture(scope="module")
def begun(in_memory):
    """How a life begins."""
    found = {}
    for flush in FlushDiskType:
        root = in_memory / f"begun-{flush.value}"
        with FailingCalls(root) as calls:
            life = Life(root, flush, calls)
            life.begin()
        found[flush] = Begun.by(life)
    return found


@pytest.fixture(scope="module")
def counts(in_memory, begun):
    """How many calls of each kind a life without faults makes."""
    return {
        flush: live_with(in_memory / flush.value, flush, None, begun[flush])
        for flush in FlushDiskType
    }


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_whatever_fails_nothing_acknowledged_is_lost(in_memory, flush, call, counts, begun):
    count = counts[flush][call]
    # So that each of them meets each kind of fault, by and by.
    codes = itertools.cycle(CODES)
    for number in chosen(count):
        for lasting in (False, True):
            for code in CODES if WALKS_ALL else (next(codes),):
                fault = Fault(call, number, code, lasting)
                root = in_memory / str(fault)
                try:
                    live_with(root, flush, fault, begun[flush])
                except BaseException as error:
                    error.add_note(f"with {fault} in {flush.value}")
                    raise
                shutil.rmtree(root)


# --- what is said -------------------------------------------------------------------------------


def filled(root: Path, config: StoreConfig, *, in_order: bool) -> None:
    store = MessageStore.open(root, config, threads=False)
    for step in range(1, 20):
        assert step_of(RUN, 0, step).do(store).status is PutMessageStatus.PUT_OK
    store.close() if in_order else abandon(store)


@pytest.mark.parametrize("in_order", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EIO, "dmesg"),
        (errno.EBUSY, "mount its directory"),
    ],
)
def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path, code, advice, *, in_order):
    config = small_files(FlushDiskType.ASYNC_FLUSH)
    filled(tmp_path, config, in_order=in_order)
    with (
        FailingCalls(tmp_path, Fault("open", 0, code, lasting=True)),
        pytest.raises(SystemRefusedError, match=advice) as caught,
    ):
        MessageStore.open(tmp_path, config, threads=False)
    assert caught.value.errno == code
    assert str(tmp_path) in str(caught.value)
    MessageStore.open(tmp_path, config, threads=False).close()


@pytest.mark.parametrize("call", ["open", "mkdir", "pwrite", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_by_name_wherever_it_shows(tmp_path, call, code):
    config = small_files(FlushDiskType.ASYNC_FLUSH)
    with (
        FailingCalls(tmp_path, Fault(call, 0, code, lasting=True)),
        pytest.raises(StoreFullError, match="free space"),
    ):
        MessageStore.open(tmp_path / "store", config, threads=False)
    MessageStore.open(tmp_path / "store", config, threads=False).close()


@pytest.mark.parametrize("call", ["fstat", "pread", "pwrite", "fsync"])
def test_a_lock_that_cannot_be_written_is_let_go(tmp_path, call):
    before = open_descriptors(tmp_path)
    path = tmp_path / "lock"
    with (
        FailingCalls(tmp_path, Fault(call, 0, errno.EIO, lasting=True)),
        pytest.raises(SystemRefusedError, match=r"the disk fails.*zeros for what cannot be read"),
    ):
        StoreLock(path).acquire()
    assert open_descriptors(tmp_path) == before
    StoreLock(path).acquire().release()


def test_a_lock_that_cannot_be_looked_at_does_not_lose_the_one_this_process_has(tmp_path):
    lock = StoreLock(tmp_path / "lock").acquire()
    with (
        FailingCalls(tmp_path, Fault("stat", 0, errno.EIO, lasting=False)),
        pytest.raises(SystemRefusedError),
    ):
        StoreLock(tmp_path / "lock").acquire()
    code = "import fcntl,sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = run_python("-c", code, tmp_path / "lock")
    assert "BlockingIOError" in done.stderr
    lock.release()


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_marker_that_cannot_be_deleted_costs_a_recovery_and_no_error(tmp_path, call):
    config = small_files(FlushDiskType.ASYNC_FLUSH)
    store = MessageStore.open(tmp_path, config, threads=False)
    assert step_of(RUN, 0, 1).do(store).status is PutMessageStatus.PUT_OK
    store.flush()
    with FailingCalls(tmp_path, Fault(call, 0, errno.EIO, lasting=True)) as calls:
        store.close()
    assert calls.hits
    with MessageStore.open(tmp_path, config, threads=False) as again:
        assert again.recovery.was_clean is (call == "fsync")


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pread", "open", "listdir", "scandir"])
@pytest.mark.parametrize("number", [0, 3, 9, 20])
def test_a_reader_of_a_disk_that_fails_is_told_and_never_finds_nothing(tmp_path, call, number):
    config = small_files(FlushDiskType.ASYNC_FLUSH)
    filled(tmp_path, config, in_order=True)

    def read() -> list[int]:
        found = []
        with MessageStore.open(tmp_path, config, read_only=True) as store:
            for queue in store.queues():
                found += [message.physical_offset for message in all_messages(store, *queue)]
                found += [len(store.find(queue.topic, f"shared-{n}")) for n in range(7)]
        return found

    whole = read()
    with FailingCalls(tmp_path, Fault(call, number, errno.EIO, lasting=True)) as calls:
        try:
            assert read() == whole
        except SystemRefusedError as error:
            assert calls.hits
            assert str(tmp_path) in str(error)  # noqa: PT017 - a call that is not made is no fault
        else:
            assert not calls.hits


@pytest.mark.parametrize("command", ["info", "scan", "verify"])
@pytest.mark.parametrize("call", ["pread", "preadv", "open", "listdir"])
def test_commands_on_a_disk_that_fails_say_so_by_their_exit_code(tmp_path, capsys, command, call):
    filled(tmp_path, small_files(FlushDiskType.ASYNC_FLUSH), in_order=True)
    with (
        FailingCalls(tmp_path, Fault(call, 0, errno.EIO, lasting=True)) as calls,
        pytest.raises(SystemExit) as ended,
    ):
        main(["store", command, str(tmp_path)])
    if (command, call) == ("verify", "preadv"):  # of the log alone: what is unreadable is damage
        assert ended.value.code == 4
        assert "unreadable" in capsys.readouterr().out
        return
    assert ended.value.code == (3 if calls.hits else 0)
    if calls.hits:
        assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("below", ["commitlog", "consumequeue/orders/0"])
def test_a_directory_with_a_name_of_the_store_is_named_and_may_be_moved_away(tmp_path, below):
    config = small_files(FlushDiskType.ASYNC_FLUSH)
    size = LOG_FILE_BYTES if below == "commitlog" else config.mapped_file_size_consume_queue
    assert size is not None
    strange = tmp_path / below / f"{size:020d}"
    strange.mkdir(parents=True)
    message = Message(topic="orders", body=bytes(500))
    count = 0
    with MessageStore.open(tmp_path, config, threads=False) as store:
        assert any(str(strange) in str(problem) for problem in store.problems)
        said = ""
        while not said:
            result = store.put(message)
            if result.status is PutMessageStatus.PUT_OK:
                count += 1
                with contextlib.suppress(SystemRefusedError):
                    try:
                        store.wait_dispatched()
                    except RocketStoreError as error:
                        said = str(error)
            else:
                said = result.detail
            assert count < 200
        assert str(strange) in said
        assert "move it" in said
        strange.rmdir()
        assert store.put(message).status is PutMessageStatus.PUT_OK
        assert store.wait_dispatched()
        assert store.max_offset("orders", 0) == count + 1
