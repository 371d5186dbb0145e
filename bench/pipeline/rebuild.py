"""The rebuild: queues and index made again from the log, and put in the place of the old ones."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from bench.pipeline import SPLIT_BYTES
from rocketstore.pipeline.jobs.rebuild.rebuild_job import rebuild

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketstore.pipeline.jobs.rebuild.rebuild_job import RebuildReport


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    del scratch

    def job() -> None:
        _check(store, rebuild(spark, store, max_split_bytes=SPLIT_BYTES))

    return job


def _check(store: Path, report: RebuildReport) -> None:
    assert report.entry_count == report.record_count
    assert not report.damage
    assert report.kept is not None
    shutil.rmtree(store / report.kept)
