"""The directory of a report: whole or not there, and nothing of anybody else touched."""

import json
from unittest import mock

import pytest

from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.report import report_job
from rocketstore.pipeline.jobs.report.report_tables import TABLES
from support import report_run
from support.busy_log import START_MS, busy_puts, write_log
from support.report_run import make_report, tables_of
from support.trees import tree


@pytest.fixture
def store(tmp_path):
    directory = tmp_path / "store"
    write_log(directory, busy_puts(200))
    return directory


def test_page_tables_and_json_are_written_and_nothing_else(store, tmp_path):
    before = tree(store)
    report = make_report(store, tmp_path / "report", now_ms=START_MS)
    assert sorted(tree(tmp_path / "report")) == sorted(
        ["index.html", "report.json", *(f"tables/{name}.parquet" for name in TABLES)]
    )
    assert tree(store) == before
    assert report.page == tmp_path / "report" / "index.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "store"]


def test_json_holds_what_the_page_shows(store, tmp_path):
    report = make_report(store, tmp_path / "report", now_ms=START_MS)
    loaded = json.loads(report.json.read_text())
    assert loaded["summary"] == report.summary
    assert sum(loaded["traffic"]["messages"]) == report.summary["messages"] == 200
    rows = tables_of(report)["topics"]
    assert [row["topic"] for row in loaded["topics"]] == [row["topic"] for row in rows]


def test_a_directory_that_is_there_is_refused_and_left_alone(store, tmp_path):
    make_report(store, tmp_path / "report", now_ms=START_MS)
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="is there already"):
        make_report(store, tmp_path / "report", now_ms=START_MS)
    assert tree(tmp_path) == before


def test_a_place_may_be_called_like_a_pattern(store, tmp_path):
    make_report(store, tmp_path / "a", now_ms=START_MS)
    report = make_report(store, tmp_path / "it's [a-z]*?", now_ms=START_MS)
    assert tree(report.page.parent) == tree(tmp_path / "a")


def test_a_table_that_cannot_be_made_is_one_clear_error(store, tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES, "topics", "SELECT error('no room for more')")
    with pytest.raises(StoreError, match=r"tables of the report cannot be made .*no room for more"):
        make_report(store, tmp_path / "report")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_the_driver_has_little_memory_for_tables_whatever_the_log(store, tmp_path, monkeypatch):
    limits = "current_setting('memory_limit') || ', ' || current_setting('threads')"
    monkeypatch.setitem(TABLES, "topics", f"SELECT error({limits})")
    with pytest.raises(StoreError, match=r"61\.0 MiB, 1"):
        make_report(store, tmp_path / "report")


@pytest.mark.parametrize(
    ("owner", "step", "error"),
    [
        (report_job, "report_page", OSError(28, "No space left on device")),
        (report_run, "count_task", StoreError("the file cannot be read")),
    ],
    ids=["the page", "a worker"],
)
def test_a_report_that_fails_half_way_leaves_nothing(
    store, tmp_path, monkeypatch, owner, step, error
):
    monkeypatch.setattr(owner, step, mock.Mock(side_effect=error))
    with pytest.raises(StoreError, match=r"No space left on device|the file cannot be read"):
        make_report(store, tmp_path / "report")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
