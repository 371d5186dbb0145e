"""The slow check of old CommitLog files: what it sees, spends, keeps and leaves alone."""

import errno
import itertools
import json
import os
from bisect import bisect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketstore import MessageStore
from rocketstore.cli import exit_codes
from rocketstore.cli.application import run
from rocketstore.errors import FormatError, SystemRefusedError
from rocketstore.metrics.damage_map import (
    DAMAGE_MAP_FILE_NAME,
    DamageMap,
    decode_damage_map,
    encode_damage_map,
)
from rocketstore.metrics.scrub import Scrubber
from rocketstore.metrics.scrub_service import ScrubService
from rocketstore.storage.files.pread_files import PreadFiles
from support.clock import Clock
from support.failing_calls import bad_sector
from support.failing_disk import FailingDisk
from support.inside import parts_of
from support.patience import wait_until
from support.said import capture_logs
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    build_store,
    log_path,
    messages,
    open_store,
    overwrite,
    put_all,
)

COUNT = 200
WHOLE = 1 << 30
SCRUBBED = msgspec.structs.replace(CONFIG, scrub_bytes_per_second=100 * LOG_FILE_BYTES)


@pytest.fixture
def offsets(root):
    """Build a store of 200 messages; return where they lie."""
    return build_store(root, COUNT, Clock())


def scrubber_of(opened: MessageStore) -> Scrubber:
    return Scrubber(
        PreadFiles(opened.layout.log_directories),
        cold_end=lambda: opened.flushed_physical_offset,
        now_ms=Clock(),
    )


def places(scrubber: Scrubber) -> list[tuple[int, str]]:
    return [(one.physical_offset, one.reason) for one in scrubber.map.damage]


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (root / "commitlog").iterdir()}


def test_damage_in_a_cold_file_is_kept_and_logged_once(root, offsets):
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    overwrite(root, offsets[60] + 28, b"\xff")
    before = contents(root)
    with open_store(root, Clock()) as opened, capture_logs() as logs:
        scrubber = scrubber_of(opened)
        scrubber.now_ms = itertools.count(1).__next__
        assert scrubber.turn(WHOLE)
        since = [one.found_timestamp for one in scrubber.map.damage]
        for _ in range(2):
            assert scrubber.turn(WHOLE)
        assert scrubber.map.passes == 3
        assert [one.found_timestamp for one in scrubber.map.damage] == since
        assert places(scrubber) == [(offsets[5], "bad crc"), (offsets[60], "bad address")]
    found = [
        (log["path"], log["physical_offset"]) for log in logs if log["event"] == "scrub.damage"
    ]
    assert found == [(str(log_path(root, offsets[at])), offsets[at]) for at in (5, 60)]
    assert contents(root) == before


def test_what_is_intact_again_leaves_the_map(root, offsets):
    intact = log_path(root, offsets[5]).read_bytes()
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    with open_store(root, Clock()) as opened:
        scrubber = scrubber_of(opened)
        scrubber.turn(WHOLE)
        assert len(scrubber.map.damage) == 1
        log_path(root, offsets[5]).write_bytes(intact)
        scrubber.turn(WHOLE)
        assert scrubber.map.damage == ()


def test_a_lost_end_of_a_file_and_a_missing_file_are_damage(root, offsets):
    with open_store(root, Clock()) as opened:
        cut = log_path(root, offsets[5])
        last = max(offset for offset in offsets if offset < LOG_FILE_BYTES)
        cut.write_bytes(cut.read_bytes()[:last].ljust(LOG_FILE_BYTES, b"\0"))
        (root / "commitlog" / f"{LOG_FILE_BYTES:020d}").unlink()
        os.truncate(root / "commitlog" / f"{2 * LOG_FILE_BYTES:020d}", LOG_FILE_BYTES - 1)
        scrubber = scrubber_of(opened)
        scrubber.turn(WHOLE)
        assert places(scrubber) == [
            (last, "unwritten hole"),
            (LOG_FILE_BYTES, "missing file"),
            (3 * LOG_FILE_BYTES - 1, "missing file"),  # of the zeros after its BLANK
        ]
        sizes = [LOG_FILE_BYTES - last, LOG_FILE_BYTES, 1]
        assert [one.size for one in scrubber.map.damage] == sizes
        for end, count in ((2 * LOG_FILE_BYTES, 2), (2 * LOG_FILE_BYTES - 1, 1)):
            colder = Scrubber(scrubber._files, cold_end=lambda end=end: end, now_ms=Clock())
            colder.turn(WHOLE)
            assert len(colder.map.damage) == count


def test_a_turn_checks_no_more_than_its_bytes_and_a_batch(root, offsets):
    with open_store(root, Clock()) as opened:
        scrubber = scrubber_of(opened)
        cold = len(parts_of(opened).log.files.files) - 1
        assert len(scrubber.cold_files) == cold
        turns = 0
        while not scrubber.map.passes:
            before = scrubber.checked_bytes
            scrubber.turn(100)
            assert scrubber.checked_bytes - before <= LOG_FILE_BYTES
            turns += 1
        assert turns >= cold
        assert scrubber.checked_bytes == cold * LOG_FILE_BYTES


def test_the_file_that_is_written_is_left_alone(root, offsets):
    with open_store(root, Clock()) as opened:
        overwrite(root, offsets[-1] + 100, b"\xff\xff")
        scrubber = scrubber_of(opened)
        scrubber.turn(WHOLE)
        assert not scrubber.map.damage


def test_what_retention_takes_meanwhile_ends_its_check_and_leaves_the_map(root, offsets):
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    with open_store(root, Clock()) as opened:
        scrubber = scrubber_of(opened)
        scrubber.turn(WHOLE)
        assert scrubber.map.damage
        scrubber.turn(1)
        files = parts_of(opened).log.files
        assert files.remove_first(force_after_ms=0, now_ms=0) is not None
        scrubber.turn(WHOLE)
        scrubber.turn(WHOLE)
        assert scrubber.map.passes >= 2
        assert not scrubber.map.damage


def refuse_to_open(
    bad: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None
) -> None:
    """Have the system open all but one file, which by default it gives no permission for."""
    real_open = os.open
    denied = PermissionError(errno.EACCES, "Permission denied", str(bad))

    def refusing(path: Any, *rest: Any, **more: Any) -> int:
        if str(path) == str(bad):
            raise error or denied
        return real_open(path, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.parametrize("is_denied", [False, True])
def test_a_file_that_cannot_be_read_is_damage_unless_permission_lacks_and_others_are_checked(
    monkeypatch, root, offsets, is_denied
):
    overwrite(root, offsets[60] + 28, b"\xff")
    bad = log_path(root, offsets[5])
    assert log_path(root, offsets[60]) != bad
    with open_store(root, Clock()) as opened:
        scrubber = scrubber_of(opened)
        refuse_to_open(bad, monkeypatch, None if is_denied else OSError(errno.EIO, "bad sector"))
        if is_denied:
            with pytest.raises(SystemRefusedError, match=f"cannot check {bad}: .*denied; let the "):
                scrubber.turn(WHOLE)
        assert scrubber.turn(WHOLE)
        monkeypatch.undo()
    unreadable = [] if is_denied else [(0, "unreadable")]
    assert places(scrubber) == [*unreadable, (offsets[60], "bad address")]
    assert is_denied or "bad sector" in scrubber.map.damage[0].evidence


def test_a_bad_sector_hides_only_the_records_that_lie_in_it(monkeypatch, root, offsets):
    overwrite(root, offsets[40] + 28, b"\xff")
    bad = log_path(root, offsets[5])
    assert log_path(root, offsets[40]) == bad
    first, after = (bisect(offsets, at) for at in (4096, 8191))
    with open_store(root, Clock()) as opened:
        scrubber = scrubber_of(opened)
        bad_sector(bad, monkeypatch)
        scrubber.turn(WHOLE)
        monkeypatch.undo()
    assert places(scrubber) == [(offsets[first - 1], "unreadable"), (offsets[40], "bad address")]
    assert scrubber.map.damage[0].stop == offsets[after]
    assert "bad sector" in scrubber.map.damage[0].evidence


def test_the_command_ends_with_3_and_a_hint_where_a_file_may_not_be_read(
    monkeypatch, capsys, root, offsets
):
    for command, offset in itertools.product(("scrub", "scan"), (offsets[5], offsets[-1])):
        refuse_to_open(log_path(root, offset), monkeypatch)
        assert run(["store", command, str(root)]) == exit_codes.UNREACHABLE
        monkeypatch.undo()
        said = capsys.readouterr().err
        assert str(log_path(root, offset)) in said
        assert "denied; let the user of this process enter the directories above it, read" in said
        assert said.endswith("write it and its directory unless it only reads (chown, chmod)\n")


# --- in an open store ---------------------------------------------------------------------------


def service_of(opened: MessageStore, disk: Any = None) -> ScrubService:
    opened.disk = disk or opened.disk
    return ScrubService(opened)


def open_scrubbed(root: Path) -> MessageStore:
    return MessageStore.open(root, SCRUBBED, clock=Clock(), threads=False)


def test_the_map_survives_a_restart_and_the_check_goes_on_where_it_stopped(root, offsets):
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    small = msgspec.structs.replace(CONFIG, scrub_bytes_per_second=LOG_FILE_BYTES)
    with MessageStore.open(root, small, clock=Clock(), threads=False) as opened:
        service = service_of(opened)
        service.turn()
        service.turn()
        service.stop()
        position = service.known.position
        assert 0 < position < offsets[-1]
    written = json.loads((root / DAMAGE_MAP_FILE_NAME).read_bytes())
    assert written["damage"][0]["physicalOffset"] == offsets[5]
    with open_scrubbed(root) as opened, capture_logs() as logs:
        assert opened.runtime_info()["scrubDamagedRanges"] == "1"
        service = service_of(opened)
        assert service.known.position == service.runtime_info()["scrubPosition"] == position
        service.turn()
        told = service.runtime_info()
        assert service.known.passes == told["scrubPasses"] == 1
        assert told["scrubLastPassTimestamp"] == service.known.last_pass_timestamp > 0
        assert told["scrubCheckedBytes"] < offsets[-1] - position
        assert service.known.damage[0].physical_offset == offsets[5]
        service.stop()
    assert not [log for log in logs if log["event"] == "scrub.damage"]


def test_a_map_that_is_broken_or_cannot_be_written_stops_nothing(root, offsets):
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    (root / DAMAGE_MAP_FILE_NAME).write_bytes(b'{"position": "far"')
    disk = FailingDisk()
    with open_scrubbed(root) as opened, capture_logs() as logs:
        service = service_of(opened, disk=disk)
        disk.is_full = True
        service.turn()
        assert len(service.known.damage) == 1
        assert not (root / DAMAGE_MAP_FILE_NAME).read_bytes().startswith(b"{\n")
        disk.is_full = False
        service.turn()
    assert decode_damage_map((root / DAMAGE_MAP_FILE_NAME).read_bytes()) == service.known
    events = {log["event"] for log in logs}
    assert {"scrub.map_unreadable", "scrub.map_unwritten"} <= events


def test_the_check_pauses_under_load(root, offsets):
    clock = Clock()
    config = msgspec.structs.replace(SCRUBBED, scrub_pause_above=5)
    with MessageStore.open(root, config, clock=clock, threads=False) as opened:
        opened.statistics._monotonic = clock
        service = service_of(opened)

        def seconds(count: int, puts: int) -> None:
            for _ in range(count):
                put_all(opened, messages(puts), Clock(clock.now_ms))
                clock.now_ms += 1000
                opened.statistics.sample()

        seconds(12, 6)
        service.turn()
        assert service.is_paused
        assert service.runtime_info()["scrubCheckedBytes"] == 0
        seconds(12, 4)
        service.turn()
        assert service.runtime_info()["scrubCheckedBytes"] > 0


def test_an_open_store_checks_its_old_files_when_the_setting_says_so(monkeypatch, root, offsets):
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    monkeypatch.setattr("rocketstore.metrics.scrub_service.TURN_INTERVAL_S", 0.01)
    config = msgspec.structs.replace(SCRUBBED, scrub_bytes_per_second=10_000 * LOG_FILE_BYTES)
    with MessageStore.open(root, config) as opened:
        wait_until(lambda: opened.runtime_info()["scrubDamagedRanges"] == "1")
    with MessageStore.open(root, CONFIG) as opened:
        assert opened.runtime_info()["scrubCheckedBytes"] == "0"
        assert opened.runtime_info()["scrubDamagedBytes"] != "0"


def test_a_store_that_is_not_checked_gets_no_map(root, offsets):
    with MessageStore.open(root, CONFIG):
        pass
    assert not (root / DAMAGE_MAP_FILE_NAME).exists()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"damage": [{}]}', b"\xff\xfe", b"{" * 99])
def test_what_is_no_map_is_refused(content):
    with pytest.raises(FormatError, match="no damage map"):
        decode_damage_map(content)
    assert decode_damage_map(encode_damage_map(DamageMap())) == DamageMap()
