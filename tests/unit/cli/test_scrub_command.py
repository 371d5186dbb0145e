"""``rocketstore store scrub``: prints damage, keeps its rate, changes nothing."""

import json

import pytest

from rocketstore.cli.application import run
from rocketstore.cli.scrub import ColdCheck
from rocketstore.config import StoreConfig
from support.clock import Clock
from support.golden import golden_case
from support.memory import memory_directory
from support.small_store import LOG_FILE_BYTES, build_store, log_path, open_store, overwrite


@pytest.fixture
def store():
    with memory_directory() as root:
        yield root, build_store(root, 200, Clock())


def test_a_store_of_java_is_fine_and_stays_as_it_is(capsys):
    root = golden_case("basic") / "store"
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert run(["store", "scrub", str(root), "--rate", "0"]) == 0
    assert "no damage" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_damage_is_printed_and_is_exit_code_4(store, capsys):
    root, offsets = store
    overwrite(root, offsets[5] + 100, b"\xff\xff")
    overwrite(root, offsets[-1] + 100, b"\xff\xff")
    assert run(["store", "scrub", str(root), "--output", "jsonl"]) == 4
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["physicalOffset"] for row in rows] == [offsets[5], offsets[-1]]
    assert rows[0]["file"] == str(log_path(root, offsets[5]))
    assert {(row["kind"], row["reason"]) for row in rows} == {("damage", "bad crc")}
    assert run(["store", "scrub", str(root)]) == 4
    assert "DAMAGED: 2 ranges" in capsys.readouterr().out
    assert not (root / "damage-map.json").exists()


def test_beside_a_writer_the_file_that_is_written_is_left_out(store, capsys):
    root, offsets = store
    with open_store(root, Clock()):
        overwrite(root, offsets[-1] + 100, b"\xff\xff")
        assert run(["store", "scrub", str(root)]) == 0
    assert run(["store", "scrub", str(root)]) == 4
    capsys.readouterr()


def test_the_rate_is_kept(store):
    root, _ = store
    check = ColdCheck(root, StoreConfig())
    slept: list[float] = []
    advanced: list[int] = []
    check.run(LOG_FILE_BYTES, advanced.append, sleep=slept.append, monotonic=lambda: sum(slept))
    assert check.total_bytes == check.file_count * LOG_FILE_BYTES == sum(advanced)
    # The last turn has nothing to wait for.
    assert check.file_count - 1 <= sum(slept) <= check.file_count


@pytest.mark.parametrize("rate", ["fast", "1.5M", "-1", "12T", ""])
def test_an_invalid_rate_is_wrong_usage(store, capsys, rate):
    assert run(["store", "scrub", str(store[0]), f"--rate={rate}"]) == 2
    assert "rate" in capsys.readouterr().err


def test_a_store_without_a_message_is_one_and_one_whose_log_is_away_is_none(tmp_path):
    (tmp_path / "commitlog").mkdir()
    assert run(["store", "scrub", str(tmp_path)]) == 0  # made, and without a message yet
    (tmp_path / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "orders" / "0" / "00000000000000000000").touch()
    assert run(["store", "scrub", str(tmp_path)]) == 4  # its log is away
