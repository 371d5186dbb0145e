"""A driver of its own that streams into a store until it is killed: ``python sink_driver.py DIR``.

Of batch 0 one task's worker is killed at its first attempt. In batch 1 a task says that it has
staged something, and waits for the end of the process.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS_PER_BATCH = 400
BATCHES = 3
SCHEMA = "body STRING, queueId INT"


def write_source(spark: Any, directory: Path) -> None:
    """Make one Parquet file per batch, which are read in the order of their times."""
    for batch in range(BATCHES):
        first = batch * ROWS_PER_BATCH
        frame = spark.range(first, first + ROWS_PER_BATCH, 1, 1)
        rows = frame.selectExpr("format_string('%06d', id) AS body", "cast(id % 3 AS INT) queueId")
        rows.write.mode("append").parquet(str(directory / "source"))
        for path in (directory / "source").glob("*.parquet"):
            if path.stat().st_mtime > 1_000_000_000:
                os.utime(path, (batch + 1, batch + 1))


def start_query(
    spark: Any,
    directory: Path,
    trouble: Callable[..., Iterator[Any]] | None = None,
    sink_id: str = "numbers",
) -> Any:
    """Start the query over what there is."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    frame = frame.parquet(str(directory / "source")).repartitionByRange(2, "body")
    if trouble is not None:
        frame = frame.mapInArrow(trouble, SCHEMA)
    writer = frame.writeStream.format("rocketstore").option("sinkId", sink_id)
    writer = writer.option("topic", "Numbers").option("mappedFileSizeCommitLog", "16384")
    writer = writer.option("chunkBytes", "2000")
    writer = writer.option("checkpointLocation", str(directory / f"checkpoint-{sink_id}"))
    return writer.trigger(availableNow=True).option("path", str(directory / "store")).start()


def main() -> None:
    """Stream until killed."""
    directory = Path(sys.argv[1])
    from support.spark_session import start_session  # noqa: PLC0415 - as a script only

    def trouble(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            first = int(batch.column(0)[0].as_py()) if batch.num_rows else 0
            if first // ROWS_PER_BATCH == 0 and not (directory / "retried").exists():
                yield batch
                (directory / "retried").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch
            if first // ROWS_PER_BATCH == 1:
                (directory / "reached").touch()
                time.sleep(600)

    spark = start_session(str(directory / "spark"), master="local[2,3]")
    start_query(spark, directory, trouble).awaitTermination()


if __name__ == "__main__":
    main()
