"""A log of terabytes goes through a driver of 1 GB; `bench.pipeline simulated` has 4 to 20 TB."""

import time

import pytest

from rocketstore.pipeline import archive, audit, report
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.planning import plan_log
from support.sparse_log import GIB, make_sparse_log

pytestmark = [pytest.mark.spark]

FILES = 1024
RECORDS = 3 * FILES
TOPICS = 1000


def test_a_terabyte_is_queried_audited_reported_and_archived(spark, tmp_path):
    assert spark.conf.get("spark.driver.memory") == "1g"
    log = tmp_path / "log"
    make_sparse_log(log, FILES, topics=tuple(f"Topic{number:04}" for number in range(TOPICS)))
    begin = time.process_time()
    tasks = plan_log(parse_options({"path": str(log)}))
    assert time.process_time() - begin < 3  # a minute for twenty times as much
    assert len(tasks) < 20
    frame = spark.read.format("rocketstore").option("table", "commitlog").load(str(log))
    assert frame.count() == RECORDS
    checked = audit(spark, log)
    assert checked.exit_code == 0
    assert checked.counts.message_count == RECORDS
    summary = report(spark, log, tmp_path / "report").summary
    assert (summary["messages"], summary["topics"]) == (RECORDS, TOPICS)
    kept = archive(spark, log, tmp_path / "archive")
    assert (kept.records, kept.end) == (RECORDS, FILES * GIB)
    assert kept.file_count < 20
