"""Streams over the whole log, as a log and by its queues, with limits and without; idle triggers.

The CPU seconds of the scenario are those of all queries together; its figures are those of each. A
query costs some seconds before it reads: what one of a dozen messages costs is to be taken off. An
idle trigger finds nothing new at the end of the log; a live one is a message put into a small store
until a batch with it has ended.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline._child import spent_cpu_s, tree_times
from rocketstore import Message, MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS: Final = {"log": {}, "queues": {"subscribePattern": "BenchTopic.*"}}
LIMITS: Final = {"at once": {}, "256 MiB a batch": {"maxBytesPerTrigger": "256m"}}
TRIGGERS: Final = 12


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return a job that streams everything, then waits at the end."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")

    def started(path: Path, name: str, options: dict[str, str], **trigger: Any) -> Any:
        frame = spark.readStream.format("rocketstore").options(**options).load(str(path))
        writer = frame.writeStream.format("noop").trigger(**trigger)
        return writer.option("checkpointLocation", str(scratch / name)).start()

    def whole(path: Path, name: str, options: dict[str, str]) -> dict[str, float]:
        before, began = tree_times(), time.perf_counter()
        query = started(path, name, options | {"startingOffsets": "earliest"}, availableNow=True)
        query.awaitTermination()
        spent = {"CPU s": spent_cpu_s(before, tree_times()), "wall s": time.perf_counter() - began}
        spent["batches"] = sum(one["numInputRows"] > 0 for one in query.recentProgress)
        return {f"{name}: {key}": round(value, 1) for key, value in spent.items()}

    def idle(kind: str) -> dict[str, float]:
        query = started(store, f"idle {kind}", KINDS[kind], processingTime="0 seconds")
        found: list[Any] = []
        try:
            while len(found) < TRIGGERS:
                time.sleep(0.2)
                found += [query.lastProgress] * (query.lastProgress is not None)
        finally:
            query.stop()
        spent = [one["durationMs"] for one in found[2:]]
        return {
            f"idle {kind}: {name} ms": statistics.median(one[name] for one in spent)
            for name in ("latestOffset", "triggerExecution")
        }

    def live(kind: str) -> dict[str, float]:
        root, waits = scratch / f"live-{kind}", []
        with MessageStore.open(root) as writer:
            writer.put(Message(topic="BenchTopic0", body=b"first"), queue_id=0)
            query = started(root, f"live {kind}", KINDS[kind], processingTime="0 seconds")
            try:
                query.processAllAvailable()
                for _ in range(TRIGGERS):
                    began = time.perf_counter()
                    writer.put(Message(topic="BenchTopic0", body=b"next"), queue_id=0)
                    query.processAllAvailable()
                    waits.append(time.perf_counter() - began)
            finally:
                query.stop()
        found = {f"live {kind}: put to row ms": round(statistics.median(waits[2:]) * 1000)}
        return found | whole(root, f"{kind}, a dozen messages", KINDS[kind])

    def job() -> dict[str, float]:
        figures: dict[str, float] = {}
        for kind, choice in KINDS.items():
            for amount, limit in LIMITS.items():
                figures |= whole(store, f"{kind}, {amount}", choice | limit)
            figures |= idle(kind) | live(kind)
        return figures

    return job
