"""A survey of a log: chains, damage and the end, mapped or read piece by piece."""

import random
from pathlib import Path

import numpy as np
import pytest

from rocketstore.rules.log_rules import LogView
from rocketstore.storage.files.pread_files import PreadFiles, ReadLogFile
from rocketstore.storage.recovery.log_survey import survey_log
from support.clock import START_MS, Clock
from support.small_store import LOG_FILE_BYTES, build_store, overwrite, read_log

NOW_MS = START_MS + 3_600_000
COUNT = 120


class WholeFile:
    """A file whose bytes are all in memory, as a map gives them."""

    def __init__(self, path: Path) -> None:
        self.base = int(path.name)
        self.array = np.fromfile(path, np.uint8)
        self.size = len(self.array)


def record_count(survey: LogView) -> int:
    return sum(chain.record_count for chain in survey.kept)


def whole(root: Path) -> LogView:
    paths = sorted((root / "commitlog").iterdir())
    return survey_log([WholeFile(path) for path in paths], now_ms=NOW_MS)


def piecewise(root: Path) -> LogView:
    files = PreadFiles((root / "commitlog",), file_size=LOG_FILE_BYTES).files
    return survey_log([ReadLogFile(file, LOG_FILE_BYTES) for file in files], now_ms=NOW_MS)


def test_a_healthy_log_is_one_chain_per_file(tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    survey = whole(tmp_path)
    assert record_count(survey) == COUNT
    assert survey.end == offsets[-1] + int.from_bytes(read_log(tmp_path, offsets[-1], 4), "big")
    assert len({chain.start // LOG_FILE_BYTES for chain in survey.kept}) == len(survey.kept)
    assert not survey.damage
    assert survey.bounds().lost.tolist() == []


def test_the_end_is_after_the_last_record_whatever_stands_before_it(tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    end = whole(tmp_path).end
    overwrite(tmp_path, offsets[3], b"\xff" * 400)
    survey = whole(tmp_path)
    assert survey.end == end
    assert record_count(survey) == COUNT - 2
    assert survey.bounds().lost.tolist() == [[offsets[3], offsets[5]]]


def test_nothing_is_read_where_the_file_system_knows_zeros(tmp_path):
    """Through a map each page of a hole would become one of memory: up to a file of them."""
    offsets = build_store(tmp_path, 10, Clock())
    overwrite(tmp_path, offsets[3] + 4, b"\xff")
    file = WholeFile(tmp_path / "commitlog" / f"{0:020d}")
    plain = survey_log([file], now_ms=NOW_MS)
    data_stop = plain.end + 100
    file.array[data_stop + 500 : data_stop + 900] = file.array[: 900 - 500]
    known = survey_log([file], now_ms=NOW_MS, data_stop=lambda _file: data_stop)
    assert known == plain
    assert known.damage


@pytest.mark.parametrize("seed", range(40))
def test_reading_piece_by_piece_gives_the_survey_of_the_whole(seed, tmp_path):
    dice = random.Random(seed)
    build_store(tmp_path, COUNT, Clock(), body_size=dice.choice([0, 40, 200, 3000]))
    for _ in range(dice.randint(0, 8)):
        path = dice.choice(sorted((tmp_path / "commitlog").iterdir()))
        changed = bytearray(path.read_bytes())
        at = dice.randrange(len(changed))
        size = dice.choice([1, 4, 300, 5000])
        fill = dice.choice([b"\0", dice.randbytes(1)])
        changed[at : at + size] = (fill * size)[: len(changed) - at]
        path.write_bytes(changed)
    expected, found = whole(tmp_path), piecewise(tmp_path)
    assert found == expected
