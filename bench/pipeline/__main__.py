"""``python -m bench.pipeline audit --log-gib 4 --before ../other``: scenarios on one store."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import psutil

from bench import machine
from bench.pipeline import GB, build_store, scenario_names, written_bytes
from rocketstore.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
SAMPLE_S: Final = 0.1
"""Between looks at how much memory workers have."""


class Run(NamedTuple):
    """What one run of a job cost, and what it says itself."""

    cpu_s: float
    wall_s: float
    worker_bytes: int
    figures: dict[str, float]


class Side:
    """A checkout with a session of its own, in which jobs run when they are asked for.

    Attributes
    ----------
    started_s
        How long the session took to start.
    """

    def __init__(self, checkout: Path, store: Path, scratch: Path, cores: int) -> None:
        python = checkout / ".venv" / "bin" / "python"
        child = Path(__file__).with_name("_child.py")
        self._process = subprocess.Popen(
            [
                str(python if python.exists() else sys.executable),
                str(child),
                str(checkout),
                str(store),
                str(scratch),
                str(cores),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.started_s = float(self._answer()["started_s"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, scenario: str) -> Run | None:
        """Run a scenario once; None where this checkout has none of that name."""
        assert self._process.stdin is not None
        ended = threading.Event()
        most: list[int] = [0]
        watcher = threading.Thread(target=self._watch, args=(ended, most))
        watcher.start()
        try:
            print(scenario, file=self._process.stdin, flush=True)
            found = self._answer()
        finally:
            ended.set()
            watcher.join()
        if "missing" in found:
            return None
        return Run(found["cpu_s"], found["wall_s"], most[0], found.get("figures", {}))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a job failed: run its scenario alone, by bench/pipeline/_child.py")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _watch(self, ended: threading.Event, most: list[int]) -> None:
        own = psutil.Process(self._process.pid)
        while not ended.wait(SAMPLE_S):
            for process in own.children(recursive=True):
                with contextlib.suppress(psutil.Error):  # one that ended meanwhile
                    if "pyspark.worker" in process.cmdline():
                        most[0] = max(most[0], process.memory_info().rss)


def main() -> None:
    given = _arguments()
    if given.list:
        print("\n".join(scenario_names()))
        return
    directory = Path(tempfile.mkdtemp(prefix="rocketstore-bench-", dir=given.directory))
    try:
        store = given.store or directory / "store"
        if given.store is None:
            build_store(store, int(given.log_gib * GiB), body_bytes=given.body)
        rows = list(_rows(given, store, directory))
        if given.save is not None:
            _save(given, rows, directory)
    finally:
        shutil.rmtree(directory)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="default: all")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    parser.add_argument("--log-gib", type=float, default=4.0, help="bytes of log to make")
    parser.add_argument("--body", type=int, default=1024, help="bytes of a message's body")
    parser.add_argument("--store", type=Path, help="a store to read instead of making one")
    parser.add_argument("--repeats", type=int, default=3, help="runs that count, after one")
    parser.add_argument("--directory", help="where the store is made; default: temporary")
    parser.add_argument("--cores", default="2", help="of each side; 1,2 compares the two")
    parser.add_argument("--before", type=Path, help="another checkout, run in turn with this one")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    return parser.parse_args()


def _rows(given: argparse.Namespace, store: Path, directory: Path) -> Iterator[dict[str, Any]]:
    """Run every scenario on every side in turn; yield and print what each cost."""
    log_bytes = written_bytes(store)
    here = Path(__file__).resolve().parents[2]
    print(f"{log_bytes:,} bytes of log in {len(list(store.glob('commitlog/*')))} files")
    with contextlib.ExitStack() as stack:
        sides = {}
        for cores in map(int, given.cores.split(",")):
            for name, checkout in (("before", given.before), ("now", here)):
                if checkout is not None:
                    key = f"{name}, {cores} core{'s' * (cores > 1)}"
                    scratch = directory / key.replace(", ", "-").replace(" ", "")
                    side = Side(checkout.resolve(), store, scratch, cores)
                    sides[key] = stack.enter_context(side)
                    print(f"{key}: session started in {side.started_s:.1f} s")
        for scenario in given.scenarios or scenario_names():
            runs: dict[str, list[Run]] = {key: [] for key in sides}
            for _ in range(given.repeats + 1):
                for key, side in sides.items():
                    found = side.run(scenario)
                    runs[key] += [] if found is None else [found]
            for key, measured in runs.items():
                if measured:
                    row = _row(scenario, key, measured, log_bytes)
                    print(_line(row), flush=True)
                    for name, figure in measured[-1].figures.items():
                        print(f"    {name}: {figure}", flush=True)
                    yield row


def _row(scenario: str, side: str, runs: list[Run], log_bytes: int) -> dict[str, Any]:
    counted = runs[1:] or runs
    return {
        "scenario": scenario,
        "side": side,
        # The least: what disturbs can only add.
        "cpuSecondsPerGb": min(run.cpu_s for run in counted) * GB / log_bytes,
        "spread": max(run.cpu_s for run in counted) / min(run.cpu_s for run in counted),
        "wallSeconds": statistics.median(run.wall_s for run in counted),
        "gbPerSecond": log_bytes / statistics.median(run.wall_s for run in counted) / GB,
        "firstRunCpuSeconds": runs[0].cpu_s,
        "workerMiB": max(run.worker_bytes for run in runs) // MiB,
        "runs": [run._asdict() for run in runs],
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['scenario']:<16} {row['side']:<16} {row['cpuSecondsPerGb']:6.2f} CPU s/GB  "
        f"spread {row['spread']:4.2f}  wall {row['wallSeconds']:6.1f} s = "
        f"{row['gbPerSecond']:5.2f} GB/s  first run {row['firstRunCpuSeconds']:5.1f} CPU s  "
        f"worker {row['workerMiB']:>4} MiB"
    )


def _save(given: argparse.Namespace, rows: list[dict[str, Any]], directory: Path) -> None:
    report: dict[str, Any] = {
        "machine": machine.describe(directory),
        "versions": machine.versions("java"),
        "commit": machine.commit(),
        "bodyBytes": given.body,
        "figures": rows,
    }
    target = RESULTS / f"{given.save}.json"
    target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"saved {target}")


if __name__ == "__main__":
    main()
