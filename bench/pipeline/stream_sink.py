"""The sink of a stream: every message of a store streamed into a new one, in batches of 1 GiB."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from bench.pipeline.sink import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the stream, whose figures are rows, batches, and rows a second of Spark's batches."""

    def write() -> dict[str, float]:
        for name in ("copy", "checkpoint"):
            shutil.rmtree(scratch / name, ignore_errors=True)
        options = {"startingOffsets": "earliest", "maxBytesPerTrigger": "1g", "columns": COLUMNS}
        frame = spark.readStream.format("rocketstore").options(**options).load(str(store))
        writer = frame.writeStream.format("rocketstore").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(scratch / "checkpoint"))
        began = time.perf_counter()
        query = writer.start(str(scratch / "copy"))
        query.awaitTermination()
        took_s = time.perf_counter() - began
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        rows = sum(one["numInputRows"] for one in batches)
        batch_s = sum(one["durationMs"]["triggerExecution"] for one in batches) / 1000
        return {
            "rows": rows,
            "batches": len(batches),
            "rows/s": round(rows / took_s),
            "rows/s of batches": round(rows / batch_s),
        }

    return write
