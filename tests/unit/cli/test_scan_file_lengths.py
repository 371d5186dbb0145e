"""``store scan`` of files of a wrong length: all that is intact is listed."""

import itertools
import json
import os
from pathlib import Path

import pytest

from rocketstore.format.file_name import file_name
from support.clock import Clock
from support.small_store import LOG_FILE_BYTES, build_store
from unit.cli.test_reading_commands import run

SET = ["--set", f"mappedFileSizeCommitLog={LOG_FILE_BYTES}"]


def scanned(
    root: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[dict]]:
    code = run(["store", "scan", str(root), "--output", "jsonl", *options])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def messages_of(rows: list[dict]) -> list[int]:
    return [row["physicalOffset"] for row in rows if row["kind"] == "message"]


def damage_of(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["kind"] == "damage"]


@pytest.mark.parametrize("options", [[], SET])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("surplus", [100, LOG_FILE_BYTES])
def test_of_a_file_that_is_too_long_everything_intact_is_listed(
    tmp_path, capsys, options, number, surplus
):
    offsets = build_store(tmp_path, 70, Clock())
    assert LOG_FILE_BYTES < offsets[-1] < 2 * LOG_FILE_BYTES
    path = tmp_path / "commitlog" / file_name(number * LOG_FILE_BYTES)
    os.truncate(path, LOG_FILE_BYTES + surplus)
    code, rows = scanned(tmp_path, capsys, *options)
    assert messages_of(rows) == offsets
    (damage,) = damage_of(rows)
    assert (damage["file"], damage["size"]) == (str(path), surplus)
    assert f"expected {LOG_FILE_BYTES} bytes, found {LOG_FILE_BYTES + surplus}" in damage["reason"]
    assert code == 4


@pytest.mark.parametrize("options", [[], SET])
@pytest.mark.parametrize("kept", [3000, 8192, 16_000])
def test_of_a_last_file_that_is_too_short_what_is_left_is_listed(tmp_path, capsys, options, kept):
    offsets = build_store(tmp_path, 70, Clock())
    path = tmp_path / "commitlog" / file_name(LOG_FILE_BYTES)
    os.truncate(path, kept)
    code, rows = scanned(tmp_path, capsys, *options)
    assert code == 4
    end = LOG_FILE_BYTES + kept
    whole = [one for one, after in itertools.pairwise(offsets) if after <= end]
    assert messages_of(rows) in (whole, [*whole, offsets[-1]])
    last = damage_of(rows)[-1]
    assert last["physicalOffset"] + last["size"] == 2 * LOG_FILE_BYTES
    assert f"expected {LOG_FILE_BYTES} bytes, found {kept}" in last["reason"]


@pytest.mark.parametrize("length", [LOG_FILE_BYTES - 5000, LOG_FILE_BYTES + 5000])
def test_of_a_middle_file_with_another_length_all_others_are_listed_too(tmp_path, capsys, length):
    offsets = build_store(tmp_path, 130, Clock())
    path = tmp_path / "commitlog" / file_name(LOG_FILE_BYTES)
    os.truncate(path, length)
    code, rows = scanned(tmp_path, capsys)
    assert code == 4
    lost = range(LOG_FILE_BYTES + length - 400, 2 * LOG_FILE_BYTES)
    assert set(messages_of(rows)) >= {one for one in offsets if one not in lost}
    assert any(f"expected {LOG_FILE_BYTES} bytes" in row["reason"] for row in damage_of(rows))


def test_all_files_may_have_a_wrong_length(tmp_path, capsys):
    offsets = build_store(tmp_path, 70, Clock())
    for number in (0, 1):
        os.truncate(tmp_path / "commitlog" / file_name(number * LOG_FILE_BYTES), 20_000)
    code, rows = scanned(tmp_path, capsys)
    assert messages_of(rows) == offsets
    assert len(damage_of(rows)) == 2
    assert code == 4


def test_a_file_that_begins_where_none_does_is_reported(tmp_path, capsys):
    offsets = build_store(tmp_path, 70, Clock())
    stray = tmp_path / "commitlog" / file_name(1000)
    stray.write_bytes(b"x" * 50)
    code, rows = scanned(tmp_path, capsys)
    assert messages_of(rows) == offsets
    assert [row["file"] for row in damage_of(rows)] == [str(stray)]
    assert code == 4
