"""The archive: every byte of the log to Parquet, sorted, by topic and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from bench.pipeline import SPLIT_BYTES, in_pool
from rocketstore.pipeline import archive
from rocketstore.pipeline.jobs.archive.job import archive_with
from rocketstore.pipeline.jobs.archive.task import TaskResult, archive_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rocketstore.pipeline.jobs.archive.plan import ArchiveTask


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    def job() -> None:
        result = archive(spark, store, scratch / "archive", max_split_bytes=SPLIT_BYTES)
        assert result.records, "the store has messages"

    return job


def prepare_plain(store: Path, scratch: Path, cores: int) -> Callable[[], object]:
    def run(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        return in_pool(_result, tasks, cores)

    def job() -> None:
        archive_with(run, store, scratch / "archive", max_split_bytes=SPLIT_BYTES)

    return job


def _result(task: ArchiveTask) -> TaskResult:
    (batch,) = archive_task(task)
    return msgspec.json.decode(str(batch.column(0)[0]), type=TaskResult)
