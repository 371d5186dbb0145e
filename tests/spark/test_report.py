"""The report on Spark: the same files as without it, from Python and from the command line."""

from __future__ import annotations

import json

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run
from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.report import job
from rocketstore.pipeline.jobs.report.plan import plan_report
from support.busy_log import START_MS, busy_puts, write_log
from support.report_run import make_report, read_page

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "store"
    write_log(directory, busy_puts(3_000))
    return directory


def test_a_report_on_spark_equals_one_without(spark, store, tmp_path):
    done = []
    (tmp_path / "plain").mkdir()
    (tmp_path / "spark").mkdir()
    plain = make_report(store, tmp_path / "plain" / "page.html", now_ms=START_MS)
    found = pipeline.report(
        spark,
        store,
        tmp_path / "spark" / "page.html",
        max_split_bytes=150_000,
        now_ms=START_MS,
        progress=lambda *tick: done.append(tick),
    )
    assert found.page.read_bytes() == plain.page.read_bytes()
    assert found.json.read_bytes() == plain.json.read_bytes()
    assert len(done) > 1
    assert sum(amount for amount, _ in done) >= found.summary["bytes"]
    tables = spark.read.parquet(f"file://{found.tables}/queues.parquet")
    assert tables.agg({"messages": "sum"}).collect()[0][0] == 3_000


def test_a_file_that_goes_away_meanwhile_is_one_clear_error(spark, tmp_path, monkeypatch):
    write_log(tmp_path / "store", busy_puts(500))
    log = next((tmp_path / "store" / "commitlog").iterdir())
    plan = plan_report(str(tmp_path / "store"))
    log.unlink()
    monkeypatch.setattr(job, "plan_report", lambda *_, **__: plan)
    with pytest.raises(StoreError, match="cannot be read"):
        pipeline.report(spark, tmp_path / "store", tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_the_command_writes_a_page_and_says_where(spark, store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    page = tmp_path / "page.html"
    assert run(["pipeline", "report", str(store), "--out", str(page)]) == 0
    assert "3,000 messages of" in capsys.readouterr().out
    assert run(["pipeline", "report", str(store), "--out", str(page), "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == str(page)
    assert printed["summary"]["messages"] == 3_000


def test_damage_is_told_and_the_command_did_its_work(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    write_log(tmp_path / "store", busy_puts(300))
    (log,) = (tmp_path / "store" / "commitlog").iterdir()
    content = bytearray(log.read_bytes())
    content[5_000:5_100] = b"\xee" * 100
    log.write_bytes(content)
    page = tmp_path / "page.html"
    assert run(["pipeline", "report", str(tmp_path / "store"), "--out", str(page)]) == 0
    assert "1 damaged ranges" not in (said := capsys.readouterr().out)
    assert "1 damaged range of" in said
    assert "Damage. 1 damaged range" in read_page(page).text
