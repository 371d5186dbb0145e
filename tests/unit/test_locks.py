"""The lock of the store's blocks: no exception out of a signal handler leaves it taken."""

import ctypes
import itertools
import re
import signal
import threading
from collections import defaultdict

import pytest

from rocketstore.errors import StoreError
from rocketstore.locks import Lock, OwnedLock, begin
from support.interrupts import InterruptAt, watchdog
from support.patience import PATIENCE_S
from support.repository import ROOT

__all__ = ["watchdog"]

KINDS = sorted({Lock, OwnedLock}, key=str)


class Interrupt(BaseException):
    pass


@pytest.fixture
def pending():
    """Return a mapping whose look-ups make SIGINT pending, by an instruction without a look."""
    trip = ctypes.PyDLL(None).PyErr_SetInterrupt
    trip.argtypes, trip.restype = (), None

    def handle(_number, _frame):
        raise Interrupt

    before = signal.signal(signal.SIGINT, handle)
    yield defaultdict(trip)
    signal.signal(signal.SIGINT, before)


def take(lock, pending):
    pending[0]
    with lock:
        pass


def is_free(lock):
    """Return whether another thread may take a lock."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return taken[0]


class InterruptedLock(OwnedLock):
    """Where an interrupt comes once the lock is taken, of which 3.14 runs the handler."""

    def acquire(self, **how):
        super().acquire(**how)
        raise Interrupt


class LateLock(OwnedLock):
    """Where an interrupt comes once it was let go of."""

    def release(self):
        super().release()
        raise Interrupt


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_between_taking_it_and_the_block_leaves_it_free(kind, pending):
    lock = kind()
    with pytest.raises(Interrupt):
        take(lock, pending)
    assert is_free(lock)


def test_an_interrupt_as_it_was_taken_lets_go_of_it():
    lock = InterruptedLock()
    with pytest.raises(Interrupt), lock:
        pass
    assert is_free(super(InterruptedLock, lock))


@pytest.mark.parametrize("kind", [InterruptedLock, LateLock])
def test_an_interrupt_in_a_try_to_take_it_lets_go_of_it(kind):
    lock = kind()
    with pytest.raises(Interrupt):
        lock.run_if_free(lambda: True)
    assert is_free(super(kind, lock))


def test_what_is_tried_is_left_alone_while_it_is_held_and_let_go_of_when_work_fails():
    lock, done = OwnedLock(), []
    with lock:
        assert lock.is_held_here()
        assert not lock.run_if_free(lambda: done.append("within"))
        other = threading.Thread(target=lambda: lock.run_if_free(lambda: done.append("beside")))
        other.start()
        other.join()
    assert not lock.is_held_here()
    assert done == []
    with pytest.raises(ZeroDivisionError):
        lock.run_if_free(lambda: 1 // 0)
    assert lock.run_if_free(lambda: True)
    assert not lock.run_if_free(lambda: False)
    assert is_free(lock)


def test_one_that_knows_its_thread_refuses_it_instead_of_waiting_for_ever():
    lock = OwnedLock()
    with lock, pytest.raises(StoreError, match="a signal handler used the store"), lock:
        pass
    with lock:  # it was let go of
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_another_thread_waits_for_the_end_of_the_block(kind):
    lock, seen = kind(), []

    def come():
        with lock:
            seen.append("other")

    thread = threading.Thread(target=come)
    with lock:
        thread.start()
        thread.join(0.05)
        seen.append("block")
    thread.join()
    assert seen == ["block", "other"]


@pytest.mark.usefixtures("watchdog")
def test_an_interrupt_at_any_line_of_a_start_is_raised_and_leaves_no_thread():
    """Nor one that waits for a lock of ``Thread.start``, or that Python takes for a started one."""
    for lines in itertools.count(1):
        before, thread = set(threading.enumerate()), threading.Thread(target=int)
        if not InterruptAt("locks.py").run(lines, lambda thread=thread: begin(thread)):
            break
        if thread.ident is not None:
            thread.join(PATIENCE_S)
        assert set(threading.enumerate()) <= before
    assert lines > 5


def test_no_thread_is_started_or_waited_for_in_another_way():
    """By a lock of Python's, on a thread where a signal handler may run."""
    other = re.compile(r"threading\.(?:Event|Condition)\(|ThreadPoolExecutor\(")
    found = {path.name for path in (ROOT / "src").rglob("*.py") if other.search(path.read_text())}
    # Of a broker's own thread; of a future as Python makes it; of the start of a job on Spark.
    assert found == {"loop.py", "async_puts.py", "java_parts.py"}
