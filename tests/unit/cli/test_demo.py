"""The demo, whole: it is what a visitor runs first."""

import shlex
import zipfile
from collections import Counter
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from rocketstore import MessageStore
from rocketstore.cli import demo
from rocketstore.cli.application import run
from rocketstore.cli.demo import FLIGHT_COUNT, HINTS, flight_message, read_flights
from rocketstore.cli.wording import program_name


@pytest.mark.slow
def test_demo_stores_every_flight_verifies_the_store_and_runs_again(tmp_path, capsys, monkeypatch):
    directory = tmp_path / "flights"
    assert run(["demo", "--dir", str(directory), "--no-pipeline"]) == 0
    printed = capsys.readouterr().out
    assert f"imported   {FLIGHT_COUNT:,} flights" in printed
    assert "336,776 records" in printed
    assert "plane N723MQ left JFK 5 times" in printed
    assert "nothing wrong" in printed
    assert "delayed    a message of delay level 1 came " in printed
    assert "departures had 1 message before, 2 after" in printed
    assert "it reads: seat 12A is sold\n" in printed
    assert "RocketMQ keeps checksums of bodies only" in printed
    _, _, hints = printed.partition("Look around yourself:\n")
    assert [run(shlex.split(hint)[1:]) for hint in hints.splitlines()] == [0] * len(HINTS)
    assert _flights_of(directory) == {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}
    few = 20_000  # enough to see that the second run leaves nothing of the first
    monkeypatch.setattr(demo, "FLIGHT_COUNT", few)
    monkeypatch.setattr(demo, "read_flights", lambda path: islice(read_flights(path), few))
    assert run(["demo", "--dir", str(directory), "--no-pipeline"]) == 0
    assert sum(_flights_of(directory).values()) == few


def _flights_of(directory: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    with MessageStore.open(directory, read_only=True) as store:
        for key in store.queues():
            counts[key.topic] += store.message_count(*key)
    return counts


@pytest.mark.parametrize(
    ("started", "on_path", "program"),
    [
        ("/usr/bin/rocketstore", "/usr/bin", "rocketstore"),
        ("{here}/.venv/bin/rocketstore", "/bin", ".venv/bin/rocketstore"),
        (".venv/bin/rocketstore", "/bin", ".venv/bin/rocketstore"),
        ("/some where/rocketstore", "/bin", "'/some where/rocketstore'"),
        ("/x/rocketstore/cli/__main__.py", "/bin", "/usr/bin/python3 -m rocketstore.cli"),
        ("/usr/bin/pytest", "/bin", "rocketstore"),
    ],
)
def test_hints_name_the_program_as_it_was_started(started, on_path, program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [started.format(here=tmp_path)])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    monkeypatch.setattr("shutil.which", lambda name: f"{on_path}/{name}")
    assert program_name() == program


def test_a_flight_is_born_when_it_is_imported():
    row = {"origin": "JFK", "carrier": "AA", "flight": 7, "tailnum": None,
           "time_hour": "2013-01-01T05:00:00Z"}  # fmt: skip
    message, queue_id = flight_message(row, msgspec.json.Encoder())
    assert message.born_timestamp_ms is None  # the time of the put
    assert (message.topic, message.tags, message.keys, queue_id) == ("JFK", "AA", ("AA7",), 3)


def test_demo_touches_no_directory_that_it_did_not_make(tmp_path, capsys):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    assert run(["demo", "--dir", str(tmp_path)]) == 3
    assert "not made by the demo" in capsys.readouterr().err
    assert precious.read_text() == "keep"


@pytest.mark.parametrize(("directory", "code"), [("", 2), (".", 3), ("/", 3)])
def test_demo_makes_a_directory_that_has_a_name(directory, code, capsys):
    assert run(["demo", "--dir", directory]) == code
    assert "name" in capsys.readouterr().err


def test_missing_values_of_the_data_set_become_null(tmp_path):
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "year,tailnum,dep_time\n2013,NA,\n2013,N1,517\n")
    assert list(read_flights(tmp_path / "flights.csv.zip")) == [
        {"year": 2013, "tailnum": None, "dep_time": None},
        {"year": 2013, "tailnum": "N1", "dep_time": 517},
    ]
