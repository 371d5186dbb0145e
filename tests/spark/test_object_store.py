"""The whole way on an object store: read, archive, ask, restore and rebuild, on Spark's
workers, which have their credentials from the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.archive_runs import log_bytes
from support.golden_stores import golden_store
from support.pipeline_tables import read_table
from support.rebuild_oracle import Here
from support.repository import ROOT
from support.s3_server import ACCESS_KEY, SECRET_KEY, running_s3
from support.small_store import START_MS, copy_store
from support.spark_session import require_java

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-cluster")]

LIMIT_S = 120

PROGRAM = """
import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
from support.spark_session import start_session
from rocketstore import errors, pipeline

store, archive, nowhere, back, scratch = sys.argv[2:]
spark = start_session(scratch)
pipeline.register(spark)
reader = spark.read.format("rocketstore").option("maxSplitBytes", "131072")
rows = reader.load(store)
explained = io.StringIO()
with contextlib.redirect_stdout(explained):
    rows.explain(True)
told = {"rows": rows.count()}
archived = pipeline.archive(spark, store, archive, max_split_bytes=131072, sole_writer=True)
told["archived"] = archived.records
messages = pipeline.archived_messages(spark, archive)
asked = messages.select("physicalOffset", "topic", "queueId", "queueOffset", "run", "day")
told["asked"] = sorted([*row[:-1], str(row.day)] for row in asked.collect())
told["restored"] = pipeline.restore(spark, archive, back).records
report = pipeline.rebuild(
    spark, store, plan="shuffle", sole_writer=True, max_split_bytes=131072
)
told["rebuilt"] = [report.record_count, report.entry_count, report.kept is not None]
told["after"] = reader.option("table", "consumequeue").load(store).count()
try:
    reader.load(nowhere).count()
except Exception as error:
    told["error"] = str(error)
told["plan"] = explained.getvalue()
print("TOLD " + json.dumps(told), flush=True)
spark.stop()
"""


def run_program(*places):
    credentials = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "tests"), *map(str, places)],
        env=os.environ | credentials,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert found, done.stderr[-3000:]
    return json.loads(found[0].removeprefix("TOLD ")), done.stdout + done.stderr


def test_a_store_on_s3_is_read_archived_asked_restored_and_rebuilt(tmp_path):
    require_java()
    from rocketstore.pipeline.jobs.rebuild.job import rebuild_with  # noqa: PLC0415 - after Java

    store, _ = golden_store("basic")
    on_disk = read_table(store)
    copy = copy_store(store, tmp_path / "copy")
    rebuild_with(Here(), copy, plan="posix", now_ms=START_MS)
    with running_s3() as s3:
        s3.put_tree(store, "store")
        places = (s3.uri("store"), s3.uri("archive"), s3.uri("nowhere"))
        told, output = run_program(*places, tmp_path / "back", tmp_path)
        rebuilt = {
            path: content
            for path, content in s3.tree("store").items()
            if path.startswith("consumequeue/")
        }
    names = ("physicalOffset", "topic", "queueId", "queueOffset")
    asked = [
        [*(row[name] for name in names), 1, str(row["storeTimestamp"].date())] for row in on_disk
    ]
    assert told["rows"] == told["archived"] == told["restored"] == len(on_disk)
    assert told["asked"] == sorted(asked)
    assert told["rebuilt"] == [len(on_disk), told["after"], True]
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    assert rebuilt == {
        path.relative_to(copy).as_posix(): path.read_bytes()
        for path in (copy / "consumequeue").rglob("*")
        if path.is_file()
    }
    assert "is no store" in told["error"]
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in output
