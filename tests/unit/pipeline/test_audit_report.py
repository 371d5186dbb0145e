"""An audit's report on disk is whole or not there."""

from __future__ import annotations

import hashlib
import json

import pytest
from pyarrow import parquet

from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.audit import report as report_module
from rocketstore.pipeline.jobs.audit.findings import AuditCounts, Finding, Severity
from rocketstore.pipeline.jobs.audit.report import (
    AuditReport,
    QueueRow,
    check_target,
    write_report,
)

FOUND = Finding(
    Severity.DAMAGE, "queue-hole", "consumequeue/Tö/0", 20, 40, "why", "what", "Tö", 0, 1
)
REPORT = AuditReport(
    "/data/store",
    [FOUND, Finding(Severity.NOTE, "abort", "abort", 0, 0, "why", "nothing")],
    AuditCounts(message_count=3),
    [QueueRow("Tö", 0, 3, 0, 3, 3, 0, 0, 1), QueueRow("Empty", 1, 0, None, None, 0, 0, 0, 0)],
)


def test_the_report_reads_back(tmp_path):
    write_report(REPORT, tmp_path / "out")
    rows = [finding.to_dict() for finding in REPORT.findings]
    assert parquet.read_table(tmp_path / "out" / "findings.parquet").to_pylist() == rows
    lines = (tmp_path / "out" / "findings.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    queues = parquet.read_table(tmp_path / "out" / "queues.parquet").to_pylist()
    assert queues == [row.to_dict() for row in REPORT.queues]


def test_the_manifest_vouches_for_every_file(tmp_path):
    write_report(REPORT, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert (manifest["exitCode"], manifest["findingCount"]) == (4, 2)
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert {one["name"] for one in manifest["files"]} | {"manifest.json"} == there
    for one in manifest["files"]:
        content = (tmp_path / "out" / one["name"]).read_bytes()
        assert (one["size"], one["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(path, rows):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report_module, "_write_lines", fail)
    with pytest.raises(StoreError, match=r"cannot be written to .*: No space left"):
        write_report(REPORT, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    check_target(tmp_path / "out")  # empty
    write_report(REPORT, tmp_path / "out")
    with pytest.raises(StoreError, match="is there already"):
        check_target(tmp_path / "out")
    with pytest.raises(StoreError, match="is no directory; make it first"):
        check_target(tmp_path / "nowhere" / "out")


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        ([Severity.NOTE], 0),
        ([Severity.NOTE, Severity.WARNING], 1),
        ([Severity.DAMAGE, Severity.WARNING], 4),
    ],
)
def test_the_worst_finding_decides_the_exit_code(severities, code):
    findings = [FOUND._replace(severity=severity) for severity in severities]
    assert REPORT._replace(findings=findings).exit_code == code
