"""The report on Spark: the same as what its statements say elsewhere, and the command line."""

import json
import shutil
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run
from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.execution import map_batches
from rocketstore.pipeline.jobs.report import partial_groups, report_job
from rocketstore.pipeline.jobs.report.partial_groups import count_task
from rocketstore.pipeline.jobs.report.report_job import plan_report
from rocketstore.pipeline.jobs.report.report_tables import TABLES
from support.busy_log import START_MS, busy_puts, write_log
from support.golden_stores import golden_root
from support.report_run import make_report, read_page, tables_of
from support.store_files import overwrite_file

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "store"
    write_log(directory, busy_puts(3_000))
    overwrite_file(sorted((directory / "commitlog").iterdir())[2], 5_000, b"\xee" * 100)
    return directory


@pytest.fixture(scope="module")
def with_open_halves(tmp_path_factory):
    """A store of Java's as if its broker had not seen that transactions were ended."""
    directory = shutil.copytree(golden_root("broker"), tmp_path_factory.mktemp("halves") / "store")
    offsets = {"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 12}}
    (directory / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    return directory


def test_a_job_s_rows_may_have_other_types_than_its_schema(spark):
    def narrow(batches):
        for one in batches:
            yield pa.record_batch({"n": one["n"].cast(pa.int32())})

    frame = spark.range(3).withColumnRenamed("id", "n").coalesce(1)
    found = map_batches(frame, narrow, "n BIGINT").toArrow()
    assert found["n"].to_pylist() == [0, 1, 2]


def test_open_transactions_are_found_on_workers(spark, with_open_halves, tmp_path):
    found = pipeline.report(spark, with_open_halves, tmp_path / "report", now_ms=2 * START_MS)
    rows = tables_of(found)["transactions"]
    assert [(row["ageMs"], row["messages"]) for row in rows] == [(86_400_000, 4)]


def test_a_report_on_spark_equals_one_without(rare_spark, store, tmp_path):
    plain = make_report(store, tmp_path / "plain", now_ms=START_MS)
    found = pipeline.report(
        rare_spark, store, tmp_path / "spark", max_split_bytes=150_000, now_ms=START_MS
    )
    expected = tables_of(plain)
    assert tables_of(found) == expected
    assert set(expected) == set(TABLES)
    for name in TABLES:
        assert pq.read_schema(found.tables / f"{name}.parquet") == pq.read_schema(
            plain.tables / f"{name}.parquet"
        )
    json_of_both = [json.loads(one.json.read_text()) for one in (found, plain)]
    for row in (row for one in json_of_both for row in one["files"]):
        del row["bytesRead"], row["resyncs"]  # follow how the work was cut
    assert json_of_both[0] == json_of_both[1]
    assert found.page.read_bytes() == plain.page.read_bytes()
    rows = rare_spark.read.parquet(f"file://{found.tables}/queues.parquet")
    assert rows.agg({"messages": "sum"}).collect()[0][0] == found.summary["messages"]


def test_a_split_is_counted_once_however_many_tables_are_made_of_it(
    spark, store, tmp_path, monkeypatch
):
    counts = tmp_path / "counts"
    counts.mkdir()

    def count(task):
        tempfile.mkstemp(dir=counts)
        return count_task(task)

    monkeypatch.setattr(partial_groups, "count_task", count)
    pipeline.report(spark, store, tmp_path / "report")
    assert len(list(counts.iterdir())) == len(plan_report(store, tmp_path / "other").tasks)


def test_a_file_that_goes_away_meanwhile_is_one_clear_error(spark, tmp_path, monkeypatch):
    write_log(tmp_path / "store", busy_puts(500))
    log = next((tmp_path / "store" / "commitlog").iterdir())
    plan = plan_report(tmp_path / "store", tmp_path / "report")
    log.unlink()
    monkeypatch.setattr(report_job, "plan_report", lambda *_, **__: plan)
    with pytest.raises(StoreError, match="cannot be read"):
        pipeline.report(spark, tmp_path / "store", tmp_path / "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_the_command_writes_a_page_and_says_where(spark, store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    out = tmp_path / "report"
    assert run(["pipeline", "report", str(store), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "messages of 7 topics" in said
    assert "1 damaged range of" in said
    assert str(out / "index.html") in said
    assert "Damage. 1 damaged range" in read_page(out / "index.html").text
    assert run(["pipeline", "report", str(store), "--out", str(out)]) == 3
    assert "is there already" in capsys.readouterr().err
