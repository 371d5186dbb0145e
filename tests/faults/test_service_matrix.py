"""Services against faults: what each promised holds, and it goes on, whatever fails beside it.

Each service's work (`support.service_work`, `support.networked_work`) is done while one call of the
system fails, once or from then on, while Ctrl-C comes at some line of it, while the store is closed
or the process forks beside a call; then it is judged in a healthy store. A day's run takes some
calls and lines of each, ``ROCKETSTORE_FAULT_WALK=all`` every one.
"""

import asyncio
import contextlib
import errno
import gc
import itertools
import logging
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rocketstore import FlushFailedError, MessageStore, RocketStoreError, StoreForkedError
from rocketstore.events import ROOT
from support.descriptors import listening, open_sockets
from support.failing_calls import BESIDE, CALLS, NO_MEMORY, SOCKET_CALLS, FailingCalls, Fault
from support.fault_settings import WALKS_ALL
from support.forked import HeldChild
from support.interrupts import InterruptAt
from support.networked_work import NETWORKED
from support.patience import PATIENCE_S, wait_until
from support.public_calls import SERVICES, USES
from support.service_work import WORKS, Work
from support.trees import copy_tree

ALL = WORKS | NETWORKED
CODES = (errno.EMFILE, errno.EIO, errno.ENOSPC, errno.ENOMEM, NO_MEMORY)
WITH_LOOPS = ("metrics", "broker")
CALLS_OF_EACH_KIND = 3
LINES = 30
OF_SERVICES = {
    name: SERVICES[name]
    for name in ("put_async", "put, delayed", "begin", "consume", "check_transactions")
}
HELD_S = 0.005
"""A close that waits for what the call holds goes on when the call does."""

SEEN = {name for name in SOCKET_CALLS if name.split(".")[1] in (
    "socketpair", "__init__", "bind", "listen", "accept", "register", "select", "start"
)}  # fmt: skip
"""Where a refusal keeps a service from working for a while: a public call says so, or the log."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    # What asyncio leaves of a loop that could not be made, or ended by an error.
    pytest.mark.filterwarnings("ignore:unclosed (event loop|transport|<socket):ResourceWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


class Log(logging.Handler):
    """Whether a service said that something is wrong."""

    said: ClassVar[list[str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, caplog, service):
    monkeypatch.setattr(ROOT, "handlers", [Log(logging.WARNING)])
    monkeypatch.setattr(ROOT, "propagate", False)
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)
    for pause in (
        "replication.slave.FIRST_PAUSE_S", "replication.slave.LONGEST_PAUSE_S",
        "replication.master.PAUSE_AFTER_ERROR_S", "storage.threads.PAUSE_AFTER_ERROR_S",
    ):  # fmt: skip
        monkeypatch.setattr(f"rocketstore.{pause}", 0.005)
    # The calls of uvloop are not Python's: they are neither seen nor failed.
    monkeypatch.setattr("rocketstore.broker.service.new_event_loop", asyncio.SelectorEventLoop)
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.005)
    yield
    if service in WITH_LOOPS:
        caplog.get_records("call").clear()  # their tracebacks hold transports until the next test
        gc.collect()


@pytest.fixture
def begun(tmp_path, service):
    """A store in which the work is still to be done."""
    root = tmp_path / "begun"
    work = ALL[service](root)
    work.open()
    work.close()
    return root


def copied(begun: Path, service: str) -> Work:
    root = begun.with_name("store")
    shutil.rmtree(root, ignore_errors=True)
    copy_tree(begun, root)
    return ALL[service](root)


def spread(count: int, most: int) -> Iterator[int]:
    """Yield some of so many numbers, or all."""
    if WALKS_ALL or count <= most:
        yield from range(count)
    else:
        yield from (number * count // most for number in range(most))


class Closing:
    """Closes a store beside a call, and says what that came to."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.failures: list[BaseException] = []
        self.thread = threading.Thread(target=self.close, daemon=True)

    def __call__(self) -> None:
        if self.work.is_up:
            self.thread.start()
            self.thread.join(HELD_S)

    def close(self) -> None:
        try:
            self.work.close()
        except BaseException as error:  # noqa: BLE001 - judged below
            self.failures.append(error)

    def settle(self) -> None:
        if self.thread.ident is not None:
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive(), "close hangs"
        assert not self.failures, self.failures

    def after_all(self) -> None: ...


class Forking:
    """Forks beside a call; the child, which is refused all that it tries, lives until the end."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.child: HeldChild | None = None
        self.ports = listening()
        self.open_stores: list[MessageStore] = []

    def __call__(self) -> None:
        if self.work.is_up:
            self.open_stores = [store for store in self.work.stores if not store.is_closed]
            self.child = HeldChild(self.be_refused)

    def be_refused(self) -> None:
        assert listening() == self.ports
        for store in self.open_stores:
            for name, use in (USES | OF_SERVICES).items():
                with pytest.raises(StoreForkedError):
                    raise AssertionError(f"{name} returned {use(store)!r}")
            store.close()

    def settle(self) -> None: ...

    def after_all(self) -> None:
        if self.child is not None:
            self.child.let_go()


def end(work: Work, calls: FailingCalls) -> None:
    """Close the store; once more when nothing fails, where that was interrupted."""
    for _ in range(2):
        try:
            work.close()
        except FlushFailedError:
            return
        except (RocketStoreError, MemoryError):
            calls.fault = None
        else:
            return
    raise AssertionError("the store cannot be closed when nothing fails")


def live(
    begun: Path, service: str, fault: Fault | None, kind: type[Closing | Forking] | None = None
) -> FailingCalls:
    """Work while something fails, end, and judge what is there; return the calls made."""
    work = copied(begun, service)
    beside = None if kind is None else kind(work)
    Log.said.clear()
    # What a loop of asyncio that ended by an error had open goes with the garbage.
    kept = listening if service in WITH_LOOPS else open_sockets
    before = kept()
    try:
        with FailingCalls(work.root, fault, sockets=work.has_sockets) as calls:
            work_on(work, calls, beside)
            calls.made = calls.counts.copy()
            calls.fault = None
            work.open()
            with contextlib.closing(work):
                work.judge()
        if beside is not None:
            beside.after_all()
        assert kept() <= before
    except BaseException as error:
        error.add_note(f"with {fault}")
        raise
    return calls


def work_on(work: Work, calls: FailingCalls, beside: Closing | Forking | None) -> None:
    """Open the store, do the work, and end."""
    fault = calls.fault
    if fault is not None and fault.code == NO_MEMORY:
        work.refuses = (*work.refuses, MemoryError)
    calls.beside = beside or calls.beside
    if work.call(work.open) is None:
        return
    calls.counts_opened = calls.counts.copy()
    work.run()
    if beside is not None:
        beside.settle()
    elif fault is not None and fault.call in SEEN and calls.hits:
        wait_until(lambda: Log.said or work.was_refused, "something says so")
    if fault is not None and fault.lasting and work.is_lifted(fault):
        fault = calls.fault = None
    if fault is None or not fault.lasting:
        work.recover()
    end(work, calls)
    if beside is not None:
        beside.settle()


def live_through(begun: Path, service: str, faults: Iterable[Fault], *kind: Any) -> None:
    """Work with each of the faults; what threads do need not come to each."""
    hits = [
        live(begun, service, fault, *kind).hits > 0
        for fault in faults
        if not ALL[service](begun).is_beyond(fault)
    ]
    assert all(hits) or (service in NETWORKED and sum(hits) > len(hits) * 0.7), hits


def calls_of(
    begun: Path, service: str, most: int, *, opened: bool = False
) -> Iterator[tuple[str, int]]:
    """Yield some calls that the work makes, or only of those once its store is open."""
    calls = live(begun, service, None)
    for call in (*CALLS, *SOCKET_CALLS):
        first = calls.counts_opened[call] if opened else 0
        # What a service with sockets does with files, those without show.
        wanted = 1 if call in CALLS and service in NETWORKED else most
        for number in spread(calls.made[call] - first, wanted):
            yield call, first + number


@pytest.mark.parametrize("service", ALL)
def test_a_service_keeps_its_promises_whatever_call_fails(begun, service):
    codes = itertools.cycle(CODES)
    faults = (
        Fault(*call, code, lasting)
        for call in calls_of(begun, service, CALLS_OF_EACH_KIND)
        for lasting in (False, True)
        for code in (CODES if WALKS_ALL else (next(codes),))
    )
    live_through(begun, service, faults)


@pytest.mark.parametrize("service", ALL)
@pytest.mark.parametrize("kind", [Closing, Forking])
def test_a_service_keeps_its_promises_whatever_call_a_close_or_a_fork_is_beside(
    begun, service, kind
):
    calls = calls_of(begun, service, 2, opened=True)
    faults = (Fault(*call, BESIDE, lasting=False) for call in calls)
    live_through(begun, service, faults, kind)


@pytest.mark.parametrize("service", ALL)
def test_a_service_keeps_its_promises_whatever_line_is_interrupted(begun, service):
    interrupts, most = InterruptAt(""), 1 << 30
    work = copied(begun, service)
    work.open()
    with contextlib.closing(work):
        assert not interrupts.run(most, work.run)
        lines = most - interrupts._lines_left
    for line in spread(lines, LINES):
        work = copied(begun, service)
        work.open()
        with contextlib.closing(work):
            interrupts.run(line + 1, work.run)
            work.prefix = "and on: "
            work.run()
            work.store.flush()
        work.open()
        with contextlib.closing(work):
            try:
                work.judge()
            except BaseException as error:
                error.add_note(f"interrupted at {interrupts.where}")
                raise
