"""On a real standalone cluster: a master and two workers, each a process with its own executor.

The driver is a process of its own too, since a test run has one session.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.golden import golden_case
from support.spark_cluster import SparkCluster
from support.spark_session import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-cluster")]

DRIVER = """
import json, os, sys
from rocketstore.pipeline import session
from rocketstore.pipeline.jobs.execution import map_tasks
import pyarrow as pa

spark = session(sys.argv[1], spark__executor__memory="512m", spark__ui__enabled="false")
STORE = sys.argv[2]

def answer(**values):
    print("ANSWER " + json.dumps(values), flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    require_java()
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def ask(cluster: SparkCluster, program: str, *arguments: Path | str) -> dict[str, Any]:
    """Run a driver that prints one answer."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER + program, cluster.url, *map(str, arguments)],
        env=cluster.environment(),
        cwd=cluster.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stderr[-5000:]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return answer


def test_two_workers_share_a_query_and_a_job(cluster: SparkCluster) -> None:
    """The working directory of a Python worker is its executor's, below the Spark worker's."""
    program = """
frame = spark.read.format("rocketstore").option("maxSplitBytes", "65536").load(STORE)
def where(task):
    yield pa.record_batch({"task": [task], "directory": [os.getcwd()]})
table = map_tasks(spark, list(range(16)), where, "task INT, directory STRING").toArrow()
answer(
    rows=frame.count(),
    by_topic={row.topic: row["count"] for row in frame.groupBy("topic").count().collect()},
    tasks=sorted(table["task"].to_pylist()),
    workers=sorted({path.split("/")[-3] for path in table["directory"].to_pylist()}),
)
"""
    answer = ask(cluster, program, golden_case("basic") / "store")
    assert answer["rows"] == 1489 == sum(answer["by_topic"].values())
    assert answer["tasks"] == list(range(16))
    assert answer["workers"] == ["worker-0", "worker-1"]
