"""A repair that only looks says what the repair leaves, whatever lies among the files."""

import os
from pathlib import Path

import pytest

from rocketstore import RepairReport, repair_store
from support.clock import Clock
from support.made_once import made_once
from support.small_store import CONFIG, LOG_FILE_BYTES, QUEUE_FILE_BYTES, build_store

PLACES = {"commitlog": LOG_FILE_BYTES, "consumequeue/Topic0/0": QUEUE_FILE_BYTES}


@made_once
def made(root: Path) -> None:
    build_store(root, 300, Clock())


def put_there(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
        (path / "x").write_bytes(b"x" * 100)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(bytes(int(kind)))


def left(report: RepairReport) -> list[tuple[str, str]]:
    return sorted((one.kind, one.file) for one in report.remaining)


@pytest.mark.parametrize("kind", ["directory", "pipe", "link", "0", "100"])
@pytest.mark.parametrize("name", ["backup", "00000000000000000000.bak", "99999", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_what_it_would_leave_is_what_it_leaves(tmp_path, place, name, kind):
    root = tmp_path / "store"
    made(root)
    last = max(int(one.name) for one in (root / place).iterdir())
    number = {"99999": 99_999, "after": last + PLACES[place]}.get(name)
    there = root / place / (name if number is None else f"{number:020}")
    put_there(there, kind)
    if kind == "link" and number is not None:
        return  # a file of the store that a link has lost is refused
    planned = repair_store(root, CONFIG, dry_run=True)
    assert left(planned) == left(repair_store(root, CONFIG))
    is_strange = kind in {"directory", "pipe", "link"}
    # What stands in a file's place is moved out of the way.
    assert bool(planned.remaining) is (is_strange and number is None)


@pytest.mark.parametrize("lost", ["commitlog", "consumequeue/Topic0/0"])
def test_of_a_lost_file_too(tmp_path, lost):
    root = tmp_path / "store"
    made(root)
    sorted((root / lost).iterdir())[1].unlink()
    planned = repair_store(root, CONFIG, dry_run=True)
    assert left(planned) == left(repair_store(root, CONFIG))
    assert bool(planned.remaining) is (lost == "commitlog")
