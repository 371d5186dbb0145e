"""Services against faults: what each promised holds, and it goes on, whatever fails beside it.

Each service's work (`support.service_work`) is done while one call of the system fails, once or
from then on, and while Ctrl-C comes at some line of it; then it is judged in a healthy store. A
day's run takes some calls and lines of each, ``ROCKETSTORE_FAULT_WALK=all`` every one.
"""

from __future__ import annotations

import errno
import gc
import itertools
import os
import shutil
import warnings
from typing import TYPE_CHECKING

import pytest

from rocketstore import FlushFailedError, RocketStoreError
from rocketstore.events import ROOT
from support.failing_calls import CALLS, NO_MEMORY, FailingCalls, Fault
from support.interrupts import InterruptAt
from support.power_cut import abandon
from support.service_work import WORKS, Work

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from pathlib import Path

WALKS_ALL = os.environ.get("ROCKETSTORE_FAULT_WALK") == "all"
CODES = (errno.EMFILE, errno.EIO, errno.ENOSPC, errno.ENOMEM, NO_MEMORY)
CALLS_OF_EACH_KIND = 3
LINES = 30


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ROOT, "disabled", True)
    yield
    with warnings.catch_warnings():
        # Of a file that an opening was just loading when it failed, a descriptor may be left.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def begun(tmp_path: Path, service: str) -> Path:
    """A store in which the work is still to be done."""
    root = tmp_path / "begun"
    work = WORKS[service](root)
    work.open().close()
    return root


def copied(begun: Path, service: str) -> Work:
    root = begun.with_name("store")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(begun, root)
    return WORKS[service](root)


def spread(count: int, most: int) -> Iterator[int]:
    """Yield some of so many numbers, or all."""
    if WALKS_ALL or count <= most:
        yield from range(count)
    else:
        yield from (number * count // most for number in range(most))


def end(work: Work, calls: FailingCalls) -> None:
    """Close the store; once more when nothing fails, where that was interrupted."""
    for _ in range(2):
        try:
            work.store.close()
        except FlushFailedError:
            return
        except (RocketStoreError, MemoryError):
            calls.fault = None
        else:
            return
    raise AssertionError("the store cannot be closed when nothing fails")


def live(begun: Path, service: str, fault: Fault | None, *, dies: bool = False) -> Counter[str]:
    """Work while something fails, end or die, and judge what is there; return the calls made."""
    work = copied(begun, service)
    if fault is not None and fault.code == NO_MEMORY:
        work.refuses = (*work.refuses, MemoryError)
    with FailingCalls(work.root, fault) as calls:
        store = work.call(work.open)
        if store is not None:
            work.run()
            if dies:
                abandon(store)
            else:
                end(work, calls)
        counts, hits = calls.counts.copy(), calls.hits
        calls.fault = None
        with work.open():
            work.judge()
    assert fault is None or hits, f"{fault} did not happen"
    return counts


@pytest.mark.parametrize("service", WORKS)
def test_a_service_keeps_its_promises_whatever_call_fails(begun: Path, service: str) -> None:
    counts = live(begun, service, None)
    codes = itertools.cycle(CODES)
    for call in CALLS:
        for number in spread(counts[call], CALLS_OF_EACH_KIND):
            for lasting in (False, True):
                for code in CODES if WALKS_ALL else (next(codes),):
                    fault = Fault(call, number, code, lasting)
                    try:
                        live(begun, service, fault)
                    except BaseException as error:
                        error.add_note(f"with {fault}")
                        raise


@pytest.mark.parametrize("service", WORKS)
def test_a_service_keeps_its_promises_whatever_line_is_interrupted(
    begun: Path, service: str
) -> None:
    interrupts, most = InterruptAt(""), 1 << 30
    work = copied(begun, service)
    with work.open():
        assert not interrupts.run(most, work.run)
        lines = most - interrupts._lines_left
    for line in spread(lines, LINES):
        work = copied(begun, service)
        with work.open() as store:
            interrupts.run(line + 1, work.run)
            work.prefix = "and on: "
            work.run()
            store.flush()
        with work.open():
            try:
                work.judge()
            except BaseException as error:
                error.add_note(f"interrupted at {interrupts.where}")
                raise
