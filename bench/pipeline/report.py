"""The report: traffic, sizes, latencies, keys and damage, counted, drawn and written.

Every message of the store has a key of its own, which is the dearest case for the top keys.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from bench.pipeline import SPLIT_BYTES
from rocketstore.pipeline.jobs.report.report_job import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    def job() -> None:
        shutil.rmtree(scratch / "report", ignore_errors=True)
        found = report(spark, store, scratch / "report", max_split_bytes=SPLIT_BYTES)
        assert not found.summary["damagedRanges"]

    return job
