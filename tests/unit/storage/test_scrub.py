"""The background check of old CommitLog files: what it sees, spends and leaves alone."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import msgspec
import pytest

from rocketstore import MessageStore
from rocketstore.storage.scrub import Scrubber
from support.said import capture_logs
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    Clock,
    build_store,
    log_path,
    open_store,
    overwrite,
)

COUNT = 200
WHOLE = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[int]]:
    return tmp_path, build_store(tmp_path, COUNT, Clock())


def scrubber_of(opened: MessageStore, bytes_per_turn: int = WHOLE) -> Scrubber:
    log = opened._parts.log
    return Scrubber(
        log.files, bytes_per_turn=bytes_per_turn, durable_offset=lambda: log.flushed_offset
    )


def test_damage_in_a_cold_file_is_counted_and_logged_once(store: tuple[Path, list[int]]) -> None:
    root, offsets = store
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    overwrite(root, offsets[60] + 28, b"\xff")
    before = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    with open_store(root, Clock()) as opened, capture_logs() as logs:
        scrubber = scrubber_of(opened)
        for _ in range(3):
            scrubber.turn()
        assert scrubber.passes == 3
        assert scrubber.damaged_ranges == 2
    found = [(log["path"], log["offset"]) for log in logs if log["event"] == "scrub.damage"]
    expected = [(str(log_path(root, offsets[at])), offsets[at] % LOG_FILE_BYTES) for at in (5, 60)]
    assert found == expected
    assert {path: path.read_bytes() for path in (root / "commitlog").iterdir()} == before


def test_a_turn_checks_no_more_than_its_bytes_and_a_batch(store: tuple[Path, list[int]]) -> None:
    root, _ = store
    with open_store(root, Clock()) as opened:
        cold = len(opened._parts.log.files.files) - 1
        scrubber = scrubber_of(opened, bytes_per_turn=100)
        turns = 0
        while not scrubber.passes:
            before = scrubber.checked_bytes
            scrubber.turn()
            assert scrubber.checked_bytes - before <= LOG_FILE_BYTES
            turns += 1
        assert turns >= cold
        assert scrubber.checked_bytes == cold * LOG_FILE_BYTES


def test_the_file_that_is_written_is_left_alone(store: tuple[Path, list[int]]) -> None:
    root, offsets = store
    with open_store(root, Clock()) as opened:
        overwrite(root, offsets[-1] + 100, b"\xff\xff")
        scrubber = scrubber_of(opened)
        scrubber.turn()
        assert scrubber.damaged_ranges == 0


def test_a_file_that_retention_takes_meanwhile_ends_its_check(
    store: tuple[Path, list[int]],
) -> None:
    root, _ = store
    with open_store(root, Clock()) as opened:
        scrubber = scrubber_of(opened, bytes_per_turn=1)
        scrubber.turn()
        files = opened._parts.log.files
        assert files.remove_first(force_after_ms=0, now_ms=0) is not None
        for _ in range(20):
            scrubber.turn()
        assert scrubber.passes
        assert scrubber.damaged_ranges == 0


def test_a_file_that_cannot_be_read_is_named_and_keeps_no_other_from_being_checked(
    store: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, offsets = store
    overwrite(root, offsets[60] + 28, b"\xff")
    assert log_path(root, offsets[60]) != log_path(root, offsets[5])

    def preadv(descriptor: int, buffers: list[memoryview], position: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == log_path(root, offsets[5]):
            raise OSError(errno.EIO, "bad sector")
        return real_preadv(descriptor, buffers, position)

    real_preadv = os.preadv
    with open_store(root, Clock()) as opened, capture_logs() as logs:
        scrubber = scrubber_of(opened)
        monkeypatch.setattr(os, "preadv", preadv)
        scrubber.turn()
        assert (scrubber.passes, scrubber.damaged_ranges) == (1, 1)
    (unread,) = [log for log in logs if log["event"] == "scrub.unreadable"]
    assert unread["path"] == str(log_path(root, offsets[5]))
    assert "bad sector" in unread["error"]


def test_an_open_store_checks_its_old_files_when_it_is_told_to(
    store: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, offsets = store
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    monkeypatch.setattr("rocketstore.storage.services.TURN_INTERVAL_S", 0.01)
    config = msgspec.structs.replace(CONFIG, scrub_bytes_per_second=100 * LOG_FILE_BYTES)
    with MessageStore.open(root, config) as opened:
        deadline = time.monotonic() + 30
        while opened.runtime_info()["scrubDamagedRanges"] != "1":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with MessageStore.open(root, CONFIG) as opened:
        assert opened.runtime_info()["scrubCheckedBytes"] == "0"
