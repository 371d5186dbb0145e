"""Source, sinks and jobs work on Spark Connect, where there is neither RDD nor `sparkContext`.

Connect and classic sessions exclude each other in one process: the client is one of its own. Its
server is the JVM of the shared session, which is warm.
"""

import importlib.util
import json

import pytest

from support.golden import golden_case
from support.patience import START_S
from support.python_process import run_python
from support.skipping import skip_but_in_ci

pytestmark = [pytest.mark.spark]

PROGRAM = """
import json, sys
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from rocketstore import pipeline
remote, store, place = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
pipeline.register(spark)

def read(location, **options):
    return spark.read.format("rocketstore").options(**options).load(location)

frame = read(store, table="commitlog")
answer = {
    "kind": type(spark).__module__,
    "rows": frame.count(),
    "chosen": frame.filter("topic = 'TopicA' and queueId = 0").count(),
}
try:
    read(store, includeBodies="x").count()
except Exception as error:
    answer["error"] = str(error)
audit = pipeline.audit(spark, store)
answer["audit"] = [audit.counts.message_count, len(audit.findings)]
pipeline.archive(spark, store, f"{place}/archive")
files = DeltaTable(f"{place}/archive/messages").file_uris()
answer["archived"] = spark.read.parquet(*files).count()
answer["restored"] = pipeline.restore(spark, f"{place}/archive", f"{place}/restored").records
answer["rebuilt"] = pipeline.rebuild(spark, f"{place}/restored").entry_count
answer["differences"] = len(pipeline.prove_rebuild(spark, f"{place}/restored").findings)
pipeline.report(spark, store, f"{place}/report")

def sink(writer, name, directory):
    options = {"topic": "Sunk", "sinkId": name, "path": f"{place}/{directory}"}
    return writer.format("rocketstore").options(**options)

written = sink(frame.selectExpr("msgId AS body").write, "one", "sunk")
written.mode("append").option("batchId", "1").save()
answer["sunk"] = read(f"{place}/sunk").count()
query = (
    sink(
        spark.readStream.format("rocketstore").option("startingOffsets", "earliest")
        .load(f"{place}/sunk").selectExpr("body").writeStream, "two", "streamed")
    .option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination(120)
answer["streamed"] = read(f"{place}/streamed").count()
print("ANSWER " + json.dumps(answer))
spark.stop()
"""


def require_connect():
    missing = [
        name for name in ("grpc", "grpc_status", "zstandard") if not importlib.util.find_spec(name)
    ]
    if missing:
        skip_but_in_ci(f"Spark Connect needs {', '.join(missing)}")


@pytest.fixture
def remote(spark):
    """Return where a Connect server listens; it ends with the test."""
    require_connect()
    services = spark._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")  # Scala's object
    service.start(spark._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    nothing = spark._jvm.scala.Option.empty()
    service.stop(nothing, nothing)


def test_source_sinks_and_jobs_work_on_spark_connect(remote, tmp_path):
    store = golden_case("basic") / "store"
    done = run_python("-c", PROGRAM, remote, store, tmp_path, cwd=tmp_path, limit_s=START_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stderr[-30000:]
    answer = json.loads(lines[0].removeprefix("ANSWER "))
    assert "connect" in answer["kind"]
    assert answer["rows"] == 1489
    assert 0 < answer["chosen"] < 730
    assert "option includebodies is unknown" in answer["error"]
    assert answer["audit"] == [1489, 0]
    assert answer["archived"] == answer["restored"] == answer["rebuilt"] == 1489
    assert answer["differences"] == 0
    assert (tmp_path / "report" / "index.html").read_text().lower().startswith("<!doctype html>")
    assert answer["sunk"] == answer["streamed"] == 1489
    for log in (store / "commitlog").iterdir():
        assert (tmp_path / "restored" / "commitlog" / log.name).read_bytes() == log.read_bytes()
