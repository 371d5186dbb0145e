"""A log that is looked at again and again: its files are listed when one of them changed."""

import os
from pathlib import Path

import pytest

from rocketstore.pipeline.streaming import live_log
from rocketstore.pipeline.streaming.live_log import LogListing
from rocketstore.places import log_files
from rocketstore.places.log_files import list_segments
from rocketstore.places.stores import StorePlace
from support.sparse_log import make_sparse_log
from support.store_files import overwrite_file
from support.stream_run import StreamRun

FILE_BYTES = 1 << 30
AN_HOUR_AGO_NS = 3_600_000_000_000


@pytest.fixture
def log(tmp_path):
    """Return the directory of a log of four files, of which the last holds nothing yet."""
    make_sparse_log(tmp_path / "store", 3)
    directory = tmp_path / "store" / "commitlog"
    made_ahead(directory, 3)
    settle(directory)
    return directory


@pytest.fixture
def listed(monkeypatch):
    """Return what a listing of all files is noted in."""
    noted = []

    def listing(place):
        noted.append(place)
        return list_segments(place)

    monkeypatch.setattr(live_log, "list_segments", listing)
    return noted


def settle(directory: Path, seconds: int = 0) -> None:
    """Let the last name that came or went have done so an hour ago, and some seconds."""
    then_ns = directory.stat().st_ctime_ns - AN_HOUR_AGO_NS + seconds * 10**9
    os.utime(directory, ns=(then_ns, then_ns))


def made_ahead(directory: Path, number: int) -> None:
    with (directory / f"{number * FILE_BYTES:020d}").open("xb") as file:
        file.truncate(FILE_BYTES)


def place_of(directory: Path) -> StorePlace:
    return StorePlace(str(directory.parent), "broker", is_open=True)


def test_a_log_of_which_nothing_changed_is_listed_once(log, listed):
    listing = LogListing()
    looks = [listing.segments(place_of(log)) for _ in range(3)]
    assert looks == [list_segments(place_of(log))] * 3
    assert len(listed) == 1


def test_a_log_without_a_file_is_listed_once_a_trigger(tmp_path, monkeypatch):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "lock").touch()
    run, noted, listed = StreamRun(tmp_path / "store"), [], log_files._listed
    assert run.batch() == []
    monkeypatch.setattr(log_files, "_listed", lambda store: noted.append(store) or listed(store))
    assert run.batch() is None
    assert len(noted) == 1


def replaced(log: Path) -> None:
    log.rename(log.with_name("before"))
    log.mkdir()
    made_ahead(log, 7)


CHANGES = {
    "the first file went": lambda log: (log / f"{0:020d}").unlink(),
    "a file in the middle went": lambda log: (log / f"{FILE_BYTES:020d}").unlink(),
    "the last file went": lambda log: (log / f"{3 * FILE_BYTES:020d}").unlink(),
    "a file came": lambda log: made_ahead(log, 4),
    "another directory is there": replaced,
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("is_settled", [True, False])
def test_a_name_that_came_or_went_is_seen(log, listed, what, is_settled):
    listing = LogListing()
    listing.segments(place_of(log))
    CHANGES[what](log)
    if is_settled:
        settle(log, seconds=1)
    assert listing.segments(place_of(log)) == list_segments(place_of(log))
    assert len(listed) == 2


def test_the_first_bytes_of_a_file_made_ahead_are_seen(log, listed):
    listing = LogListing()
    before = listing.segments(place_of(log))
    overwrite_file(log / f"{3 * FILE_BYTES:020d}", 0, b"\0\0\1\0")
    after = listing.segments(place_of(log))
    assert [one.is_last for one in before] == [False, False, True, True]
    assert [one.is_last for one in after] == [False, False, False, True]
    assert after == list_segments(place_of(log))


def test_a_last_file_that_grows_is_seen(log):
    last, listing = log / f"{3 * FILE_BYTES:020d}", LogListing()
    os.truncate(last, 4096)
    assert listing.segments(place_of(log))[-1].size == 4096
    os.truncate(last, 8192)
    assert listing.segments(place_of(log))[-1].size == 8192


def test_a_directory_that_changed_just_now_is_not_trusted(log, listed):
    """Another name may come with the same time: the clock of a file system has ticks."""
    os.utime(log)
    listing = LogListing()
    for _ in range(3):
        listing.segments(place_of(log))
    assert len(listed) == 3
