"""A process that archives is killed for real, at moments that nobody chose."""

import random
import shutil
import subprocess
import sys
import time

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import ArchiveError
from rocketstore.units import MiB
from support.archiving import archived, rows
from support.repository import ROOT

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from support.archiving import archived
print("ready", flush=True)
archived(sys.argv[2], sys.argv[3], stretch=150_000)
"""

KILLS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store whose archive takes some tenths of a second."""
    root = tmp_path_factory.mktemp("kill") / "store"
    config = StoreConfig(mapped_file_size_commit_log=2 * MiB, retention=False)
    with MessageStore.open(root, config) as opened:
        for number in range(3_000):
            body = f"{number:09d}".encode() * 100
            opened.put(Message(topic=f"T{number % 6}", body=body), queue_id=number % 2)
    return root


def kill_amid(source, target, seconds):
    """Start an archive and kill it after some seconds of work."""
    program = [sys.executable, "-c", PROGRAM, str(ROOT / "tests"), str(source), str(target)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.kill()


def test_an_archive_that_was_killed_is_empty_or_whole_and_the_next_call_makes_it_so(
    store, tmp_path
):
    began = time.perf_counter()
    archived(store, tmp_path / "expected", stretch=150_000)
    took = time.perf_counter() - began
    expected = rows(tmp_path / "expected")
    moments = random.Random(5)
    for number in range(KILLS):
        target = tmp_path / f"a{number}"
        kill_amid(store, target, took * moments.random())
        try:
            found = rows(target)
        except ArchiveError:  # killed before there was a table
            found = []
        assert found in ([], expected)
        archived(store, target, stretch=150_000)
        assert rows(target) == expected
        shutil.rmtree(target)
