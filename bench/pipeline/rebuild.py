"""The rebuild: queues and index made anew from the log, and put in the place of the old ones."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.pipeline import SPLIT_BYTES, in_pool
from rocketstore.pipeline.jobs.rebuild.job import rebuild, rebuild_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocketstore.pipeline.jobs.rebuild.job import RebuildReport

NOW_MS = 1_700_000_000_000


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    del scratch

    def job() -> None:
        _check(store, rebuild(spark, store, max_split_bytes=SPLIT_BYTES))

    return job


def prepare_plain(store: Path, scratch: Path, cores: int) -> Callable[[], object]:
    del scratch

    def job() -> None:
        runner = _PoolRunner(cores)
        report = rebuild_with(runner, store, max_split_bytes=SPLIT_BYTES, now_ms=NOW_MS)
        _check(store, report)

    return job


def _check(store: Path, report: RebuildReport) -> None:
    assert report.entry_count == report.record_count
    assert not report.damage
    assert report.kept is not None
    shutil.rmtree(store / report.kept)


class _PoolRunner:
    """Runs tasks in a pool of processes."""

    def __init__(self, cores: int) -> None:
        self._cores = cores

    def run(self, tasks: Sequence[Any], work: Any, schema: str) -> pa.Table:
        del schema
        answers = in_pool(_run, [(work, task) for task in tasks], self._cores)
        return pa.Table.from_batches([batch for answer in answers for batch in answer])

    def exchange(self, *_: Any) -> pa.Table:
        raise NotImplementedError


def _run(given: tuple[Any, Any]) -> list[pa.RecordBatch]:
    work, task = given
    return list(work(task))
