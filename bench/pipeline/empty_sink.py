"""What a write costs without a sink: ours is replaced by one that takes its rows and drops them.

It is Spark's own part of ``sink``: rows are read, go to the JVM, and come back to Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

from bench.pipeline.sink import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the write."""
    del scratch

    class Dropping(datasource.DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> datasource.WriterCommitMessage:
            for _ in iterator:
                pass
            return datasource.WriterCommitMessage()

    class EmptySink(datasource.DataSource):  # in here: workers get it as a value
        @classmethod
        def name(cls) -> str:
            return "empty"

        def writer(self, *_: object) -> Dropping:  # type: ignore[override]
            return Dropping()

    spark.dataSource.register(EmptySink)

    def write() -> None:
        frame = spark.read.format("rocketstore").option("columns", COLUMNS).load(str(store))
        frame.write.format("empty").mode("append").save()

    return write
