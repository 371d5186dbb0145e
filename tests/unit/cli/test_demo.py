"""The demo, whole: it is what a visitor runs first."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rocketstore import MessageStore
from rocketstore.cli.application import run
from rocketstore.cli.flights import FLIGHT_COUNT, read_flights


@pytest.mark.slow
def test_demo_stores_every_flight_verifies_the_store_and_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "flights"
    assert run(["demo", "--dir", str(directory), "--no-pipeline"]) == 0
    printed = capsys.readouterr().out
    assert f"imported   {FLIGHT_COUNT:,} flights" in printed
    assert "336,776 records" in printed
    assert "nothing wrong" in printed
    with MessageStore.open(directory, read_only=True) as store:
        assert sum(store.message_count(*key) for key in store.queues()) == FLIGHT_COUNT
        assert {key.topic for key in store.queues()} == {"EWR", "JFK", "LGA"}
    assert run(["demo", "--dir", str(directory), "--no-pipeline"]) == 0


def test_demo_touches_no_directory_that_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    assert run(["demo", "--dir", str(tmp_path)]) == 3
    assert "not made by the demo" in capsys.readouterr().err
    assert precious.read_text() == "keep"


def test_missing_values_of_the_data_set_become_null(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "year,tailnum,dep_time\n2013,NA,\n2013,N1,517\n")
    assert list(read_flights(tmp_path / "flights.csv.zip")) == [
        {"year": 2013, "tailnum": None, "dep_time": None},
        {"year": 2013, "tailnum": "N1", "dep_time": 517},
    ]
