"""The same scenario on both sides, alternately, in one run: ours, Java's, ours, Java's, …

Each side is one process for the whole scenario, so that Java's compiler and our kernels are warm;
each times inside itself; each round has a fresh store directory that is removed afterwards. What a
machine does to the figures from one minute to the next it does to both, and the ratios of the
rounds show by their spread how much of it there was.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bench.machine import ROOT
from bench.scenario import Verdict
from bench.scenario.registry import RECORD_OVERHEAD_BYTES
from support.line_process import LineProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.scenario import Measure, Scenario


def _environment(checkout: Path) -> dict[str, str]:
    """Return what lets a worker find one checkout's benchmark, test support and package."""
    found = (checkout, checkout / "tests", checkout / "src")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, found))}


class Memory(Enum):
    """State of the machine's free memory before a round."""

    COLD = "cold"
    """The host has taken it back, as on a virtual machine with room to spare."""
    BACKED = "backed"
    """It is there at the first touch, as on a physical machine."""
    ANY = "any"
    """As it happens to be."""


MEMORY_RETURN_S = 5.0
"""Longer than the kernel waits before it reports free pages to the host (2 s)."""

SPARE_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
"""For queues, index and the processes' own heaps."""

BALLAST_AHEAD_BYTES = 256 * 1024 * 1024
"""What is free ahead of a round: what the fastest takes in a tenth of a second."""

BALLAST_STEP_BYTES = 32 * 1024 * 1024
"""Less is not worth a call."""

BALLAST_POLL_S = 0.004

MEMINFO = Path("/proc/meminfo")

OURS = "ours"
JAVA = "java"
BEFORE = "before"


class Sides:
    """The workers of both sides; a context manager that ends those it shares.

    Parameters
    ----------
    directory
        Where stores are made and removed.
    java
        Command of the genuine store's worker; None runs ours alone.
    memory
        What to do about free memory before a round.
    before
        Another checkout of this project, built in its own ``.venv``: a third side.
    shared
        One worker per side for all scenarios, for short runs. Otherwise each scenario has its own,
        so that what Java's compiler learnt from one scenario does not colour the next.
    """

    def __init__(
        self,
        directory: Path,
        java: list[str] | None,
        *,
        memory: Memory,
        shared: bool,
        before: Path | None = None,
    ) -> None:
        self.directory = directory
        self._before = before
        self.memory = memory
        self._java = java
        self._shared: dict[str, LineProcess] | None = {} if shared else None
        self._stack = contextlib.ExitStack()

    def names(self, scenario: Scenario) -> tuple[str, ...]:
        """Return the sides that run this scenario."""
        names = (OURS, JAVA) if self._java is not None and scenario.against_java else (OURS,)
        return names if self._before is None else (*names, BEFORE)

    def start(self, side: str) -> LineProcess:
        """Start a worker of one side."""
        checkout, python = ROOT, sys.executable
        if side == BEFORE and self._before is not None:
            checkout, python = self._before, str(self._before / ".venv/bin/python")
        ours = [python, "-m", "bench.worker"]
        return LineProcess(
            self._java if side == JAVA and self._java is not None else ours,
            cwd=str(checkout),
            environment=_environment(checkout),
        )

    @contextlib.contextmanager
    def worker(self, side: str) -> Iterator[LineProcess]:
        """Yield the worker that runs a scenario's rounds."""
        if self._shared is None:
            with self.start(side) as own:
                yield own
                own.exit()
        else:
            if side not in self._shared:
                self._shared[side] = self._stack.enter_context(self.start(side))
            yield self._shared[side]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


@dataclass
class Outcome:
    """Figures of one measure of a scenario, round by round."""

    scenario: Scenario
    measure: Measure
    counts: bool = True
    """False in a short run, whose figures reach or miss nothing."""
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    """Load average of the machine when the scenario began; its own part of it is about 2."""
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def verdicts(self) -> list[float]:
        """What is judged, round by round: ratios, or our own figures."""
        java = self.figures.get(JAVA) or [None] * len(self.figures[OURS])
        return [
            self.measure.verdict.of(ours, theirs)
            for ours, theirs in zip(self.figures[OURS], java, strict=True)
        ]

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.verdicts)

    @property
    def times_before(self) -> list[float]:
        """How many times as fast as the other checkout, or as small, round by round."""
        is_rate = self.measure.verdict in (Verdict.RATE, Verdict.LEAST)
        return [
            ours / before if is_rate else before / ours
            for ours, before in zip(self.figures[OURS], self.figures.get(BEFORE, ()), strict=False)
        ]

    @property
    def judged(self) -> bool:
        """Whether there is a target, and both figures that it takes."""
        return (
            self.counts
            and self.measure.target is not None
            and (not self.measure.verdict.compares or bool(self.figures.get(JAVA)))
        )

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target."""
        if not self.judged or self.measure.target is None:
            return None
        return self.measure.verdict.holds(self.median, self.measure.target)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome for ``bench/results``."""
        judged = self.verdicts
        return {
            "scenario": self.scenario.name,
            "measure": self.measure.name,
            "unit": self.measure.unit,
            "figures": {
                side: [round(value, 6) for value in values] for side, values in self.figures.items()
            },
            "verdict": self.measure.verdict.value,
            "rounds": [round(value, 3) for value in judged],
            "min": round(min(judged), 3),
            "median": round(self.median, 3),
            "max": round(max(judged), 3),
            "target": self.measure.target,
            "loadAverageBefore": round(self.load_before, 2),
            "met": self.met,
        }


def run(scenario: Scenario, sides: Sides, *, rounds: int, smoke: bool) -> list[Outcome]:
    """Run one scenario and return one outcome per measure."""
    spec = scenario.specification(smoke=smoke)
    names = sides.names(scenario)
    outcomes = [Outcome(scenario, measure, counts=not smoke) for measure in scenario.measures]
    with contextlib.ExitStack() as stack:
        rounds_of = _begun(scenario, sides, spec, stack)
        if scenario.command not in ("restart", "catch_up") and not smoke:
            warm_up = scenario.warm_up()
            for side in names:
                rounds_of[side](warm_up)
        for number in range(rounds):
            # Whoever comes second finds the memory that the first one freed: they take turns.
            for side in names if number % 2 == 0 else reversed(names):
                answer = rounds_of[side](spec)
                for outcome in outcomes:
                    figure = outcome.measure.figure(answer, scenario.counted_messages(spec))
                    outcome.figures.setdefault(side, []).append(figure)
    return outcomes


def _begun(
    scenario: Scenario, sides: Sides, spec: dict[str, Any], stack: contextlib.ExitStack
) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return what runs a round of each side, with the stores and workers that the rounds share."""
    names, command = sides.names(scenario), scenario.command
    if command == "catch_up":  # all sides follow the same log
        pair = stack.enter_context(_filled_store(sides, OURS, spec, "bench_fill_pair"))
        return {side: functools.partial(_catch_up, sides, side, pair) for side in names}
    if command == "restart":
        return {
            side: functools.partial(
                _restart, sides, side, stack.enter_context(_filled_store(sides, side, spec))
            )
            for side in names
        }
    return {
        side: functools.partial(_round, sides, stack.enter_context(sides.worker(side)), command)
        for side in names
    }


def _restart(sides: Sides, side: str, source: Path, spec: dict[str, Any]) -> dict[str, Any]:
    # A restart is a new process, whose compiler has seen nothing yet.
    with sides.start(side) as worker:
        answer = _round(sides, worker, "restart", spec, source)
        worker.exit()
    return answer


def _round(
    sides: Sides,
    worker: LineProcess,
    command: str,
    spec: dict[str, Any],
    source: Path | None = None,
) -> dict[str, Any]:
    with _fresh_directory(sides.directory) as path:
        if source is not None:
            _copy_store(source, path)
        if command == "put":
            # Making the messages takes longer than free memory keeps its state.
            worker.ask("bench_prepare_put", spec=spec, path=str(path))
            time.sleep(spec.get("openBeforeSeconds", 0))
        if (free_mb := spec.get("freeMemoryMb")) is not None:
            with _held_memory(free_mb):
                return worker.ask(f"bench_{command}", spec=spec, path=str(path))
        with _settled_memory(sides.memory, _record_bytes(spec) + SPARE_MEMORY_BYTES):
            return worker.ask(f"bench_{command}", spec=spec, path=str(path))


def _catch_up(sides: Sides, side: str, pair: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Have a fresh slave follow the master of a pair of stores, each in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    of_slave = {"brokerRole": "SLAVE", "haMasterAddress": f"127.0.0.1:{port}"}

    def with_settings(**settings: Any) -> dict[str, Any]:
        return {**spec, "config": {**spec["config"], **settings}}

    with (
        _fresh_directory(sides.directory) as path,
        sides.start(side) as master,
        sides.start(side) as slave,
    ):
        _copy_store(pair / "begun", path)
        at = str(pair / "master")
        end = master.ask("bench_serve", spec=with_settings(haListenPort=port), path=at)["end"]
        following = {**with_settings(**of_slave), "end": end}
        with _settled_memory(sides.memory, _record_bytes(spec) + SPARE_MEMORY_BYTES):
            answer = slave.ask("bench_follow", spec=following, path=str(path))
        slave.exit()
        master.ask("bench_serve_end", spec=spec, path=at)
        master.exit()
    return answer


@contextlib.contextmanager
def _held_memory(free_mb: int) -> Iterator[None]:
    """Hold the machine's memory but for ``free_mb``, so that the page cache is small."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(), re.MULTILINE)
    assert available is not None
    size_bytes = max(0, int(available[1]) * 1024 - free_mb * 1024 * 1024)
    with _touched_memory(size_bytes or mmap.PAGESIZE):
        yield


@contextlib.contextmanager
def _touched_memory(size_bytes: int) -> Iterator[mmap.mmap]:
    """Hold memory that is really there."""
    # Python's own allocator would keep it for later; a mapping goes back to the system at once.
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(held, np.uint8)[:: mmap.PAGESIZE] = 1
        yield held


def _record_bytes(spec: dict[str, Any]) -> int:
    return int(spec["messages"]) * (int(spec["bodySize"]) + RECORD_OVERHEAD_BYTES)


@contextlib.contextmanager
def _settled_memory(memory: Memory, size_bytes: int) -> Iterator[None]:
    """Hold the machine's free memory in one state for a round, the same for all sides.

    A virtual machine returns freed memory to its host after about two seconds, or at once when it
    is much, and whoever touches such a page first waits for it, up to a second for each 300 MB.
    Left alone, a round's figures depend on how long ago the round before it removed its store.
    """
    if memory is Memory.BACKED:
        with _ballast(size_bytes):
            yield
    else:
        if memory is Memory.COLD:
            time.sleep(MEMORY_RETURN_S)
        yield


@contextlib.contextmanager
def _ballast(size_bytes: int) -> Iterator[None]:
    """Hold touched memory and let go of it as the round takes memory, just ahead of it.

    What has been free for a moment only is still there, and is what the kernel gives first.
    """
    with _touched_memory(size_bytes) as held:
        ended = threading.Event()
        releasing = threading.Thread(target=_release, args=(held, _free_bytes(), ended))
        releasing.start()
        try:
            yield
        finally:
            ended.set()
            releasing.join()


def _release(held: mmap.mmap, free_bytes: int, ended: threading.Event) -> None:
    released = 0
    while released < len(held) and not ended.wait(BALLAST_POLL_S):
        ahead = BALLAST_AHEAD_BYTES - (_free_bytes() - free_bytes)
        size = min(len(held) - released, ahead // mmap.PAGESIZE * mmap.PAGESIZE)
        if size >= BALLAST_STEP_BYTES or released + size == len(held):
            held.madvise(mmap.MADV_DONTNEED, released, size)
            released += size


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE


@contextlib.contextmanager
def _filled_store(
    sides: Sides, side: str, spec: dict[str, Any], command: str = "bench_fill"
) -> Iterator[Path]:
    """Yield a store that a worker filled, and closed or was killed over."""
    with _fresh_directory(sides.directory) as path:
        with sides.start(side) as worker:
            worker.ask(command, spec=spec, path=str(path))
            if spec.get("clean", True):
                worker.exit()
            else:
                worker.kill()
        yield path


@contextlib.contextmanager
def _fresh_directory(directory: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rocketstore-bench-", dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _copy_store(source: Path, target: Path) -> None:
    """Copy a store, holes as holes, and wait until the disk has it: the copy must not be timed."""
    subprocess.run(["cp", "-a", "--sparse=always", f"{source}/.", str(target)], check=True)
    os.sync()
