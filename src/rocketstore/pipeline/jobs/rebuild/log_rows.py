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
    ROW_SCHEMA,
    ScanFacts,
    scan_log,
)
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rocketstore.pipeline.jobs.rebuild.log_scan import ScanTask

    Write = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_COUNT: Final = f"octet_length(data) div {ENTRY_SIZE_BYTES}"
"""Entries or items of a block."""

_PARTITION_BYTES: Final = 32 * MiB
_PARTITIONS_MIN: Final = 8
_PARTITIONS_MAX: Final = 4096
"""Of the shuffle: how many writers there are, each with some of the targets."""


class KeptPieces(NamedTuple):
    """Pieces whose records are messages, in the order of the log.

    Attributes
    ----------
    starts, items_before
        Of each; items of pieces in front of it.
    block_bytes
        What all their blocks hold.
    items_per_file
        What an index file takes.
    """

    starts: Sequence[int]
    items_before: Sequence[int]
    block_bytes: int
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
        from pyspark.sql import functions as f  # noqa: PLC0415 - needs PySpark

        from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - needs PySpark

        numbers = [pa.array(one, pa.int64()) for one in (kept.starts, kept.items_before)]
        pieces = self._spark.createDataFrame(pa.table(numbers, ["piece", "before"]))
        size, is_item = kept.items_per_file, f"target = X'{INDEX_TARGET.hex()}'"
        item, last = "(before + first)", f"(before + first + {_COUNT} - 1)"
        blocks = (
            self._rows.where("facts IS NULL")
            .join(f.broadcast(pieces), "piece")
            # A block of items at the edge of two files goes to both.
            .selectExpr(
                "*",
                f"explode(CASE WHEN {is_item} THEN sequence({item} div {size}, {last} div {size}) "
                "ELSE array(0L) END) AS number",
            )
            .selectExpr(
                f"CASE WHEN {is_item} THEN concat(target, encode(string(number), 'UTF-8')) "
                "ELSE target END AS target",
                f"CASE WHEN {is_item} THEN {item} ELSE at END AS at",
                "ordinal",
                f"CASE WHEN {is_item} THEN {item} ELSE first END AS first",
                "data",
                "crc",
            )
        )
        if others:
            names = self._spark.createDataFrame(pa.table({"target": pa.array(others, pa.binary())}))
            empty = ("-1L AS at", "0L AS ordinal", "0L AS first", "X'' AS data", "0L AS crc")
            blocks = blocks.unionByName(names.selectExpr("target", *empty))

        def write_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with plain_errors():
                yield from write(batches)

        partitions = min(
            _PARTITIONS_MAX, max(_PARTITIONS_MIN, kept.block_bytes // _PARTITION_BYTES)
        )
        ordered = blocks.repartition(partitions, "target").sortWithinPartitions(
            "target", "at", "ordinal"
        )
        return self._collected(ordered.mapInArrow(write_all, schema))

    def _collected(self, frame: DataFrame) -> pa.Table:
        with plain_failure():
            return frame.toArrow()
