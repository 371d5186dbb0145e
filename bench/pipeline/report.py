"""The report: traffic, sizes, latencies, keys and damage, counted, drawn and written.

Every message of the store has a key of its own, which is the dearest case for the top keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.pipeline import SPLIT_BYTES, in_pool
from rocketstore.pipeline.jobs.report.counts import Counts
from rocketstore.pipeline.jobs.report.job import conclude, places_of, report
from rocketstore.pipeline.jobs.report.plan import plan_report
from rocketstore.pipeline.jobs.report.task import count_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyarrow import RecordBatch

    from rocketstore.pipeline.jobs.report.task import ReportTask


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    def job() -> None:
        found = report(spark, store, scratch / "report.html", max_split_bytes=SPLIT_BYTES)
        assert not found.summary["damagedRanges"]

    return job


def prepare_plain(store: Path, scratch: Path, cores: int) -> Callable[[], object]:
    def job() -> None:
        plan = plan_report(str(store), max_split_bytes=SPLIT_BYTES)
        counts = Counts()
        for rows in in_pool(_counted, plan.tasks, cores):
            for batch in rows:
                counts.take_in(batch)
        found = conclude(counts, plan, places_of(plan, scratch / "report.html"))
        assert not found.summary["damagedRanges"]

    return job


def _counted(task: ReportTask) -> list[RecordBatch]:
    return list(count_task(task))
