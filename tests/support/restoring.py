"""Restore without Spark: each task pickled as Spark does, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pyarrow as pa

from rocketstore.pipeline.jobs.restore import restore_job
from support.archiving import sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rocketstore.pipeline.jobs.restore.restore_job import RestoreResult


class Frame(NamedTuple):
    """What stands for a DataFrame of what tasks yield."""

    batches: list[pa.RecordBatch]

    def toArrow(self) -> pa.Table:  # noqa: N802 - as Spark has it
        return pa.Table.from_batches(self.batches)


def map_tasks(
    spark: object,
    tasks: Sequence[Any],
    work: Callable[[Any], Iterator[pa.RecordBatch]],
    schema: str,
) -> Frame:
    """Do what `execution.map_tasks` does, in this process."""
    del spark
    names = [column.split(" ")[0] for column in schema.split(", ")]
    batches = [batch for task in tasks for batch in work(sent(task))]
    assert all(batch.schema.names == names for batch in batches)
    empty = pa.RecordBatch.from_pydict({name: pa.array([], pa.int64()) for name in names})
    return Frame(batches or [empty])


def restored(
    archive: Path | str, target: Path | str, *, run: Any = map_tasks, **given: Any
) -> RestoreResult:
    """Restore the log alone: queues and index are made by Spark."""
    with mock.patch.object(restore_job, "map_tasks", run):
        return restore_job.restore(None, archive, target, log_only=True, **given)
