"""Restore as a Spark job: a store that opens, answers and verifies like the one it was."""

import os

import msgspec
import pytest

from rocketstore import pipeline, verify_store
from rocketstore.cli.application import run as run_command
from rocketstore.errors import ArchiveDamagedError
from support.archiving import archived, log_bytes
from support.golden_stores import golden_root
from support.pipeline_tables import read_table

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def source():
    return golden_root("broker")


@pytest.fixture(scope="module")
def archive(source, tmp_path_factory):
    """Return an archive of a broker's store, in two runs."""
    target = tmp_path_factory.mktemp("archive") / "a"
    archived(source, target, stretch=40_000)
    return target


def test_the_store_comes_back_byte_for_byte_and_verifies_clean(spark, archive, source, tmp_path):
    result = pipeline.restore(spark, archive, tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)
    assert (result.records, result.is_whole) == (519, True)
    assert verify_store(tmp_path / "back").findings == []
    place = {"table": "consumequeue", "brokerName": "b"}
    found, expected = (
        sorted(read_table(store, **place), key=lambda row: tuple(map(str, row.values())))
        for store in (tmp_path / "back", source)
    )
    assert found == expected
    assert result.queues == len({(row["topic"], row["queueId"]) for row in found})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back"]


def test_one_topic_comes_back_as_a_store(rare_spark, archive, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: rare_spark)
    target = str(tmp_path / "back")
    given = ["--topic", "GoldenOrder", "--begin", "2020-01-01", "--end", "2100-01-01T00:00:00Z"]
    assert run_command(["pipeline", "restore", str(archive), target, *given]) == 0
    said = capsys.readouterr().out
    assert said.startswith("60 records of broker store, version 1, in 1 CommitLog file of")
    assert said.endswith(": a new log of the selection; 4 queues made from it\n")
    found = rare_spark.read.format("rocketstore").option("table", "commitlog").load(target)
    assert [tuple(row) for row in found.select("topic").collect()] == [("GoldenOrder",)] * 60
    assert verify_store(target).findings == []
    assert run_command(["pipeline", "restore", str(archive), target, "--begin", "noon"]) == 2


def test_a_version_comes_back_by_the_command_line(
    spark, archive, source, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    given = ["pipeline", "restore", str(archive), str(tmp_path / "back"), "--log-only"]
    assert run_command([*given, "--as-of", "7"]) == 3
    assert "as of 7" in capsys.readouterr().err
    assert run_command([*given, "--as-of", "1", "--broker", "store", "--output", "json"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert (result["version"], result["queues"], result["records"]) == (1, None, 519)
    assert log_bytes(tmp_path / "back") == log_bytes(source)
    assert not (tmp_path / "back" / "consumequeue").exists()


def test_a_damaged_archive_is_described_in_our_words_not_sparks(spark, source, tmp_path):
    archived(source, tmp_path / "a")
    broken = next((tmp_path / "a" / "messages").rglob("*.parquet"))
    os.truncate(broken, broken.stat().st_size - 1)
    with pytest.raises(ArchiveDamagedError) as said:
        pipeline.restore(spark, tmp_path / "a", tmp_path / "back")
    assert str(said.value).startswith(str(broken))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
