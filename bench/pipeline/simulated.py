"""Logs of 4 TB and of 20 TB that hold hardly anything: what planning and a driver bear.

Every file of 1 GiB has three records and a BLANK to its end, so that all that counts is how many
files there are. The store that is given is left alone: ``--log-gib 0.01 --repeats 0`` will do.
"""

from __future__ import annotations

import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psutil

from rocketstore.pipeline import archive, audit, report
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.planning import plan_log
from rocketstore.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES: Final = {"4 TB": 4096, "20 TB": 20_480}
"""In files of 1 GiB."""


class _Watch:
    """The most memory that this process and the JVM have had at a time."""

    def __init__(self) -> None:
        own = psutil.Process()
        java = [one for one in own.children(recursive=True) if "java" in one.name()]
        self._processes = {"Python MiB": own, "JVM MiB": java[0]}
        self._most = dict.fromkeys(self._processes, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            for name, process in self._processes.items():
                self._most[name] = max(self._most[name], process.memory_info().rss // MiB)

    def stop(self) -> dict[str, int]:
        self._ended.set()
        self._thread.join()
        return self._most


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return a job that plans, queries, audits, reports and archives each log."""
    del store

    def job() -> dict[str, float]:
        figures: dict[str, float] = {}
        for name, file_count in SIZES.items():
            figures |= {f"{name} {key}": value for key, value in _run(file_count).items()}
        return figures

    def _run(file_count: int) -> dict[str, float]:
        from support.sparse_log import make_sparse_log  # noqa: PLC0415 - of the tests

        log = scratch / "log"
        make_sparse_log(log, file_count)
        records = 3 * file_count
        seconds: dict[str, float] = {}

        def timed(name: str, work: Callable[[], Any]) -> Any:
            began = time.perf_counter()
            found = work()
            seconds[f"{name} s"] = round(time.perf_counter() - began, 1)
            return found

        watch = _Watch()
        try:
            tasks = timed("planning", lambda: plan_log(parse_options({"path": str(log)})))
            frame = spark.read.format("rocketstore").option("table", "commitlog").load(str(log))
            assert timed("count", frame.count) == records
            checked = timed("audit", lambda: audit(spark, str(log)))
            assert checked.exit_code == 0, checked
            timed("report", lambda: report(spark, str(log), scratch / "report"))
            kept = timed("archive", lambda: archive(spark, str(log), scratch / "archive"))
            assert (kept.records, kept.end) == (records, file_count * GiB)
        finally:
            memory = watch.stop()
        for directory in ("log", "report", "archive"):
            shutil.rmtree(scratch / directory)
        splits = sum(map(len, tasks))
        return {"splits": splits, "tasks": len(tasks)} | seconds | memory

    return job
