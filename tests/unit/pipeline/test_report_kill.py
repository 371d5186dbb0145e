"""A report that is killed at any step leaves no page beside other tables; the next tidies up."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.report import output
from rocketstore.pipeline.jobs.report.replacement import PARTIAL, OutputPlaces, workspace_for

STEPS = (
    "begin",
    "page away",
    "json away",
    "tables away",
    "tables",
    "json",
    "page",
    "sync",
    "sweep",
)

KILLED = """
import os, signal, sys
from pathlib import Path
from unit.pipeline.test_report_kill import write

def step(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

write(Path(sys.argv[1]), "new", step)
"""


def write(directory, run, step=lambda _name: None):
    """Write a report of which every file says of which run it is."""
    places = OutputPlaces.of(directory / "page.html")
    tables = {name: pa.table({"run": [run]}) for name in ("traffic", "latency")}
    output.write_report(places, f"<html>{run}</html>", tables, {"run": run}, step)


def found(directory):
    """Return of which run page, JSON and each table are; None for what is not there."""
    places = OutputPlaces.of(directory / "page.html")
    page = places.page.read_text()[6:9] if places.page.exists() else None
    listed = json.loads(places.json.read_text())["summary"]["run"] if places.json.exists() else None
    tables = {
        path.stem: pq.read_table(path).column("run")[0].as_py()
        for path in places.tables.glob("*.parquet")
    }
    return page, listed, tables


def whole(run):
    return run, run, {"traffic": run, "latency": run}


def leftovers(directory):
    return sorted(path.name for path in directory.glob(f"{PARTIAL}*"))


def kill(directory, moment):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, str(directory), moment]
    ended = subprocess.run(command, env=environment, check=False, timeout=120)
    assert ended.returncode == -9


@pytest.mark.parametrize(
    ("moment", "has_earlier"),
    [*((name, True) for name in STEPS), *((name, False) for name in ("begin", "json", "sweep"))],
)
def test_a_kill_leaves_no_page_of_other_tables_and_the_next_run_sweeps(
    tmp_path, moment, has_earlier
):
    if has_earlier:
        write(tmp_path, "old")
    kill(tmp_path, moment)
    page, listed, tables = found(tmp_path)
    if page is not None:
        assert (page, listed, tables) == whole(page)
    assert len(leftovers(tmp_path)) == 1
    # A next run that fails puts back what was there, or leaves what was finished.
    with pytest.raises(StoreError, match="no space"), _full_disk():
        write(tmp_path, "its")
    is_done = moment in {"sync", "sweep"}
    nothing = (None, None, {})
    assert found(tmp_path) == (
        whole("new") if is_done else whole("old") if has_earlier else nothing
    )
    assert leftovers(tmp_path) == []
    write(tmp_path, "run")
    assert found(tmp_path) == whole("run")


@contextlib.contextmanager
def _full_disk():
    def fail(*_):
        raise OSError(28, "no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_write_text", fail)
        yield


@pytest.mark.parametrize("moment", STEPS[:7])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_run_that_fails_at_any_step_puts_the_earlier_report_back(tmp_path, moment, error):
    write(tmp_path, "old")

    def fail(name):
        if name == moment:
            raise error(5, "Input/output error")

    with pytest.raises((StoreError, KeyboardInterrupt)):
        write(tmp_path, "new", fail)
    assert found(tmp_path) == whole("old")
    assert leftovers(tmp_path) == []


def test_at_no_step_a_reader_sees_a_page_of_other_tables(tmp_path):
    write(tmp_path, "old")
    pages = []

    def look(_name):
        page, listed, tables = found(tmp_path)
        pages.append(page)
        if page is not None:
            assert (page, listed, tables) == whole(page)

    write(tmp_path, "new", look)
    assert list(dict.fromkeys(pages)) == ["old", None, "new"]


def test_the_workspace_of_a_run_that_lives_is_left_alone(tmp_path):
    other = OutputPlaces.of(tmp_path / "other.html")
    with workspace_for(other) as workspace:
        write(tmp_path, "new")
        assert leftovers(tmp_path) == [workspace.name]
        with (workspace / "owner").open() as owner, pytest.raises(BlockingIOError):
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert leftovers(tmp_path) == []


def test_a_leftover_of_another_page_is_put_back_under_its_own_name(tmp_path):
    write(tmp_path, "old")
    kill(tmp_path, "tables")
    assert found(tmp_path) == (None, None, {})
    with workspace_for(OutputPlaces.of(tmp_path / "other.html")):
        assert found(tmp_path) == whole("old")
