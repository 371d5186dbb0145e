"""A driver on a cluster of machines: ``python -m support.spark_works MASTER HOST URI SHARED``.

It answers JSON lines (`line_process`): each command is a method of `Works`, and the answer is what
came out and which executors were lost. The store is on an object store; `SHARED` is a directory
that all machines reach, as NFS would be, for what needs one. All else is on the driver's own disk.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketstore import StoreConfig, pipeline
from support.held_tasks import DAEMON, HELD_TASKS
from support.patience import START_S

SPLIT_BYTES = 65_536
LOST_AFTER_S = 10
"""After so long without a word an executor counts as lost; 120 are Spark's own."""

SETTINGS = {
    "spark.driver.extraJavaOptions": "-Dnothing=0",
    "spark.executor.heartbeatInterval": "2s",
    "spark.executor.memory": "512m",
    "spark.network.timeout": f"{LOST_AFTER_S}s",
    "spark.network.timeoutInterval": "2s",
    "spark.python.daemon.module": DAEMON,
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.sql.shuffle.partitions": "4",
    "spark.storage.blockManagerHeartbeatTimeoutMs": f"{LOST_AFTER_S}s",
    "spark.task.maxFailures": "8",
    "spark.ui.enabled": "false",
}
PLACES = ("physicalOffset", "topic", "queueId", "queueOffset", "bodyCRC")
NUMBERS = 600
NOW_MS = 1_800_000_000_000
QUEUES = 4
CONFIG = StoreConfig(mapped_file_size_consume_queue=2000, max_hash_slot_num=500, max_index_num=2000)
"""The sizes of the golden stores, which an archive does not know."""


class Works:
    """What may run on Spark; each returns what JSON can say of its outcome.

    What is written has the name `out`, on the object store or in the shared directory.
    """

    def __init__(self, spark: Any, uri: str, shared: str) -> None:
        self._spark, self._uri, self._shared = spark, uri, shared

    def read(self, out: str) -> Any:
        """Rows of a table, through a shuffle."""
        frame = self._options(self._spark.read).load(self._at("store")).select(*PLACES)
        return frame.repartition(4, "topic").sort("physicalOffset").toArrow().to_pylist()

    def stream(self, out: str) -> Any:
        """Rows of each batch of a stream."""
        batches: list[Any] = []

        def note(rows: Any, _: int) -> None:
            batches.append(rows.select(*PLACES).toArrow().to_pylist())

        self._run(self._followed().writeStream.foreachBatch(note), out)
        return batches

    def sink(self, out: str) -> None:
        """Numbers, written once."""
        self._write(f"{self._shared}/{out}")

    def stream_sink(self, out: str) -> None:
        """The store's bodies, from a stream into another store."""
        rows = self._followed().select("body", "queueId")
        writer = rows.writeStream.format("rocketstore").option("path", f"{self._shared}/{out}")
        self._run(writer.option("topic", "copied").option("sinkId", out), out)

    def audit(self, out: str | None) -> Any:
        """The findings of a damaged store, and written as Parquet as well."""
        target = out and f"{self._shared}/{out}"
        found = pipeline.audit(
            self._spark, self._at("hurt"), target, max_split_bytes=SPLIT_BYTES, now_ms=NOW_MS
        )
        return found.to_dict()

    def prove(self, out: str) -> Any:
        """What a rebuild would come to."""
        return pipeline.prove_rebuild(
            self._spark, self._at("store"), max_split_bytes=SPLIT_BYTES
        ).to_dict()

    def archive(self, out: str) -> Any:
        """Tables on the object store."""
        return self._archive(self._at(out))

    def restore(self, out: str) -> Any:
        """A store on the object store, from an archive there."""
        return pipeline.restore(
            self._spark, self._at("archive"), self._at(out), config=CONFIG
        ).records

    def rebuild(self, out: str) -> Any:
        """Queues and index on the object store."""
        report = pipeline.rebuild(
            self._spark, self._at("store"), target=self._at(out), max_split_bytes=SPLIT_BYTES
        )
        return report.record_count

    def report(self, out: str) -> Any:
        """A page and tables."""
        return self._report(f"{self._shared}/{out}")

    def unshared(self, out: str) -> dict[str, str]:
        """What each says that is to write to a disk of which every machine has its own."""
        place = str(Path.cwd() / out)
        tried: dict[str, Callable[[], Any]] = {
            "sink": lambda: self._write(f"{place}/sink"),
            "audit": lambda: pipeline.audit(self._spark, self._at("hurt"), f"{place}/audit"),
            "report": lambda: self._report(f"{place}/report"),
            "archive": lambda: self._archive(f"{place}/archive"),
            "restore": lambda: pipeline.restore(self._spark, self._at("archive"), f"{place}/again"),
            "rebuild": lambda: pipeline.rebuild(
                self._spark, self._at("store"), target=f"{place}/new"
            ),
        }
        return {name: _said(work) for name, work in tried.items()}

    def _at(self, name: str) -> str:
        return self._uri.replace("NAME", name)

    def _options(self, reader: Any) -> Any:
        return reader.format("rocketstore").option("maxSplitBytes", SPLIT_BYTES)

    def _followed(self) -> Any:
        stream = self._options(self._spark.readStream).option("startingOffsets", "earliest")
        return stream.option("maxOffsetsPerTrigger", 1000).load(self._at("store"))

    def _run(self, writer: Any, out: str) -> None:
        place = f"file://{Path.cwd()}/checkpoint-{out}"
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()

    def _write(self, target: str) -> None:
        numbers = self._spark.range(0, NUMBERS, 1, 12)
        body, queue = "cast(cast(id AS STRING) AS BINARY) body", f"cast(id % {QUEUES} AS INT)"
        rows = numbers.selectExpr(body, f"{queue} queueId")
        writer = rows.write.format("rocketstore").mode("append").option("topic", "numbers")
        writer.option("sinkId", "numbers").option("batchId", "1").save(target)

    def _archive(self, target: str) -> int:
        made = pipeline.archive(self._spark, self._at("store"), target, max_split_bytes=SPLIT_BYTES)
        return made.records

    def _report(self, target: str) -> int:
        made = pipeline.report(
            self._spark, self._at("hurt"), target, max_split_bytes=SPLIT_BYTES, now_ms=NOW_MS
        )
        return made.summary["messages"]


class Executors:
    """Those of a session, as the driver knows them."""

    def __init__(self, spark: Any, count: int) -> None:
        self._context, self._count = spark.sparkContext, count

    def wait(self) -> set[str]:
        """Wait until there are as many as there should be; return their addresses."""
        end = time.monotonic() + START_S
        while len(found := self.addresses()) != self._count:
            assert time.monotonic() < end, f"expected {self._count} executors, found {found}"
            time.sleep(0.1)  # between two looks
        return found

    def addresses(self) -> set[str]:
        """Return host and port of each, which another one on the same machine does not have."""
        every = self._context._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ").split()
        own = self._context.getConf().get("spark.driver.host")
        return {one for one in every if one.partition(":")[0] != own}

    def tell_when_all_work(self, mark: Path, hold: Path, is_over: threading.Event) -> None:
        """Make the file `mark` as soon as every executor has a task; each takes one at a time.

        Until then tasks are held, except the last ones of a stage, which are too few.
        """
        tracker = self._context.statusTracker()
        while not is_over.wait(0.02):
            now = time.time_ns()
            found = map(tracker.getStageInfo, tracker.getActiveStageIds())
            stages = [stage for stage in found if stage]
            if sum(stage.numActiveTasks for stage in stages) >= self._count:
                mark.touch()
                return
            left = sum(stage.numTasks - stage.numCompletedTasks for stage in stages)
            if 0 < left < self._count:
                os.utime(hold, ns=(now, now))


def main(master: str, host: str, uri: str, shared: str) -> None:
    """Do what is asked for until the input ends."""
    given = SETTINGS | {"spark.driver.host": host, "spark.driver.bindAddress": host}
    settings = {name.replace(".", "__"): value for name, value in given.items()}
    spark = pipeline.session(master, **settings)
    works, executors = Works(spark, uri, shared), Executors(spark, 2)
    hold = Path(os.environ[HELD_TASKS])
    for line in sys.stdin:
        asked = json.loads(line)
        mark, is_over = Path(asked["mark"]), threading.Event()
        before = executors.wait()
        hold.touch()
        watching = (mark, hold, is_over)
        watch = threading.Thread(target=executors.tell_when_all_work, args=watching, daemon=True)
        watch.start()
        answer: dict[str, Any] = {"ok": True}
        try:
            answer["outcome"] = getattr(works, asked["cmd"])(asked["out"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            answer = {"ok": False, "error": str(error)}
        is_over.set()
        hold.unlink(missing_ok=True)
        watch.join()
        answer["lost"] = sorted(before - executors.addresses())
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _said(work: Callable[[], Any]) -> str:
    try:
        return f"no error, but {work()}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
        return str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
