"""Archive and restore as Spark jobs: the same archive, and nothing of it when a worker dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import msgspec
import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run as run_command
from rocketstore.errors import ArchiveDamagedError
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.jobs.archive.task import RESULT_SCHEMA, TaskResult
from rocketstore.pipeline.jobs.execution import run_tasks
from support.archive_runs import archived, log_bytes, tree, visible_files
from support.golden_stores import golden_store

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SPLIT = 40_000


@pytest.fixture(scope="module")
def source():
    return golden_store("broker")[0]


@pytest.fixture(scope="module")
def archive(spark, source, tmp_path_factory):
    """Return an archive of a broker's store, made by Spark."""
    target = tmp_path_factory.mktemp("archive") / "a"
    ticks = []
    result = pipeline.archive(
        spark, source, target, max_split_bytes=SPLIT, progress=lambda *tick: ticks.append(tick)
    )
    assert result.records == 519
    assert sum(done for done, _ in ticks) == ticks[0][1] == result.end - result.begin
    return target


def test_spark_makes_the_archive_that_one_process_makes(archive, source, tmp_path):
    archived(source, tmp_path / "alone", split=SPLIT)
    assert tree(archive) == tree(tmp_path / "alone")


def without_the_end_of_a_worker(lines):
    """Leave out what PySpark's daemon prints of a worker that Spark ended while it was writing."""
    kept, block = [], []
    for line in lines:
        block.append(line)
        if line.startswith(("Traceback", " ")):
            continue
        files = [one for one in block if one.lstrip().startswith("File ")]
        is_workers = "pyspark/daemon.py" in str(files) and all("/pyspark/" in one for one in files)
        kept += [] if is_workers or not line else block
        block = []
    return kept + block


def test_a_task_that_fails_is_one_line_and_no_stack_of_java(archive, tmp_path):
    """In a process of its own: what is on its stderr depends on the session's own settings."""
    shutil.copytree(archive, tmp_path / "a")
    for file in (tmp_path / "a" / "messages").rglob("*.parquet"):
        os.truncate(file, file.stat().st_size - 1)
    command = ["pipeline", "restore", str(tmp_path / "a"), str(tmp_path / "back")]
    done = subprocess.run(
        [sys.executable, "-m", "rocketstore.cli", *command],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: Using")]
    told = without_the_end_of_a_worker(told)
    assert done.returncode == ArchiveDamagedError.exit_code
    assert len(told) == 1, told
    assert told[0].startswith(f"rocketstore: {tmp_path}/a/messages/")
    assert not (tmp_path / "back").exists()


def test_sql_over_the_archive_equals_the_data_source(spark, archive, source):
    names = [name for name in TABLES["messages"] if name != "properties"]
    reader = spark.read.format("rocketstore").option("decompressBody", "false")
    expected = reader.load(str(source)).withColumn("p", _sorted_entries("properties"))
    plain = spark.read.parquet(str(archive / "messages"))
    typed = pipeline.archived_messages(spark, archive)
    wanted = sorted(map(repr, expected.select(*names, "p").collect()))
    for found in (plain, typed):
        rows = found.withColumn("p", _sorted_entries("properties")).select(*names, "p")
        assert sorted(map(repr, rows.collect())) == wanted
    assert typed.columns[: len(TABLES["messages"])] == list(TABLES["messages"])


def _sorted_entries(column):
    from pyspark.sql import functions  # noqa: PLC0415 - needs Spark

    return functions.array_sort(functions.map_entries(column))


def test_a_topic_of_digits_stays_a_text(spark, tmp_path, source):
    target = tmp_path / "a"
    archived(source, target)
    run = target / "messages/run=00000001"
    for path in run.glob("topic=*"):
        if path.name == "topic=GoldenTopic":
            path.rename(run / "topic=007")
        else:
            shutil.rmtree(path)
    found = pipeline.archived_messages(spark, target).select("topic").distinct().collect()
    assert [row.topic for row in found] == ["007"]


def test_the_store_comes_back_byte_for_byte(spark, archive, source, tmp_path):
    result = pipeline.restore(spark, archive, tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)
    assert (result.records, result.is_whole) == (519, True)


def test_one_topic_comes_back_as_a_store(spark, archive, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    target = str(tmp_path / "back")
    given = ["--topic", "GoldenOrder", "--begin", "2020-01-01", "--end", "2100-01-01T00:00:00Z"]
    assert run_command(["pipeline", "restore", str(archive), target, *given]) == 0
    assert "60 records in 1 CommitLog files" in capsys.readouterr().out
    found = spark.read.format("rocketstore").option("table", "commitlog").load(target)
    assert [tuple(row) for row in found.groupBy("topic").count().collect()] == [("GoldenOrder", 60)]
    assert run_command(["pipeline", "restore", str(archive), target, "--begin", "noon"]) == 2


def test_the_command_says_what_it_archived(spark, source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    given = ["pipeline", "archive", str(source), str(tmp_path / "a")]
    assert run_command(given) == 0
    assert "run 1: 519 records" in capsys.readouterr().out
    assert run_command([*given, "--output", "json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["run"] is None


def test_a_damaged_archive_is_told_in_our_words_not_sparks(spark, archive, tmp_path):
    shutil.copytree(archive, tmp_path / "a")
    broken = visible_files(tmp_path / "a")[0]
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(ArchiveDamagedError) as told:
        pipeline.restore(spark, tmp_path / "a", tmp_path / "back")
    assert str(told.value).startswith(str(broken))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_worker_killed_behind_its_work_leaves_nothing(spark, archive, source, tmp_path):
    def dying(task):
        # A function inside a function goes to workers by value, so that they need no tests.
        from rocketstore.pipeline.jobs.archive.task import archive_task  # noqa: PLC0415

        batches = list(archive_task(task))
        if task.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    def run(tasks):
        told = run_tasks(spark, tasks, dying, RESULT_SCHEMA).column("result").to_pylist()
        return [msgspec.json.decode(text, type=TaskResult) for text in told]

    with pytest.raises(Exception, match="exited unexpectedly"):
        archived(source, tmp_path / "a", split=SPLIT, run=run)
    assert not tree(tmp_path / "a")
    pipeline.archive(spark, source, tmp_path / "a", max_split_bytes=SPLIT)
    assert tree(tmp_path / "a") == tree(archive)
