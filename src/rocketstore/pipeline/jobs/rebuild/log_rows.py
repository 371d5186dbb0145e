"""What the scan of a log has yielded, held by Spark, and brought together by file.

The rows of `log_scan` are kept on the executors' disks, so the log is read once: the driver asks
for facts and for a few blocks, decides, and lets Spark shuffle the rest to those who write files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure
from rocketstore.pipeline.jobs.rebuild.log_scan import (
    INDEX_TARGET,
    ITEM_DTYPE,
    ROW_SCHEMA,
    ScanFacts,
    scan_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rocketstore.pipeline.jobs.rebuild.log_scan import ScanTask

    Write = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_COUNT: Final = f"octet_length(data) div {ENTRY_SIZE_BYTES}"
"""Entries or items of a block."""


class KeptPieces(NamedTuple):
    """Pieces whose records are messages, in the order of the log.

    Attributes
    ----------
    starts, items_before
        Of each; items of pieces in front of it.
    items_per_file
        What an index file takes.
    """

    starts: Sequence[int]
    items_before: Sequence[int]
    items_per_file: int


class LogRows:
    """The rows of a log.

    Parameters
    ----------
    spark
        The session, classic or Connect.
    tasks
        What is scanned.
    """

    def __init__(self, spark: SparkSession, tasks: Sequence[ScanTask]) -> None:
        from pyspark import StorageLevel  # noqa: PLC0415 - needs PySpark

        self._spark = spark
        rows = map_tasks(spark, tasks, scan_log, ROW_SCHEMA)
        self._rows = rows.persist(StorageLevel.DISK_ONLY)

    def close(self) -> None:
        """Let go of the rows."""
        self._rows.unpersist()

    def facts(self) -> list[ScanFacts]:
        """Return what each task has met; this is when the log is read."""
        table = self._collected(self._rows.where("facts IS NOT NULL").select("facts"))
        return [
            msgspec.msgpack.decode(one.as_buffer(), type=ScanFacts) for one in table.column("facts")
        ]

    def runs(self, ranges: Sequence[tuple[int, int]]) -> pa.Table:
        """Return target, `at`, first queue offset and count of entries that begin in `ranges`."""
        inside = " OR ".join(f"at >= {start} AND at < {stop}" for start, stop in ranges)
        rows = self._rows.where(f"facts IS NULL AND target <> X'{INDEX_TARGET.hex()}'")
        return self._collected(
            rows.where(inside or "false")
            .selectExpr("target", "at", "ordinal", "first", f"{_COUNT} AS count")
            .sort("at", "ordinal")
        )

    def first_times(self, kept: KeptPieces) -> list[int]:
        """Return the store time of the first item of each index file."""
        size = kept.items_per_file
        begun = self._items(kept).selectExpr(
            f"(item + {size - 1}) div {size} AS file", "item", "count", "data"
        )
        found = begun.where(f"file * {size} < item + count").selectExpr(
            "file",
            f"substring(data, int((file * {size} - item) * {ITEM_DTYPE.itemsize}) + 1 + "
            f"{ITEM_DTYPE.itemsize - 8}, 8) AS time",
        )
        rows = self._collected(found.sort("file")).to_pylist()
        return [int.from_bytes(row["time"], "little") for row in rows]

    def write(
        self, kept: KeptPieces, others: Sequence[bytes], write: Write, schema: str
    ) -> pa.Table:
        """Let `write` have the blocks of each target, in the order of the log; return its rows.

        Parameters
        ----------
        others
            Targets that get an empty block in front, whether or not they have any other.
        """
        import pyarrow as pa  # noqa: PLC0415 - an import of this package loads no Arrow

        from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - needs PySpark

        columns = ("target", "at", "ordinal", "first", "data", "crc")
        size = kept.items_per_file
        # A block at the edge of two files goes to both.
        numbers = f"explode(sequence(item div {size}, (item + count - 1) div {size})) AS number"
        items = self._items(kept).selectExpr(numbers, "item", "ordinal", "data", "crc").selectExpr(
            "concat(X'69', encode(cast(number AS STRING), 'UTF-8')) AS target",
            "item AS at", "ordinal", "item AS first", "data", "crc",
        )  # fmt: skip
        entries = self._of_pieces(kept).where(f"target <> X'{INDEX_TARGET.hex()}'")
        empty = pa.table(
            {
                "target": pa.array(others, pa.binary()),
                "at": pa.array([-1] * len(others), pa.int64()),
                "ordinal": pa.array([0] * len(others), pa.int64()),
                "first": pa.array([0] * len(others), pa.int64()),
                "data": pa.array([b""] * len(others), pa.binary()),
                "crc": pa.array([0] * len(others), pa.int64()),
            }
        )
        blocks = entries.select(*columns).unionByName(items)
        if others:
            blocks = blocks.unionByName(self._spark.createDataFrame(empty))

        def write_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with plain_errors():
                yield from write(batches)

        ordered = blocks.repartition("target").sortWithinPartitions("target", "at", "ordinal")
        return self._collected(ordered.mapInArrow(write_all, schema))

    def _items(self, kept: KeptPieces) -> DataFrame:
        """Return blocks of items with the number of their first in the whole log."""
        blocks = self._of_pieces(kept).where(f"target = X'{INDEX_TARGET.hex()}'")
        return blocks.selectExpr("before + first AS item", f"{_COUNT} AS count", "*")

    def _of_pieces(self, kept: KeptPieces) -> DataFrame:
        import pyarrow as pa  # noqa: PLC0415 - as above
        from pyspark.sql import functions as f  # noqa: PLC0415 - needs PySpark

        pieces = pa.table(
            {
                "piece": pa.array(kept.starts, pa.int64()),
                "before": pa.array(kept.items_before, pa.int64()),
            }
        )
        wanted = f.broadcast(self._spark.createDataFrame(pieces))
        return self._rows.where("facts IS NULL").join(wanted, "piece")

    def _collected(self, frame: DataFrame) -> pa.Table:
        with plain_failure():
            return frame.toArrow()
