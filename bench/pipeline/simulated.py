"""Logs of terabytes that hold hardly anything: what planning, a driver and Spark bear.

Every file of 1 GiB has some records and a BLANK to its end, so what counts is how many files,
queues and topics there are. A queue file is a hole but for the entries that lead to a record. The
store that is given is left alone: ``--log-gib 0.01 --repeats 0`` will do. SIMULATED=NAME in the
environment chooses one size, of `SIZES` or "triggers", and SIMULATED_JOBS=NAME,NAME its jobs. With
``BENCH_MASTER=local-cluster[2,1,1024]`` executors are other processes than the driver.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from bench.pipeline._child import spent_cpu_s, tree_times
from rocketstore.config import StoreConfig
from rocketstore.pipeline import archive, audit, rebuild, report
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.planning import MOST_TASKS, plan_log
from rocketstore.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Size(NamedTuple):
    """A log: files of 1 GiB, its topics of one queue, and how many messages a queue shows."""

    file_count: int
    topic_count: int = 3
    records_per_file: int = 3
    messages: int = 0


SIZES: Final = {
    "4 TB": Size(4096),
    "20 TB": Size(20_480),
    "10 TB, 10,000 queues": Size(10_240, 10_000),
    "10 TB, 100,000 topics": Size(10_240, 100_000, 10),
    "10 TB, one queue of 10^9": Size(10_240, 1, 3, 10**9),
}
TRIGGERS: Final = 10_000
TRIGGER_TOPICS: Final = 100_000
MOST_DRIVER_MIB: Final = 953
"""1 GB: of Python alone, or with the JVM where that is not the executor as well."""
MOST_HEAP_MIB: Final = 1024
MOST_PLANNING_S: Final = 60

CORES: Final = 100
CPU_S_PER_GB: Final = {
    "count": 0.8, "audit": 1.1, "report": 0.9, "archive": 2.0, "rebuild": 1.2, "stream": 4.0,
}  # fmt: skip
"""What a job costs for each GB of a log that is full (docs/guide/benchmarks.md). The estimate of a
real log assumes that this cost is divided among so many cores, that its storage keeps up with them,
and that what was measured here stays with the driver, whatever the cores, and comes on top."""

QUEUE_FILE_BYTES: Final = 20_000
"""Of a queue that is rebuilt: the usual 6 MB, which are reserved, would be 600 GB of 100,000."""

FROM_PYTHON: Final = "data returned from Python workers"
"""A step of Spark that counts this has its rows from Python."""


class _Watch:
    """The most memory that this process and its JVM have had."""

    def __init__(self) -> None:
        own = psutil.Process()
        java = [one for one in own.children(recursive=True) if "java" in one.name()]
        self._processes = {"Python MiB": own, "JVM MiB": java[0]}
        self._most = dict.fromkeys(self._processes, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            for name, process in self._processes.items():
                self._most[name] = max(self._most[name], process.memory_info().rss // MiB)

    def stop(self) -> dict[str, int]:
        self._ended.set()
        self._thread.join()
        return self._most


class _SparkCounts:
    """What Spark did since the last look: tasks, bytes of shuffles, and rows from Python."""

    def __init__(self, spark: Any) -> None:
        session = spark._jsparkSession  # noqa: SLF001 - only Java tells this
        self._context = session.sparkContext()
        self._queries = session.sharedState().statusStore()
        self._before = self._now()

    def since(self) -> dict[str, int]:
        """Return what came since the last call."""
        before, self._before = self._before, self._now()
        return {name: value - before[name] for name, value in self._before.items()}

    def _now(self) -> dict[str, int]:
        self._context.listenerBus().waitUntilEmpty()
        executors = _listed(self._context.statusStore().executorList(True))  # noqa: FBT003 - Java's
        return {
            "tasks": sum(one.totalTasks() for one in executors),
            "shuffle bytes": sum(one.totalShuffleWrite() for one in executors),
            "rows from Python": sum(
                map(self._python_rows, _listed(self._queries.executionsList()))
            ),
        }

    def _python_rows(self, execution: Any) -> int:
        rows, number = 0, execution.executionId()
        values = self._queries.executionMetrics(number)
        for node in _listed(self._queries.planGraph(number).allNodes()):
            metrics = {one.name(): one.accumulatorId() for one in _listed(node.metrics())}
            found = values.get(metrics.get("number of output rows", -1))
            if FROM_PYTHON in metrics and found.isDefined():
                rows += int(found.get().partition("\n")[0].replace(",", "") or 0)
        return rows


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return a job that plans, queries, audits, reports and archives each log."""
    del store
    chosen = os.environ.get("SIMULATED")

    def job() -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for name, size in SIZES.items():
            if chosen in (None, name):
                make_log(size, scratch / "log")
                found = measure(spark, size, scratch / "log", scratch)
                shutil.rmtree(scratch / "log")
                figures |= {f"{name}: {key}": value for key, value in found.items()}
        return figures | _triggers(scratch) if chosen in (None, "triggers") else figures

    return job


def _topics(size: Size) -> tuple[str, ...]:
    return tuple(f"Topic{number:06}" for number in range(size.topic_count))


def make_log(size: Size, log: Path) -> None:
    """Make a log of some size: a minute for 100,000 topics."""
    from support.sparse_log import far_apart, make_sparse_log  # noqa: PLC0415 - of the tests

    options: dict[str, Any] = {"topics": _topics(size), "records_per_file": size.records_per_file}
    if size.messages:
        options["number_of"] = far_apart(size.messages, size.records_per_file * size.file_count)
    make_sparse_log(log, size.file_count, **options)


def _jobs(
    spark: Any, size: Size, log: Path, scratch: Path
) -> dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]]:
    """Return each job, and what says of its outcome whether it is right."""
    records = size.records_per_file * size.file_count
    frame = spark.read.format("rocketstore").option("table", "commitlog").load(str(log))
    return {
        "count": (frame.count, lambda found: found == records),
        # Where queue offsets are apart entries are missing, which is what an audit finds.
        "audit": (
            lambda: audit(spark, str(log)),
            lambda found: found.exit_code == 0 or bool(size.messages),
        ),
        "report": (
            lambda: report(spark, str(log), scratch / "report"),
            lambda found: found.summary["messages"] == records,
        ),
        "archive": (
            lambda: archive(spark, str(log), scratch / "archive"),
            lambda found: (found.records, found.end) == (records, size.file_count * GiB),
        ),
        "rebuild": (
            lambda: rebuild(
                spark,
                str(log),
                target=scratch / "rebuild",
                config=StoreConfig(mapped_file_size_consume_queue=QUEUE_FILE_BYTES),
            ),
            lambda found: found.entry_count == records,
        ),
        "stream": (
            lambda: _streamed(spark, log, scratch / "stream"),
            lambda found: found == records,
        ),
    }


def measure(spark: Any, size: Size, log: Path, scratch: Path) -> dict[str, Any]:
    """Return what the chosen jobs cost with a log of some size."""
    gigabytes = size.file_count * GiB / 1e9
    figures: dict[str, Any] = {}
    counts = _SparkCounts(spark)

    def planned(name: str, **given: str) -> int:
        began = time.process_time()
        tasks = plan_log(parse_options({"path": str(log), **given}))
        figures[f"{name}, CPU s"] = round(time.process_time() - began, 2)
        assert figures[f"{name}, CPU s"] < MOST_PLANNING_S, figures
        assert len(tasks) <= MOST_TASKS, len(tasks)
        return len(tasks)

    def measured(name: str, work: Callable[[], Any]) -> Any:
        before, began = tree_times(), time.perf_counter()
        found = work()
        took = time.perf_counter() - began
        figures[f"{name}, CPU s"] = round(spent_cpu_s(before, tree_times()), 1)
        figures.update({f"{name}, {key}": of for key, of in counts.since().items()})
        figures[f"{name}, wall s"] = round(took, 1)
        if name in CPU_S_PER_GB:
            whole = took + CPU_S_PER_GB[name] * gigabytes / CORES
            figures[f"{name}, a full log on {CORES} cores, estimated s"] = round(whole)
        return found

    jobs = _jobs(spark, size, log, scratch)
    chosen = os.environ.get("SIMULATED_JOBS", ",".join(jobs)).split(",")
    watch = _Watch()
    try:
        figures["tasks of a plan"] = planned("planning")
        planned("planning a topic", subscribe=_topics(size)[-1])
        for name in chosen:
            work, is_right = jobs[name]
            found = measured(name, work)
            assert is_right(found), (name, found)
    finally:
        memory = watch.stop()
    for directory in ("report", "archive", "rebuild", "stream"):
        shutil.rmtree(scratch / directory, ignore_errors=True)
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory() // MiB  # noqa: SLF001 - as above
    assert heap <= MOST_HEAP_MIB, "a driver with a larger heap shows nothing"
    is_driver_alone = "cluster" in spark.sparkContext.master
    of_driver = sum(memory.values()) if is_driver_alone else memory["Python MiB"]
    assert of_driver < MOST_DRIVER_MIB, memory
    return figures | memory | {"JVM heap at most, MiB": heap}


def _streamed(spark: Any, log: Path, checkpoint: Path) -> int:
    """Return the rows of a stream that follows all queues from their begin, in one batch."""
    given = {"subscribePattern": ".*", "startingOffsets": "earliest"}
    frame = spark.readStream.format("rocketstore").options(**given).load(str(log))
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(one["numInputRows"] for one in query.recentProgress)


def _triggers(scratch: Path) -> dict[str, Any]:
    """Ask a stream for its next offset so many times, with nothing new, as Spark does."""
    from rocketstore.pipeline.source import row_type  # noqa: PLC0415 - needs PySpark
    from rocketstore.pipeline.streaming.stream_reader import StoreStreamReader  # noqa: PLC0415 - as above
    from support.sparse_log import make_sparse_log  # noqa: PLC0415 - of the tests

    log = scratch / "log"
    make_sparse_log(log, 100, topics=tuple(f"Topic{at}" for at in range(TRIGGER_TOPICS)))
    given = {"path": str(log), "subscribePattern": ".*", "startingOffsets": "earliest"}
    reader = StoreStreamReader(given, row_type(parse_options({"path": str(log)})))
    limit = reader.getDefaultReadLimit()
    own, memory = psutil.Process(), []
    began = time.process_time()
    offset = reader.latestOffset(reader.initialOffset(), limit)
    first_s, began = time.process_time() - began, time.process_time()
    for number in range(TRIGGERS):
        offset = reader.latestOffset(offset, limit)
        if number in (TRIGGERS // 10, TRIGGERS - 1):
            memory.append(own.memory_info().rss // MiB)
    each_s = (time.process_time() - began) / TRIGGERS
    shutil.rmtree(log)
    name = f"{TRIGGERS} triggers with {TRIGGER_TOPICS} topics"
    return {
        f"{name}: CPU s of the first": round(first_s, 2),
        f"{name}: CPU ms of each": round(each_s * 1000, 2),
        f"{name}: bytes of an offset": len(json.dumps(offset)),
        f"{name}: Python MiB after a tenth": memory[0],
        f"{name}: Python MiB after all": memory[1],
    }
