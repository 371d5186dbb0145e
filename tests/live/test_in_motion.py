"""What a writer does while somebody looks is no damage: files are not read in one moment."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstore import verify_store
from rocketstore.audit import verify
from rocketstore.cli import log_scan
from rocketstore.cli.log_scan import LogScan
from rocketstore.config import StoreConfig
from rocketstore.storage.files.pread_files import LogFile
from support.golden import golden_case

TORN_AT = 117_000
"""In the second file, a few records in front of its BLANK."""


@pytest.fixture
def store(tmp_path):
    return shutil.copytree(golden_case("basic") / "store", tmp_path / "store")


@pytest.fixture(autouse=True)
def _writer(monkeypatch):
    monkeypatch.setattr(verify, "may_have_writer", lambda _lock: True)
    monkeypatch.setattr(log_scan, "writer_pid", lambda _lock: 4711)


def tear(store: Path, place: int = TORN_AT) -> Callable[[], None]:
    """Make zeros of a part of the log and return what writes it again."""
    path = store / "commitlog" / f"{65_536:020d}"
    whole = path.read_bytes()
    at = place - 65_536
    path.write_bytes(whole[:at] + bytes(200) + whole[at + 200 :])
    return lambda: path.write_bytes(whole) and None


def between_looks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[int]:
    genuine, looks = verify.audit_store, []

    def audit(*arguments: Any, **options: Any) -> Any:
        found = genuine(*arguments, **options)
        looks.append(1)
        if len(looks) == 1:
            act()
        return found

    monkeypatch.setattr(verify, "audit_store", audit)
    return looks


def test_what_a_second_look_does_not_find_is_no_finding(store, monkeypatch):
    looks = between_looks(monkeypatch, tear(store))
    report = verify_store(store)
    assert (report.findings, len(looks)) == ([], 2)
    assert report.counts.message_count == 1489


def test_what_is_found_twice_is_reported_beside_a_writer(store, monkeypatch):
    tear(store)
    looks = between_looks(monkeypatch, lambda: None)
    report = verify_store(store)
    assert report.is_damaged
    assert "log-damage" in {found.kind for found in report.findings}
    assert len(looks) == 2


def test_a_file_that_goes_meanwhile_does_not_end_a_verification(store, monkeypatch):
    def vanish() -> None:
        raise FileNotFoundError("made ahead, and deleted as the writer ended")

    looks = between_looks(monkeypatch, vanish)
    assert verify_store(store).findings == []
    assert len(looks) == 2


@pytest.mark.parametrize("at", [65_536, TORN_AT])
def test_a_scan_reads_again_what_was_being_written(store, monkeypatch, at):
    genuine = LogFile.read_into
    write_again = tear(store, at)

    def read(file: LogFile, position: int, view: memoryview) -> int:
        count = genuine(file, position, view)
        if file.base == 65_536:
            write_again()
        return count

    monkeypatch.setattr(LogFile, "read_into", read)
    scan = LogScan(store, StoreConfig(), None, None)
    rows = list(scan.rows())
    assert sum(row["kind"] == "message" for row in rows) == 1489
    offsets = [row["physicalOffset"] for row in rows]
    assert offsets == sorted(set(offsets))
    assert scan.damaged_bytes == 0


@pytest.mark.parametrize("writer", [4711, None])
def test_an_unfinished_end_is_damage_where_no_writer_is(store, monkeypatch, writer):
    monkeypatch.setattr(log_scan, "writer_pid", lambda _lock: writer)
    tear(store)
    torn = store / "commitlog" / f"{65_536:020d}"
    last = max((store / "commitlog").iterdir())
    content = last.read_bytes()
    end = len(content.rstrip(b"\0"))
    last.write_bytes(content[: end - 170] + bytes(len(content) - end + 170))
    damage = list(LogScan(store, StoreConfig(), None, None).rows(damage_only=True))
    damaged = [torn] if writer else [torn, last]
    assert [row["file"] for row in damage] == [str(path) for path in damaged]
