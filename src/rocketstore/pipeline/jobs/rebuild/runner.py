"""How the work of a rebuild is spread: tasks side by side, and rows that are brought together.

`SparkRunner` does both on Spark's workers. Tests have a runner of their own, which does them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rocketstore.pipeline.jobs.execution import (
    plain_failure,
    run_tasks,
    task_rows,
    unpacked,
    watched,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.execution import Progress

    Work = Callable[[Any], Iterator[pa.RecordBatch]]
    Rows = Iterator[pa.RecordBatch]


class Runner(Protocol):
    """Runs the tasks of a job."""

    def run(self, tasks: Sequence[Any], work: Work, schema: str) -> pa.Table:
        """Run `work` on every task; return all rows."""
        ...

    def exchange(
        self,
        tasks: Sequence[Any],
        emit: Work,
        rows_schema: str,
        write: Callable[[Rows], Rows],
        schema: str,
    ) -> pa.Table:
        """Run `emit` on every task, bring its rows together, and let `write` have them.

        Each call of `write` gets all rows of some targets (the first column), ordered by the first
        three columns.
        """
        ...


class SparkRunner:
    """Runs tasks on Spark's workers.

    Parameters
    ----------
    spark
        The session, classic or Connect.
    progress
        Told of tasks that have ended.
    """

    def __init__(self, spark: SparkSession, progress: Progress | None = None) -> None:
        self._spark = spark
        self._progress = progress

    def run(self, tasks: Sequence[Any], work: Work, schema: str) -> pa.Table:
        """Run `work` on every task; return all rows."""
        return run_tasks(self._spark, tasks, work, schema, done=watched(self._progress, tasks))

    def exchange(
        self,
        tasks: Sequence[Any],
        emit: Work,
        rows_schema: str,
        write: Callable[[Rows], Rows],
        schema: str,
    ) -> pa.Table:
        """Shuffle and sort by Spark; see `Runner.exchange`."""
        from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - needs PySpark

        def emit_all(batches: Rows) -> Rows:
            for task in unpacked(batches):
                with plain_errors():
                    yield from emit(task)

        def write_all(batches: Rows) -> Rows:
            with plain_errors():
                yield from write(batches)

        if not tasks:
            return self.run(tasks, emit, schema)
        rows = task_rows(self._spark, tasks).mapInArrow(emit_all, rows_schema)
        names = rows.columns[:3]
        partitions = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        ordered = rows.repartition(partitions, names[0]).sortWithinPartitions(*names)
        with plain_failure():
            return ordered.mapInArrow(write_all, schema).toArrow()
