"""One side of a comparison: a checkout's own Python with a session of Spark, which runs jobs.

``python _child.py CHECKOUT STORE SCRATCH CORES``: a line with a scenario's name runs it once, and
the answer is a line of JSON. It stands alone, so that it runs checkouts that have another harness.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import psutil

Times = dict[tuple[int, float], tuple[float, float]]
"""Of each process, by its id and start: CPU seconds of its own, and of those it waited for."""


def tree_times() -> Times:
    """Return the CPU seconds of this process and its descendants."""
    own = psutil.Process()
    found: Times = {}
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
            key = process.pid, process.create_time()
        except psutil.NoSuchProcess:
            continue
        found[key] = times.user + times.system, times.children_user + times.children_system
    return found


def spent_cpu_s(before: Times, after: Times) -> float:
    """Return the CPU seconds between two looks.

    A process that ended in between takes nothing away. One that was waited for stands in its
    parent's seconds as a whole, so what it had used before is taken off those; one that nobody
    waited for (a worker whose daemon Spark ended) is lost with what it used since.
    """
    nothing = (0.0, 0.0)
    own = sum(times[0] - before.get(key, nothing)[0] for key, times in after.items())
    waited = sum(times[1] - before.get(key, nothing)[1] for key, times in after.items())
    gone = sum(sum(times) for key, times in before.items() if key not in after)
    return own + (waited - gone if waited >= gone else waited)


def main() -> None:
    checkout, store, scratch = map(Path, sys.argv[1:4])
    cores = int(sys.argv[4])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a job prints is no answer
    sys.path[:0] = [str(checkout), str(checkout / "tests")]
    from rocketstore.pipeline import session  # noqa: PLC0415 - of the checkout
    from support.s3_server import CREDENTIALS  # noqa: PLC0415 - as above

    os.environ.update(CREDENTIALS)  # before Spark starts, whose workers have its environment

    began = time.perf_counter()
    spark = session(os.environ.get("BENCH_MASTER", f"local[{cores}]"))
    spark.sparkContext.setLogLevel("ERROR")
    jobs = {}

    def answer(**values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    answer(started_s=time.perf_counter() - began)
    for name in map(str.strip, sys.stdin):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        if name not in jobs:
            try:
                module = importlib.import_module(f"bench.pipeline.{name}")
            except ModuleNotFoundError:
                answer(missing=True)
                continue
            jobs[name] = module.prepare(spark, store, scratch)
        before, began = tree_times(), time.perf_counter()
        figures = jobs[name]()
        wall_s = time.perf_counter() - began
        told = figures if isinstance(figures, dict) else {}
        answer(wall_s=wall_s, cpu_s=spent_cpu_s(before, tree_times()), figures=told)
    spark.stop()


if __name__ == "__main__":
    main()
