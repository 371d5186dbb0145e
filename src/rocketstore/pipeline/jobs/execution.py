"""Spread tasks over Spark's workers, classic or Connect; their results are a DataFrame.

A task is any picklable value; the work on it is a function of this package, so that a worker finds
it by name. Each task is sent in a row of its own, so the bytes sent to a worker grow with its task
and not with the number of tasks.
"""

from __future__ import annotations

import pickle
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rocketstore import errors
from rocketstore.errors import ConfigError, RocketStoreError, SparkJobError
from rocketstore.pipeline.columns import arrow_schema
from rocketstore.pipeline.environment import plain_errors
from rocketstore.pipeline.planning import MOST_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]

_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w+Error): (.+)", re.MULTILINE)
_LAST_LINES: Final = re.compile(r"^[ \t].*\n((?:\w+\.)*\w+: .+)", re.MULTILINE)
"""The last line of a traceback in a message of Spark's; ``ArrowInvalid`` is not called an error."""


def map_tasks(
    spark: SparkSession, tasks: Sequence[Any], work: Callable[[Any], Batches], schema: str
) -> DataFrame:
    """Return what `work` yields of every task as a DataFrame; nothing runs before it is used.

    `work` is a module-level function of this package, run on workers. It may run twice for one task
    (a retry, or speculation), also at the same time. `schema` is Spark DDL. An error of a worker
    reaches the caller of an action in its own words within `plain_failure`.
    """

    def apply(batches: Batches) -> Batches:
        for pickled in (one for batch in batches for one in batch.column("task")):
            task = pickle.loads(pickled.as_py())  # noqa: S301 - this package's own driver wrote it
            yield from work(task)

    return map_batches(task_rows(spark, tasks), apply, schema)


def map_batches(frame: DataFrame, work: Callable[[Batches], Batches], schema: str) -> DataFrame:
    """Return what `work` makes of the rows of each partition, in their order; see `map_tasks`."""
    columns = arrow_schema(schema)

    def apply(batches: Batches) -> Batches:
        with plain_errors():
            # Spark interprets a batch by the schema, whatever the batch's own types are.
            yield from (rows.cast(columns) for rows in work(batches))

    return frame.mapInArrow(apply, _struct(columns))


def aggregated(frame: DataFrame, keys: Sequence[str], **made: str) -> DataFrame:
    """Return what is `made` of the rows with equal `keys`, by SQL, after these."""
    # A session may drop the columns of keys (spark.sql.retainGroupColumns), not copies of them.
    from pyspark.sql import functions as f  # noqa: PLC0415 - needs PySpark

    own = [f.col(key).alias(f"of {key}") for key in keys]
    columns = [f.expr(sql).alias(name) for name, sql in made.items()]
    found = frame.groupBy(*keys).agg(*own, *columns).drop(*keys)
    return found.withColumnsRenamed({f"of {key}": key for key in keys})


def row_batch(rows: Iterable[Iterable[Any]], schema: str) -> pa.RecordBatch:
    """Return rows, each with its values in the order of a schema's columns, as a batch."""
    columns = zip(arrow_schema(schema), zip(*rows, strict=True), strict=True)
    arrays = [pa.array(values, field.type) for field, values in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


def task_rows(spark: SparkSession, tasks: Sequence[object]) -> Any:
    """Return a DataFrame with a row for each task, in partitions of one, or of many in a row."""
    count = max(1, min(len(tasks), MOST_TASKS))
    numbers = pa.array((at * count // len(tasks) for at in range(len(tasks))), pa.int32())
    pickled = pa.array([pickle.dumps(task, pickle.HIGHEST_PROTOCOL) for task in tasks], pa.binary())
    rows = pa.table({"number": numbers, "task": pickled})
    return arrow_frame(spark, rows).repartitionById(count, "number")


def arrow_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a DataFrame; Spark Connect takes no empty one without its schema."""
    try:
        return spark.createDataFrame(table, _struct(table.schema))
    except ValueError as error:  # of pyarrow, which is handed a setting of no limit as it is
        hint = "Spark reads no Python source then either; set it to 10000, its default"
        raise ConfigError(f"{_BATCH} is 0 or less", key=_BATCH, hint=hint) from error


def _struct(columns: pa.Schema) -> Any:
    """Return columns as a type of Spark's; not by DDL, of which a session may reserve words."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - needs PySpark

    return from_arrow_schema(columns)


@contextmanager
def plain_failure() -> Iterator[None]:
    """Raise the error that a worker raised, or a `SparkJobError`, without Spark's wrapping."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs PySpark

    try:
        yield
    except (AttributeError, PySparkException, Py4JError) as error:
        chain, before = [error], error.__context__
        while isinstance(before, (PySparkException, Py4JError)):
            chain, before = [before, *chain], before.__context__
        # What came first is the reason, in PySpark's words, not a clean-up that failed after it.
        first = next((one for one in chain if isinstance(one, PySparkException)), chain[0])
        said = str(first)
        if first is error and isinstance(error, AttributeError) and "'NoneType'" not in said:
            raise  # and that one is of PySpark, whose session was stopped
        while before is not None and not isinstance(before, KeyboardInterrupt):
            before = before.__context__
        if before is not None:  # in whose place PySpark raises what its own clean-up met
            raise before from None
        found = worker_error(said)
        if found is not None:
            raise found from None
        raise SparkJobError(
            f"Spark gave the job up: {_reason(said)}",
            hint="no partial result counts; remove the cause and run it again",
        ) from error


def worker_error(text: str) -> RocketStoreError | None:
    """Return the error of this package in Spark's message `text`, if there is one."""
    for name, message in _RAISED.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, RocketStoreError):
            try:
                return kind(message)
            except TypeError:  # one that takes more than a message
                return RocketStoreError(message)
    return None


def _reason(text: str) -> str:
    """Return the one line of Spark's message that says why."""
    if raised := _LAST_LINES.findall(text) or [*map(": ".join, _RAISED.findall(text))]:
        return str(raised[-1])
    told = re.search(r"Job aborted due to stage failure: .+", text)
    causes = [told[0]] if told else re.findall(r"(?m)^(?:Caused by)?: (?:[\w.$]+: )?(.+)", text)
    return str((causes or text.strip().splitlines()[:1])[-1])
