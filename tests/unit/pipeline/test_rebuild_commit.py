"""A rebuild that is killed anywhere leaves whole queues and a whole index, old or new."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from rocketstore import Message
from rocketstore.errors import StoreError
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.job import rebuild_with
from rocketstore.pipeline.jobs.rebuild.tasks import read_log
from rocketstore.storage.audit.verify import verify_store
from support.rebuild_oracle import Here, tree
from support.small_store import CONFIG, START_MS, Clock, bodies, build_store, open_store

STEPS = ("built", "journal", "swap consumequeue", "swap index", "keep", "sweep")


@pytest.fixture
def store(tmp_path):
    """Return a store whose queues and index differ from what a rebuild makes."""
    build_store(tmp_path / "store", 500, Clock())
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:2]:
        path.unlink()
    return tmp_path / "store"


def rebuilt(store, runner=None, **keywords):
    return rebuild_with(runner or Here(), store, now_ms=START_MS, config=CONFIG, **keywords)


def parts_of(store):
    return {name: tree(store / name) for name in ("consumequeue", "index")}


def killed_at(store, step):
    """Run a rebuild in a process that ends, without a word, before a step."""
    code = f"""
        import os, sys
        from pathlib import Path
        from rocketstore.pipeline.jobs.rebuild.job import rebuild_with
        from support.rebuild_oracle import Here
        from support.small_store import CONFIG, START_MS
        def step(name):
            if name == {step!r}:
                os._exit(9)
        rebuild_with(Here(), Path(sys.argv[1]), now_ms=START_MS, config=CONFIG, step=step)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(store)], env=environment, check=False
    )
    assert done.returncode == 9


@pytest.mark.parametrize("step", STEPS)
def test_killed_before_any_step_everything_is_whole_and_the_next_run_ends_it(store, step):
    expected = shutil.copytree(store, store.parent / "expected")
    old = parts_of(store)
    rebuilt(expected)
    new = parts_of(expected)
    killed_at(store, step)
    found = parts_of(store)
    for name in ("consumequeue", "index"):
        assert found[name] in (old[name], new[name])
    # The store serves as it is, whichever it has.
    copy = shutil.copytree(store, store.parent / "copy")
    with open_store(copy, Clock(START_MS + 1000)) as opened:
        assert len(bodies(opened, "Topic0")) + len(bodies(opened, "Topic1")) == 398
    rebuilt(store)
    assert parts_of(store) == new
    assert not (store / "rebuild").exists()
    kept = [path for path in (store / "repair").rglob("*") if path.is_file()]
    assert {path.read_bytes() for path in kept} >= set(old["consumequeue"].values())


def test_an_opening_takes_the_new_index_for_whole(tmp_path):
    store, clock = tmp_path / "store", Clock()
    build_store(store, 500, clock)
    clock.now_ms += 60_000
    rebuild_with(Here(), store, now_ms=clock(), config=CONFIG)
    index = tree(store / "index")
    with open_store(store, clock) as opened:
        assert opened.recovery.findings == []
        assert tree(store / "index") == index


def test_where_names_cannot_be_exchanged_a_kill_between_two_renames_is_mended(store, monkeypatch):
    def refuse(one, other):
        raise OSError(errno.EINVAL, "no exchange here")

    monkeypatch.setattr(driver_commit, "_exchange", refuse)
    expected = shutil.copytree(store, store.parent / "expected")
    rebuilt(expected)
    old = parts_of(store)

    class KilledError(BaseException):
        pass

    rename = type(store).rename

    def rename_once(self, target):
        if self.name == "consumequeue" and "rebuild" in self.parts:
            raise KilledError
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "rename", rename_once)
        with pytest.raises(KilledError):
            rebuilt(store)
    assert not (store / "consumequeue").exists()
    with driver_commit.locked(store):
        assert driver_commit.finish_interrupted(store)
    assert parts_of(store) == {
        "consumequeue": parts_of(expected)["consumequeue"],
        "index": old["index"],
    }
    assert not (store / "rebuild").exists()


def assert_nothing_is_wrong(store, clock):
    """Fillers of deleted records' entries are noted, and nothing else is found."""
    report = verify_store(store, now_ms=clock.now_ms, config=CONFIG)
    assert {finding.kind for finding in report.findings} <= {"queue-filler"}


def test_a_directory_that_a_writer_went_on_with_is_never_replaced_by_what_a_kill_left(store):
    killed_at(store, "swap index")
    clock = Clock(START_MS + 10_000)
    with open_store(store, clock) as opened:
        opened.put(Message(topic="Topic0", body=b"later", keys=("later",)), queue_id=0)
        assert opened.wait_dispatched()
    before = parts_of(store)
    with driver_commit.locked(store):
        driver_commit.finish_interrupted(store)
    assert parts_of(store) == before
    assert_nothing_is_wrong(store, clock)


def test_a_task_that_fails_changes_nothing(store):
    before = tree(store)

    class Failing(Here):
        def run(self, tasks, work, schema):
            if work is not read_log:
                raise StoreError("a worker is gone")
            return super().run(tasks, work, schema)

    with pytest.raises(StoreError, match="a worker is gone"):
        rebuilt(store, Failing())
    assert tree(store) == before


def test_tasks_that_run_twice_and_late_write_the_same_bytes(store):
    expected = shutil.copytree(store, store.parent / "expected")
    rebuilt(expected)

    class Twice(Here):
        def __init__(self):
            self.late = []

        def run(self, tasks, work, schema):
            for task in tasks:
                list(work(task))
            self.late += [(work, task) for task in tasks]
            table = super().run(tasks, work, schema)
            for task in reversed(tasks):
                list(work(task))
            return table

    runner = Twice()
    rebuilt(store, runner, max_split_bytes=5000)
    assert parts_of(store) == parts_of(expected)
    before = tree(store)
    for work, task in runner.late:
        # The rebuild is over: an attempt that comes too late finds no directory to write into.
        with pytest.raises((OSError, StoreError)):
            list(work(task))
    assert tree(store) == before


def test_a_store_that_crashed_keeps_its_mark_and_is_recovered_when_it_is_opened(store):
    (store / "abort").touch()
    rebuilt(store)
    assert (store / "abort").exists()
    clock = Clock(START_MS + 10_000)
    with open_store(store, clock) as opened:
        assert opened.max_offset("Topic0", 0) == 250
    assert_nothing_is_wrong(store, clock)
