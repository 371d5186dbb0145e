"""Spark's daemon of Python workers whose tasks wait for a test: ``spark.python.daemon.module``.

A task that has come waits while the file `HELD_TASKS` names is there, and older than it: to touch
the file lets those go on that came so far. So what a test does amid a work finds it amid the work,
however long the test itself, or the driver, stands still on a busy machine.
"""

import os
import runpy
import time
from pathlib import Path
from typing import Any

from pyspark import worker

HELD_TASKS = "HELD_TASKS"
"""The variable of the environment."""

DAEMON = "support.held_tasks"

_work = worker.main


def _held(taken: Any, given: Any) -> None:
    taken.peek(1)  # until there is a task
    came_ns, hold = time.time_ns(), Path(os.environ[HELD_TASKS])
    while _is_held(hold, came_ns):
        time.sleep(0.005)
    _work(taken, given)


def _is_held(hold: Path, came_ns: int) -> bool:
    try:
        return hold.stat().st_mtime_ns < came_ns
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    worker.main = _held
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
