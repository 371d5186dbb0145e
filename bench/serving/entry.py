"""The command ``bench/broker``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import machine, report
from bench.comparison import JAVA, OURS, Outcome
from bench.entry import BUSY_LOAD, JVM_OPTIONS, RESULTS
from bench.serving.brokers import TICK_S, Broker, GenuineBroker, cpu_s, memory_mb
from bench.serving.scenarios import ALL, HELD, IDLE, MEMORY, SCENARIOS, SHORT, START, specification
from support.java_client import jars
from support.java_store import JavaBuildError, java_tool
from support.line_process import LineProcess
from support.spark_home import SHORT_LIVED_JVM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.scenario import Scenario

_LOAD: Final = Path(__file__).with_name("Load.java")
_SIDES: Final = (OURS, JAVA)
_MEMORIES: Final = ("VmRSS", "RssAnon")


def main() -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args()
    if options.list:
        for scenario in ALL:
            print(f"{scenario.name:12} {scenario.claim}")
        return 0
    cores = [int(core) for core in options.cores.split(",")]
    os.sched_setaffinity(0, cores)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a descriptor
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = options.names or (SHORT if options.smoke else ("",))
    chosen = [one for one in ALL if one.name.startswith(tuple(names))]
    load_before = os.getloadavg()[0]
    run = Run(options)
    with machine.kept_awake(cores if options.awake else ()):
        outcomes = run.all(chosen)
    title = "smoke run: the figures mean nothing"
    if not options.smoke:
        title = f"genuine broker 4.9.7, client 4.9.8; {machine.cpu_model()}, cores {options.cores}"
        title += ", kept awake" if options.awake else ""
    report.print_table(outcomes, title=title, with_java=run.with_java)
    if load_before > BUSY_LOAD and not options.smoke:
        print(f"the machine was busy (load {load_before:.1f}): measure again", file=sys.stderr)
    if options.save and not options.smoke:
        about = {
            "date": report.today(), "commit": machine.commit(), "rounds": options.rounds,
            "machine": machine.describe(Path(options.directory)), "jvmOptions": list(JVM_OPTIONS),
            "versions": machine.versions(java_tool("java")), "seconds": options.seconds,
            "coresAwake": options.awake,
        }  # fmt: skip
        path = RESULTS / report.default_name("broker").replace("-memory.json", ".json")
        report.save(outcomes, path, about=about)
        print(f"written to {path}")
    return 0


class Run:
    """Runs scenarios on the brokers that there are."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._smoke = options.smoke
        self._rounds = 1 if options.smoke else options.rounds
        self._millis = 200 if options.smoke else int(options.seconds * 1000)
        self._warm_up_millis = 0 if options.smoke else int(options.warm_up * 1000)
        self._jvm = SHORT_LIVED_JVM.split() if options.smoke else list(JVM_OPTIONS)
        directory = Path(options.directory)
        # Beside other work a send may wait for longer than 200 ms, and no figure counts then.
        more = {"waitTimeMillsInSendQueue": 60_000} if options.smoke else {}
        self._starts: dict[str, Callable[..., Broker]] = {
            OURS: functools.partial(Broker, directory, **more)
        }
        try:
            jars()
            self._starts[JAVA] = functools.partial(GenuineBroker, directory, self._jvm, **more)
        except JavaBuildError as missing:
            if not options.smoke:
                raise
            print(missing, file=sys.stderr)

    @property
    def with_java(self) -> bool:
        """Whether there is a genuine broker, and a client."""
        return JAVA in self._starts

    def all(self, chosen: list[Scenario]) -> list[Outcome]:
        """Return what was measured."""
        outcomes: list[Outcome] = []
        if self.with_java:
            if START in chosen and not self._smoke:
                outcomes += self._said(START, self._start_rounds())
            loads = [one for one in chosen if one in SCENARIOS]
            if loads or IDLE in chosen:
                outcomes += self._loads(loads, chosen)
        if HELD in chosen:
            outcomes += self._said(HELD, {OURS: [self._held()]})
        return outcomes

    def _said(self, scenario: Scenario, answers: dict[str, list[dict[str, Any]]]) -> list[Outcome]:
        """Return the outcomes of a scenario, and show them to who watches."""
        outcomes = [Outcome(scenario, one, counts=not self._smoke) for one in scenario.measures]
        print(f"{scenario.name}: {scenario.claim}", file=sys.stderr)
        for outcome in outcomes:
            for side, rounds in answers.items():
                outcome.figures[side] = [outcome.measure.figure(each, 0) for each in rounds]
            print(f"  {report.one_line(outcome)}", file=sys.stderr, flush=True)
        return outcomes

    def _turns(self) -> Iterator[str]:
        """Yield the side whose turn it is; whoever comes second finds what the first one left."""
        for number in range(self._rounds):
            yield from _SIDES if number % 2 == 0 else reversed(_SIDES)

    def _start_rounds(self) -> dict[str, list[dict[str, Any]]]:
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in _SIDES}
        for side in self._turns():
            with self._starts[side]() as broker:
                answers[side].append({"seconds": broker.server.ready_s})
        return answers

    def _loads(self, loads: list[Scenario], chosen: list[Scenario]) -> list[Outcome]:
        """Run what the client does; both brokers and the client live for all scenarios."""
        outcomes: list[Outcome] = []
        memory: dict[str, list[dict[str, Any]]] = {side: [] for side in _SIDES}
        with contextlib.ExitStack() as stack:
            brokers = {side: stack.enter_context(self._starts[side]()) for side in _SIDES}
            command = [java_tool("java"), *self._jvm, "-cp", jars(), str(_LOAD)]
            client = stack.enter_context(LineProcess(command))
            if self._warm_up_millis:
                self._warm_up(brokers, client)
            for scenario in loads:
                outcomes += self._said(scenario, self._rounds_of(scenario, brokers, client))
                for side, broker in brokers.items():
                    pid = broker.server.pid
                    memory[side].append({name: memory_mb(pid, name) for name in _MEMORIES})
            if MEMORY in chosen and loads:
                outcomes += self._said(MEMORY, memory)
            if IDLE in chosen:
                idle = {side: [{"idle": self._idle(brokers[side].server.pid)}] for side in _SIDES}
                outcomes += self._said(IDLE, idle)
        return outcomes

    def _warm_up(self, brokers: dict[str, Broker], client: LineProcess) -> None:
        """Have the compilers of Java see the calls: its client's, and its broker's."""
        for spec in ({"threads": 16, "batch": 1}, {"threads": 8, "batch": 16}):
            for side in (*_SIDES, *_SIDES):
                name_server = brokers[side].name_server
                client.ask(
                    "send", nameServer=name_server, topic="warm-up", bodySize=128,
                    millis=self._warm_up_millis // 4, **spec,
                )  # fmt: skip
        for side in _SIDES:
            self._consume(client, brokers[side], "warm-up", {"messages": 50_000})

    def _consume(
        self, client: LineProcess, broker: Broker, topic: str, spec: dict[str, Any]
    ) -> dict[str, Any]:
        """Have a new group read a topic."""
        return client.ask("consume", nameServer=broker.name_server, topic=topic, **spec)

    def _rounds_of(
        self, scenario: Scenario, brokers: dict[str, Broker], client: LineProcess
    ) -> dict[str, list[dict[str, Any]]]:
        spec = specification(scenario, smoke=self._smoke, millis=self._millis)
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in _SIDES}
        for side in _SIDES:
            name_server = brokers[side].name_server
            if scenario.command == "consume":
                client.ask("fill", nameServer=name_server, topic=scenario.name, **spec)
            elif not self._smoke:
                short = {**spec, "millis": self._millis // 4}
                client.ask(scenario.command, nameServer=name_server, topic="short", **short)
        for number, side in enumerate(self._turns()):
            # Of both, each round has its own: what is there would be read first.
            topic = f"{scenario.name}-{number}" if scenario.command == "both" else scenario.name
            ask = {**spec, "nameServer": brokers[side].name_server, "topic": topic}
            pids = brokers[side].server.pid, client.pid
            before = [cpu_s(pid) for pid in pids]
            answer = client.ask(scenario.command, **ask)
            for name, pid, begin in zip(("broker", "client"), pids, before, strict=True):
                spent_us = (cpu_s(pid) - begin) * 1e6
                answer[f"{name}Microseconds"] = spent_us / answer["requests"]
            answers[side].append(answer)
        return answers

    def _idle(self, pid: int) -> float:
        """Return the milliseconds of processor time per second of a process that has no work."""
        seconds = 0.1 if self._smoke else 5.0
        time.sleep(seconds)  # it may have something to finish
        begin = cpu_s(pid)
        time.sleep(seconds)
        return max(cpu_s(pid) - begin, TICK_S) * 1000 / seconds

    def _held(self) -> dict[str, Any]:
        spec = specification(HELD, smoke=self._smoke, millis=0)
        command = [sys.executable, "-m", "bench.serving.held"]
        with contextlib.ExitStack() as stack:
            # Small files of queues: what 500 of them reserve on the disk is not measured.
            broker = stack.enter_context(self._starts[OURS](mappedFileSizeConsumeQueue=20_000))
            found = os.pathsep.join(map(str, (machine.ROOT, machine.ROOT / "src")))
            client = stack.enter_context(
                LineProcess(
                    [*command, "127.0.0.1", str(broker.port)],
                    environment={**os.environ, "PYTHONPATH": found},
                )
            )
            pid = broker.server.pid
            answer = client.ask("hold", **spec)
            idle = self._idle(pid)
            answer |= client.ask("wake", **spec)
            return {**answer, "idle": idle, "VmRSS": memory_mb(pid)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/broker", description="Load our broker and the genuine one, in turn."
    )
    parser.add_argument("names", nargs="*", help="names, or beginnings of names; all by default")
    parser.add_argument("--list", action="store_true", help="show the scenarios")
    parser.add_argument(
        "--smoke", action="store_true", help="a short run; its figures mean nothing"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds per side")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round of sends")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds for each side")
    parser.add_argument("--cores", default="0,1", help="on which brokers and client run")
    parser.add_argument("--awake", action="store_true", help="keep idle cores from halting")
    parser.add_argument(
        "--directory", default=tempfile.gettempdir(), help="where the stores are made and removed"
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results")
    return parser
