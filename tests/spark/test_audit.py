"""The audit through Spark itself, from Python and from the command line."""

import json
import shutil

import msgspec
import pytest
from pyarrow import parquet

from rocketstore import pipeline, verify_store
from rocketstore.cli.application import run
from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.audit import audit_plan
from support.audit_runs import audited, keys
from support.golden_stores import golden_root
from support.store_files import overwrite_file

pytestmark = [pytest.mark.spark]


@pytest.fixture
def damaged(tmp_path):
    target = shutil.copytree(golden_root("expired/files_removed"), tmp_path / "store")
    log = sorted((target / "commitlog").iterdir())[1]
    overwrite_file(log, 20_000, b"no record's bytes")
    (target / "config").mkdir(exist_ok=True)
    offsets = {"offsetTable": {"TopicTest@readers": {"0": 1 << 40}}}
    (target / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    return target


def test_spark_finds_what_verify_finds_and_writes_it(rare_spark, damaged, tmp_path):
    out = tmp_path / "out"
    report = pipeline.audit(rare_spark, damaged, out, max_split_bytes=150_000)
    verified = verify_store(damaged)
    assert keys(report.findings) == keys(verified.findings)
    assert report.counts == verified.counts
    assert report == audited(damaged)  # on frames that stand for Spark's
    assert report.exit_code == 4
    rows = parquet.read_table(out / "findings").to_pylist()
    by_text = [sorted(map(str, one)) for one in (rows, (f.to_dict() for f in report.findings))]
    assert by_text[0] == by_text[1]
    queues = parquet.read_table(out / "queues").to_pylist()
    assert queues == msgspec.to_builtins(report.queues)
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summary["exitCode"], summary["counts"]) == (4, report.counts.to_dict())
    assert sum(summary["findingCounts"].values()) == len(report.findings)
    with pytest.raises(StoreError, match="is there already"):
        pipeline.audit(rare_spark, damaged, out)


def test_the_command_prints_findings_and_exits_by_the_worst(spark, damaged, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    assert run(["pipeline", "audit", str(damaged), "--output", "jsonl"]) == 4
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["severity"]) for one in found][:1] == [("log-damage", "damage")]
    assert run(["pipeline", "audit", str(golden_root("basic"))]) == 0
    assert "checksums of bodies only" in capsys.readouterr().out


def test_a_place_that_is_no_store_needs_no_spark(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: pytest.fail("Spark was started"))
    assert run(["pipeline", "audit", str(tmp_path)]) == 4
    assert capsys.readouterr().err.startswith(f"rocketstore: {tmp_path} is not a store")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    store = str(golden_root("basic"))
    assert run(["pipeline", "audit", store, "--out", str(tmp_path / "out")]) == 3
    assert "is there already" in capsys.readouterr().err


def test_what_a_task_cannot_read_is_said_in_its_words(spark, damaged, monkeypatch):
    real = audit_plan.plan_tasks

    def elsewhere(*arguments):
        common, tasks, wrong = real(*arguments)
        moved = [
            tuple(
                one._replace(segment=one.segment._replace(path=f"{one.segment.path}/x"))
                for one in task.cuts
            )
            for task in tasks
        ]
        return common, [t._replace(cuts=c) for t, c in zip(tasks, moved, strict=True)], wrong

    monkeypatch.setattr(audit_plan, "plan_tasks", elsewhere)
    with pytest.raises(StoreError, match="cannot be read: Not a directory"):
        pipeline.audit(spark, damaged)
