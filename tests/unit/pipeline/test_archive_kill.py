"""A process that archives or restores is killed for real, at moments that nobody chose."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.units import MiB
from support.archive_runs import archived, log_bytes, restored, tree, visible_files
from support.repository import ROOT

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from support.archive_runs import archived, restored
print("ready", flush=True)
if sys.argv[2] == "archive":
    archived(sys.argv[3], sys.argv[4], split=500_000)
else:
    restored(sys.argv[3], sys.argv[4])
print("done", flush=True)
"""

KILLS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store whose archive takes some tenths of a second."""
    root = tmp_path_factory.mktemp("kill") / "store"
    config = StoreConfig(mapped_file_size_commit_log=6 * MiB, retention=False)
    with MessageStore.open(root, config) as opened:
        for number in range(10_000):
            body = f"{number:09d}".encode() * 100
            opened.put(Message(topic=f"T{number % 6}", body=body), queue_id=number % 2)
    return root


def killed(verb, source, target, seconds):
    """Start a program, kill it after some seconds of work; return whether it had ended."""
    program = [sys.executable, "-c", PROGRAM, str(ROOT / "tests"), verb, str(source), str(target)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.kill()
        return process.stdout.read() == "done\n"


def test_an_archive_that_was_killed_is_empty_or_whole_and_the_next_call_makes_it_so(
    store, tmp_path
):
    began = time.perf_counter()
    archived(store, tmp_path / "expected", split=500_000)
    took = time.perf_counter() - began
    expected = tree(tmp_path / "expected")
    moments = random.Random(5)
    for number in range(KILLS):
        target = tmp_path / f"a{number}"
        had_ended = killed("archive", store, target, took * moments.random())
        if not had_ended:
            assert len(visible_files(target)) in (0, len(visible_files(tmp_path / "expected")))
        archived(store, target, split=500_000)
        assert tree(target) == expected
        shutil.rmtree(target)


def test_a_restore_that_was_killed_is_no_store_and_the_next_call_makes_it_one(store, tmp_path):
    archived(store, tmp_path / "a", split=500_000)
    began = time.perf_counter()
    restored(tmp_path / "a", tmp_path / "first")
    took = time.perf_counter() - began
    moments = random.Random(6)
    for number in range(KILLS):
        target = tmp_path / f"back{number}"
        killed("restore", tmp_path / "a", target, took * moments.random())
        if not target.exists():
            restored(tmp_path / "a", target)
        assert log_bytes(target) == log_bytes(store)
        shutil.rmtree(target)
