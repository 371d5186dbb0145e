"""The files of a report: whole or not there, and nothing of anybody else touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.jobs.report import job, output
from rocketstore.pipeline.jobs.report.tables import SCHEMAS
from support.busy_log import START_MS, busy_puts, write_log
from support.report_run import make_report, tables_of


@pytest.fixture
def store(tmp_path):
    write_log(tmp_path / "store", busy_puts(300))
    return tmp_path / "store"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def contents(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_page_tables_and_json_are_written_and_nothing_else(store, place):
    before = contents(store)
    report = make_report(store, place / "page.html", now_ms=START_MS)
    assert sorted(contents(place)) == sorted(
        ["page.html", "page.json", *(f"page.tables/{name}.parquet" for name in SCHEMAS)]
    )
    assert contents(store) == before
    assert (report.page, report.tables) == (place / "page.html", place / "page.tables")


def test_json_holds_the_tables_and_the_summary(store, place):
    report = make_report(store, place / "page.html", now_ms=START_MS)
    loaded = json.loads(report.json.read_text())
    assert loaded["summary"] == report.summary
    for name, rows in tables_of(report).items():
        assert len(loaded["tables"][name]) == len(rows)
        if rows:
            assert list(loaded["tables"][name][0]) == list(rows[0]) == list(SCHEMAS[name])
    first = loaded["tables"]["traffic"][0]["startTimestamp"]
    assert first == "2023-11-14T22:13:00.000+00:00"


def test_an_earlier_report_is_replaced_as_a_whole(store, place, tmp_path):
    make_report(store, place / "page.html", now_ms=START_MS)
    write_log(tmp_path / "other", busy_puts(100, seed=7))
    make_report(tmp_path / "other", place / "page.html", now_ms=START_MS)
    (place / "fresh").mkdir()
    make_report(tmp_path / "other", place / "fresh" / "page.html", now_ms=START_MS)
    fresh = contents(place / "fresh")
    assert {name: contents(place)[name] for name in fresh} == fresh


@pytest.mark.parametrize("failing", ["page", "json"])
def test_a_report_that_fails_half_way_leaves_the_earlier_one_as_it_was(
    store, place, monkeypatch, failing
):
    make_report(store, place / "page.html", now_ms=START_MS)
    before = contents(place)
    write = output._write_text

    def fail(path, text):
        if path.name == failing:
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(output, "_write_text", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        make_report(store, place / "page.html", now_ms=START_MS + 1)
    assert contents(place) == before


def test_tables_that_cannot_be_put_in_place_leave_the_earlier_ones(store, place, monkeypatch):
    make_report(store, place / "page.html", now_ms=START_MS)
    before = contents(place)
    rename = Path.rename

    def fail(self, target):
        if self.name == "tables":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        make_report(store, place / "page.html", now_ms=START_MS + 1)
    assert contents(place) == before


def test_a_worker_that_fails_leaves_no_file(store, place, monkeypatch):
    def fail(*_):
        raise StoreError("the file cannot be read")

    monkeypatch.setattr(job, "report_tables", fail)
    with pytest.raises(StoreError):
        make_report(store, place / "page.html")
    assert contents(place) == {}


def test_a_place_inside_the_store_is_refused(store):
    with pytest.raises(ConfigError, match="inside the store"):
        make_report(store, store / "page.html")


@pytest.mark.parametrize("name", ["page", "page.json", "page.tables"])
def test_a_name_that_tables_or_json_would_overwrite_is_refused(store, place, name):
    with pytest.raises(ConfigError, match="no name of a page"):
        make_report(store, place / name)


def test_a_directory_with_other_files_is_left_alone(store, place):
    (place / "page.tables").mkdir()
    (place / "page.tables" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="it holds mine"):
        make_report(store, place / "page.html")
    assert contents(place) == {"page.tables/mine.txt": b"precious"}


def test_a_missing_directory_is_said_before_anything_is_counted(store, place):
    with pytest.raises(StoreError, match="is not there"):
        make_report(store, place / "nowhere" / "page.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_said(store, place):
    place.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be written to"):
        make_report(store, place / "page.html")
