"""On a real standalone cluster: a master and two workers, each a process with its own executor.

Two workers share a query and a job. Then archive, restore, rebuild and sink run while processes are
killed amid the work: the Python workers of one Spark worker, which fails their tasks, amid the
rebuild also the executor of the other, and amid the sink that with its Spark worker. Spark runs
again what was lost; what comes out must be the same bytes.

One cluster and one driver, a process of its own, serve both tests: JVMs start slowly.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rocketstore import MessageStore, verify_store
from support.golden import golden_case
from support.held_tasks import DAEMON, HELD_TASKS
from support.patience import START_S
from support.reading import all_messages
from support.repository import ROOT
from support.restoring import restored
from support.spark_cluster import SparkCluster
from support.spark_session import require_java, submitted
from support.trees import tree

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

WRITTEN = 600
HOLD = "hold"

DRIVER = """
import json, os, sys, time
import pyarrow as pa
from rocketstore import pipeline
from rocketstore.pipeline.jobs.execution import map_tasks

held = {f"spark__executorEnv__{name}": os.environ[name] for name in ("HELD_TASKS", "PYTHONPATH")}
spark = pipeline.session(
    sys.argv[1], spark__executor__memory="512m", spark__task__maxFailures="8",
    spark__driver__extraJavaOptions="-Dnothing=0",
    spark__python__daemon__module="support.held_tasks", **held,
)
place = sys.argv[2]

def stage(name):
    print("STAGE " + name, flush=True)
    sys.stdin.readline()  # until the test watches

def where(task):
    os.makedirs(f"{place}/came/" + os.getcwd().split("/")[-3], exist_ok=True)
    while len(os.listdir(f"{place}/came")) < 2:  # or the first to start may do all
        time.sleep(0.01)
    yield pa.record_batch({"task": [task], "directory": [os.getcwd()]})

frame = spark.read.format("rocketstore").option("maxSplitBytes", "65536").load(f"{place}/store")
table = map_tasks(spark, list(range(16)), where, "task INT, directory STRING").toArrow()
answer = dict(
    rows=frame.count(),
    by_topic={row.topic: row["count"] for row in frame.groupBy("topic").count().collect()},
    tasks=sorted(table["task"].to_pylist()),
    workers=sorted({path.split("/")[-3] for path in table["directory"].to_pylist()}),
)
with open(f"{place}/answer.json", "w") as file:
    json.dump(answer, file)
stage("archive")
pipeline.archive(spark, f"{place}/store", f"{place}/archive", max_split_bytes=16384)
stage("restore")
pipeline.restore(spark, f"{place}/archive", f"{place}/restored/store")
stage("rebuild")
pipeline.rebuild(spark, f"{place}/copy", max_split_bytes=16384)
stage("sink")
rows = spark.range(0, int(sys.argv[3]), 1, 40).selectExpr(
    "cast(id as string) as topic_key", "cast(cast(id as string) as binary) as body"
)
rows.selectExpr("body", "array(topic_key) as keys").write.format("rocketstore").mode("append") \\
    .option("topic", "numbers").option("sinkId", "s").option("batchId", "1").save(f"{place}/sunk")
stage("end")
spark.stop()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the directory in which the driver ran, with what it wrote there."""
    require_java()
    place = tmp_path_factory.mktemp("cluster")
    store = place / "store"
    shutil.copytree(golden_case("basic") / "store", store)
    shutil.copytree(store, place / "copy")
    (place / "restored").mkdir()
    watched = {"archive": "archive", "restore": "restored", "rebuild": "copy", "sink": "sunk"}
    killers: list[Killer] = []
    with SparkCluster(place, workers=2) as cluster:
        for name in _stages(cluster, place):
            for killer in killers:
                killer.join()
            if name in watched:
                killers.append(Killer(cluster, name, place / watched[name]))
    assert [killer.killed_tasks > 0 for killer in killers] == [True] * 4
    return place


def test_two_workers_share_a_query_and_a_job(place):
    """The working directory of a Python worker is its executor's, below the Spark worker's."""
    answer: dict[str, Any] = json.loads((place / "answer.json").read_text())
    assert answer["rows"] == 1489 == sum(answer["by_topic"].values())
    assert answer["tasks"] == list(range(16))
    assert answer["workers"] == ["worker-0", "worker-1"]


def test_what_dies_during_a_job_changes_no_byte_of_its_outcome(place):
    log = (place / "driver.log").read_text(errors="replace")
    assert "Lost executor" in log  # not of each: the last job may end before the driver notices
    assert "Lost task" in log
    _check_outcome(place)


class Killer:
    """Waits until a job has written its first file, then kills tasks and what else is to die.

    The worker of an executor starts another, which takes seconds of processor time.
    """

    def __init__(self, cluster: SparkCluster, job: str, watched: Path) -> None:
        self.killed_tasks = 0
        self._is_over = False
        self._cluster, self._job = cluster, job
        self._watched = watched
        self._before = set(watched.rglob("*"))
        self._hold = cluster.directory / HOLD
        self._hold.touch()  # before the job begins
        self._log = cluster.directory / "driver.log"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        """Let it end, with what it came to; its job is over."""
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        end = time.monotonic() + START_S
        while not self._has_begun() and not self._is_over and time.monotonic() < end:
            self._hold.touch()  # the tasks that came go on, later ones wait
            time.sleep(0.02)  # between two looks
        first, second = self._cluster.workers
        lost = self._lost_tasks()
        # What is killed may have been waiting for its next task.
        while self._lost_tasks() == lost and not self._is_over and time.monotonic() < end:
            self.killed_tasks += kill_tasks(first)
            time.sleep(0.2)  # the driver says a moment later what it lost
            self._hold.touch()
        if self._job == "sink":
            self._cluster.kill_worker(second)
        elif self._job == "rebuild":
            self._cluster.kill_executor(second)
        self._hold.unlink()

    def _has_begun(self) -> bool:
        return not set(self._watched.rglob("*")) <= self._before

    def _lost_tasks(self) -> int:
        return self._log.read_text(errors="replace").count("Lost task")


def kill_tasks(worker: subprocess.Popen[bytes]) -> int:
    """Kill the Python processes that run tasks for a worker, and return how many they were."""
    killed = 0
    for process in psutil.Process(worker.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if parent is not None and DAEMON in " ".join(parent.cmdline()):
                process.kill()
                killed += 1
    return killed


def _stages(cluster: SparkCluster, place: Path) -> Iterator[str]:
    """Run the driver and yield each stage before it begins."""
    with (place / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, cluster.url, str(place), str(WRITTEN)],
            env=cluster.environment()
            | {"PYSPARK_SUBMIT_ARGS": submitted(), "PYTHONPATH": str(ROOT / "tests")}
            | {HELD_TASKS: str(cluster.directory / HOLD)},
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert driver.stdin is not None
        assert driver.stdout is not None
        with driver:
            try:
                for line in driver.stdout:
                    if line.startswith("STAGE "):
                        yield line.split()[1]
                        driver.stdin.write("\n")
                        driver.stdin.flush()
            except BaseException:  # the test's end too: leaving `with` waits for the driver
                driver.kill()
                raise
    assert driver.returncode == 0, (place / "driver.log").read_text(errors="replace")[-5000:]


def _check_outcome(place: Path) -> None:
    restored(place / "archive", place / "again")
    for name in ("again", "restored/store"):
        assert tree(place / name / "commitlog") == tree(place / "store" / "commitlog")
    assert verify_store(place / "restored/store").findings == []
    assert [path.name for path in (place / "restored").iterdir()] == ["store"]
    assert tree(place / "copy" / "consumequeue") == tree(place / "store" / "consumequeue")
    with MessageStore.open(place / "sunk", read_only=True) as sunk:
        bodies = [one.body for queue in sunk.queues() for one in all_messages(sunk, *queue)]
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(WRITTEN)]
    assert verify_store(place / "sunk").findings == []
