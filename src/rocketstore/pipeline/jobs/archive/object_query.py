"""An archive's messages on an object store as a table for Spark, read through ``pyarrow.fs``.

Spark's own reader would need Hadoop's S3 client, and would see runs that are not committed. Here
the manifests say which files there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.pipeline.files import ArrowFiles, files_at
from rocketstore.pipeline.jobs.archive.layout import MESSAGES, run_name
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.archive.manifest import Manifest
    from rocketstore.pipeline.jobs.archive.place import ArchivePlace

_TASK_BYTES: Final = 64 * MiB
"""Of Parquet files per task."""

_BATCH_ROWS: Final = 2000


class ArchivedFile(NamedTuple):
    """A file of messages, and what its columns do not say."""

    path: str
    topic: str | None
    run: int
    day: int | None


def plan_files(
    archive: ArchivePlace, manifests: Sequence[Manifest]
) -> list[tuple[ArchivedFile, ...]]:
    """Return the files of all runs, some for each task."""
    tasks: list[list[ArchivedFile]] = []
    size = _TASK_BYTES
    for manifest in manifests:
        for file in manifest.files:
            if size + file.size > _TASK_BYTES:
                tasks.append([])
                size = 0
            path = archive.path(MESSAGES, run_name(manifest.run), file.path)
            tasks[-1].append(ArchivedFile(path, file.topic or None, manifest.run, file.day))
            size += file.size
    return [tuple(task) for task in tasks]


def read_rows(
    location: str, files: Sequence[ArchivedFile], names: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files, with the columns of a schema."""
    import pyarrow as pa  # noqa: PLC0415 - on workers only
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    system, _ = files_at(location)
    assert isinstance(system, ArrowFiles), "a disk is read by Spark"
    for file in files:
        beside: dict[str, Any] = {
            "topic": pa.scalar(file.topic, pa.string()),
            "run": pa.scalar(file.run, pa.int32()),
            "day": pa.scalar(file.day, pa.int32()).cast(pa.date32()),
        }
        stored = [name for name in names if name not in beside]
        with (
            system.system.open_input_file(file.path) as source,
            pq.ParquetFile(source, pre_buffer=True) as opened,
        ):
            for batch in opened.iter_batches(_BATCH_ROWS, columns=stored, use_threads=False):
                columns = [
                    pa.repeat(beside[name], batch.num_rows) if name in beside else batch[name]
                    for name in names
                ]
                yield pa.RecordBatch.from_arrays(columns, names=list(names)).cast(schema)


def messages_of_objects(
    spark: SparkSession,
    archive: ArchivePlace,
    manifests: Sequence[Manifest],
    columns: Mapping[str, str],
) -> Any:
    """Return the messages as a DataFrame."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - needs PySpark
    from pyspark.sql.types import StructType  # noqa: PLC0415 - as above

    from rocketstore.pipeline.jobs.execution import (  # noqa: PLC0415 - as above
        task_rows,
        unpacked,
    )
    from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - as above

    ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    struct: Any = StructType.fromDDL(ddl)
    schema = to_arrow_schema(struct, timezone="UTC")
    tasks, location, names = plan_files(archive, manifests), archive.location, list(columns)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in unpacked(batches):
            with plain_errors():
                yield from read_rows(location, task, names, schema)

    return task_rows(spark, tasks).mapInArrow(read, ddl)
