"""Archive as a Spark job: the rows that one process makes, and nothing when a worker dies."""

import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from rocketstore import pipeline
from rocketstore.cli.application import run as run_command
from rocketstore.errors import ArchiveError, SparkJobError
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.jobs.archive import archive_job
from support.archiving import archived, rows, state
from support.golden_stores import golden_root

pytestmark = [pytest.mark.spark]

SPLIT = 40_000


@pytest.fixture(scope="module")
def source():
    return golden_root("broker")


@pytest.fixture(scope="module")
def archive(spark, source, tmp_path_factory):
    """Return an archive of a broker's store, made by Spark."""
    target = tmp_path_factory.mktemp("archive") / "a"
    assert pipeline.archive(spark, source, target, max_split_bytes=SPLIT).records == 519
    return target


def test_spark_makes_the_rows_that_one_process_makes(archive, source, tmp_path):
    archived(source, tmp_path / "alone", stretch=SPLIT)
    assert rows(archive) == rows(tmp_path / "alone")
    assert state(archive) == state(tmp_path / "alone")


def test_sql_over_the_archive_equals_the_data_source(spark, archive, source):
    names = [name for name in TABLES["messages"] if name != "properties"]
    reader = spark.read.format("rocketstore").option("decompressBody", "false")
    expected = reader.load(str(source)).withColumn("p", _sorted_entries("properties"))
    files = DeltaTable(archive / "messages").file_uris()
    found = spark.read.option("basePath", str(archive / "messages")).parquet(*files)
    assert dict(found.dtypes)["day"] == "date"
    found = found.withColumn("p", _sorted_entries("properties"))
    wanted = sorted(map(repr, expected.select(*names, "p").collect()))
    assert sorted(map(repr, found.select(*names, "p").collect())) == wanted


def _sorted_entries(column):
    from pyspark.sql import functions  # noqa: PLC0415 - needs Spark

    return functions.array_sort(functions.map_entries(column))


def test_the_command_says_what_it_archived(spark, source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    given = ["pipeline", "archive", str(source), str(tmp_path / "a")]
    assert run_command(given) == 0
    assert "run 1: 519 records" in capsys.readouterr().out
    assert run_command([*given, "--output", "json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["run"] is None


def test_what_a_task_raises_comes_in_our_words(spark, source, tmp_path, monkeypatch):
    plain = archive_job.map_tasks

    def elsewhere(spark, tasks, *given):
        moved = [task._replace(target=str(tmp_path / "elsewhere")) for task in tasks]
        return plain(spark, moved, *given)

    monkeypatch.setattr(archive_job, "map_tasks", elsewhere)
    with pytest.raises(ArchiveError, match="elsewhere cannot be written"):
        pipeline.archive(spark, source, tmp_path / "a", max_split_bytes=SPLIT)


def test_a_worker_killed_after_its_work_leaves_nothing(
    spark, archive, source, tmp_path, monkeypatch
):
    seen = tmp_path / "seen"

    def dying(task):
        # A function inside a function goes to workers by value, so that they need no tests.
        from rocketstore.pipeline.jobs.archive.archive_job import archive_task  # noqa: PLC0415

        batches = list(archive_task(task))
        if task.number == 1:
            seen.write_text("\n".join(map(str, Path(task.target, "messages").rglob("part-*"))))
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    with monkeypatch.context() as patched:
        patched.setattr(archive_job, "archive_task", dying)
        with pytest.raises(SparkJobError, match="exited unexpectedly"):
            pipeline.archive(spark, source, tmp_path / "a", max_split_bytes=SPLIT)
    assert seen.read_text()
    assert not (tmp_path / "a").exists()
    pipeline.archive(spark, source, tmp_path / "a", max_split_bytes=SPLIT)
    assert rows(tmp_path / "a") == rows(archive)
    shutil.rmtree(tmp_path / "a")
