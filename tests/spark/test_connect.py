"""The source works on Spark Connect, where there is neither RDD nor `sparkContext`.

Connect and classic sessions exclude each other in one process, so this runs in its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from support.golden import golden_case
from support.spark_session import require_java

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from rocketstore.pipeline import register
builder = SparkSession.builder.remote("local[2]")
for setting in ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1",
                "spark.driver.bindAddress=127.0.0.1", "spark.driver.memory=1g"):
    builder = builder.config(*setting.split("="))
spark = builder.getOrCreate()
register(spark)
frame = spark.read.format("rocketstore").option("table", "commitlog").load(sys.argv[1])
answer = {
    "kind": type(spark).__module__,
    "rows": frame.count(),
    "chosen": frame.filter("topic = 'TopicA' and queueId = 0").count(),
}
try:
    spark.read.format("rocketstore").option("includeBodies", "x").load(sys.argv[1]).count()
except Exception as error:
    answer["error"] = str(error)
print("ANSWER " + json.dumps(answer))
spark.stop()
"""


def require_connect():
    require_java()
    missing = [
        name for name in ("grpc", "grpc_status", "zstandard") if not importlib.util.find_spec(name)
    ]
    if not missing:
        return
    reason = f"Spark Connect needs {', '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_the_source_answers_on_spark_connect(tmp_path):
    require_connect()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }
    store = golden_case("basic") / "store"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stderr[-3000:]
    answer = json.loads(lines[0].removeprefix("ANSWER "))
    assert "connect" in answer["kind"]
    assert answer["rows"] == 1489
    assert 0 < answer["chosen"] < 730
    assert "option includebodies is unknown" in answer["error"]
