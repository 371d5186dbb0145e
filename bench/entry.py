"""The two commands ``bench/run`` and ``bench/compare``: one command line, with or without Java."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from bench import machine, report
from bench.comparison import Memory, Outcome, Sides, run
from bench.scenario import SCENARIOS, Scenario, select
from support.java_store import CommandFailedError, JavaBuildError, java_command, short_lived

RESULTS = Path(__file__).resolve().parent / "results"
JVM_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
DEFAULT_ROUNDS = 5
BUSY_LOAD = 3.5
"""Load average above which somebody else must be at work too."""


def main(*, with_java: bool) -> int:
    """Run the command line; return the exit code."""
    options = _parser(with_java=with_java).parse_args()
    if options.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:30} {scenario.claim}")
        return 0
    try:
        scenarios = select(options.names)
    except KeyError as unknown:
        print(f"no scenario is named {unknown}; --list shows them", file=sys.stderr)
        return 2
    java = None
    if with_java:
        try:
            java = java_command(*(short_lived() if options.smoke else JVM_OPTIONS))
        except JavaBuildError as missing:
            print(missing, file=sys.stderr)
            return 3
    directory = Path(options.directory)
    rounds = 1 if options.smoke else options.rounds
    about = {
        "date": report.today(),
        "commit": machine.commit(),
        "machine": machine.describe(directory),
        "versions": machine.versions(java[0] if java else None),
        "jvmOptions": list(JVM_OPTIONS) if with_java else None,
        "rounds": rounds,
        "memory": options.memory,
    }
    # Ended from outside, the stores in the temporary directory must go all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    memory = Memory.ANY if options.smoke else Memory(options.memory)
    with Sides(
        directory, java, memory=memory, shared=options.smoke, before=options.before
    ) as sides:
        outcomes, failed = _run_all(scenarios, sides, rounds=rounds, smoke=options.smoke)
    title = "smoke run: the figures mean nothing" if options.smoke else json.dumps(about["machine"])
    report.print_table(outcomes, title=title, with_java=with_java)
    busiest = max((outcome.load_before for outcome in outcomes), default=0.0)
    if busiest > BUSY_LOAD and not options.smoke:
        print(f"the machine was busy (load {busiest:.1f}): measure again", file=sys.stderr)
    if options.save and not options.smoke:
        path = RESULTS / report.default_name(options.memory)
        report.save(outcomes, path, about=about)
        print(f"written to {path}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_all(
    scenarios: list[Scenario], sides: Sides, *, rounds: int, smoke: bool
) -> tuple[list[Outcome], list[str]]:
    """Return what was measured, and the names of the scenarios that failed."""
    outcomes: list[Outcome] = []
    failed: list[str] = []
    for scenario in scenarios:
        print(f"{scenario.name}: {scenario.claim} …", file=sys.stderr, flush=True)
        try:
            measured = run(scenario, sides, rounds=rounds, smoke=smoke)
        except CommandFailedError as failure:
            # The figures of the other scenarios are worth having all the same.
            failed.append(scenario.name)
            print(f"  FAILED: {failure}", file=sys.stderr, flush=True)
            continue
        outcomes += measured
        for outcome in measured:
            print(f"  {report.one_line(outcome)}", file=sys.stderr, flush=True)
    return outcomes, failed


def _parser(*, with_java: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/compare" if with_java else "bench/run",
        description=(
            "Run scenarios on rocketstore and on the genuine Java store, alternately."
            if with_java
            else "Run scenarios on rocketstore."
        ),
    )
    parser.add_argument("names", nargs="*", help="names, or beginnings of names; all by default")
    parser.add_argument("--list", action="store_true", help="show the scenarios")
    parser.add_argument("--smoke", action="store_true", help="small counts, one round, no warm-up")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="rounds per side")
    parser.add_argument(
        "--directory", default=tempfile.gettempdir(), help="where the stores are made and removed"
    )
    parser.add_argument(
        "--memory",
        choices=[memory.value for memory in Memory],
        default=Memory.COLD.value,
        help="state of the free memory before each round (bench/README.md)",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout of this project, with its own .venv, as a further side",
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results")
    return parser
