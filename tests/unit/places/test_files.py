"""Files of a place are read by position, and the disk knows where they end."""

import os

import pytest

from rocketstore.holes import data_stop
from rocketstore.places import files
from rocketstore.units import GiB, MiB


def test_a_hole_is_a_question_to_the_disk(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 65_536)
    with path.open("r+b") as file:
        file.truncate(GiB)
    with files.opened(str(path), str(path)) as file:
        assert file.data_stop(GiB) == 65_536
    assert files.stored_stop(str(tmp_path), str(path), GiB) == 65_536
    assert files.stored_stop(str(tmp_path), str(tmp_path / "gone"), GiB) == GiB


def test_a_file_that_was_made_ahead_and_not_written_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with path.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, MiB)
        if data_stop(made.fileno(), MiB):
            pytest.skip("this file system takes blocks without data for zeros that were written")
    monkeypatch.setattr(os, "pread", None)
    with files.opened(str(path), str(path)) as file:
        assert file.data_stop(MiB) == 0
    assert files.stored_stop(str(tmp_path), str(path), MiB) == 0


def test_what_is_asked_for_side_by_side_is_drawn_in_parts():
    drawn = []

    def values():
        for number in range(10_000):
            drawn.append(number)
            yield number

    found = files.side_by_side("s3://bucket", 10_000)(str, values())
    assert next(found) == "0"
    assert len(drawn) < 2000
    assert [*found] == [*map(str, range(1, 10_000))]
