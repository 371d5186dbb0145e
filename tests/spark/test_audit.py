"""The audit through Spark itself, from Python and from the command line."""

from __future__ import annotations

import json
import shutil

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run
from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.audit import job
from support.audit_runs import audit_here
from support.golden_stores import golden_store

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def damaged(tmp_path):
    target = tmp_path / "store"
    shutil.copytree(golden_store("expired/files_removed")[0], target)
    log = sorted((target / "commitlog").iterdir())[1]
    with log.open("r+b") as file:
        file.seek(20_000)
        file.write(b"no record's bytes")
    return target


def test_spark_finds_what_one_process_finds(spark, damaged, tmp_path):
    told = []
    report = pipeline.audit(
        spark,
        damaged,
        tmp_path / "out",
        max_split_bytes=150_000,
        progress=lambda *tick: told.append(tick),
    )
    assert report == audit_here(damaged)
    assert report.exit_code == 4
    lines = (tmp_path / "out" / "findings.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [one.to_dict() for one in report.findings]
    assert len(told) > 1
    assert sum(done for done, _ in told) > report.counts.message_bytes


def test_gaps_of_many_entries_are_judged_by_tasks(spark, damaged, monkeypatch):
    expected = audit_here(damaged)
    monkeypatch.setattr(job, "LOCAL_GAP_ENTRIES", 0)
    assert pipeline.audit(spark, damaged) == expected


def test_the_command_prints_findings_and_exits_by_the_worst(spark, damaged, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    assert run(["pipeline", "audit", str(damaged), "--output", "jsonl"]) == 4
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["severity"]) for one in found][:1] == [("log-damage", "damage")]
    assert run(["pipeline", "audit", str(golden_store("basic")[0])]) == 0
    assert "unwitnessed" in capsys.readouterr().out


def test_a_place_that_is_no_store_needs_no_spark(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: pytest.fail("Spark was started"))
    assert run(["pipeline", "audit", str(tmp_path)]) == 4
    assert capsys.readouterr().err.startswith(f"rocketstore: {tmp_path} is no store")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    store = str(golden_store("basic")[0])
    assert run(["pipeline", "audit", store, "--out", str(tmp_path / "out")]) == 3
    assert "is there already" in capsys.readouterr().err


def test_what_a_task_cannot_read_is_said_in_its_words(spark, damaged, monkeypatch):
    real = job.find_places

    def places_elsewhere(location, config):
        places = real(location, config)
        log = places.log._replace(
            files=tuple(file._replace(path=f"{file.path}/x") for file in places.log.files)
        )
        object.__setattr__(places, "log", log)
        return places

    monkeypatch.setattr(job, "find_places", places_elsewhere)
    monkeypatch.setattr(job, "data_stop", lambda _places, file: file.size)
    with pytest.raises(StoreError, match="cannot be read: Not a directory"):
        pipeline.audit(spark, damaged)
