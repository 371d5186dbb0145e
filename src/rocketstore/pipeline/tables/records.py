"""Tables ``messages`` and ``commitlog``: every intact record of the log, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.pipeline.log_read import intact_records
from rocketstore.pipeline.planning import SplitTask, plan_log
from rocketstore.pipeline.projection import record_batches
from rocketstore.pipeline.selection import select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions

plan = plan_log


def read(
    task: tuple[SplitTask, ...],
    options: ReadOptions,
    schema: Schema,
) -> Iterator[RecordBatch]:
    """Yield the wanted records of a task's byte ranges."""
    for part in task:
        broker = part.store.broker_name
        for columns in intact_records(part, options):
            wanted = select(columns, options, part.queue_ranges, broker)
            if len(wanted):
                yield from record_batches(
                    wanted, schema, broker=broker, decompress=options.decompress_body
                )
