"""Fixtures for the pipeline without Spark."""

import shutil

import pytest

from rocketstore.pipeline.streaming import live_queues
from rocketstore.places import files
from support.clock import Clock
from support.memory import memory_directory
from support.s3_server import running_s3
from support.small_store import build_store
from support.stream_run import MODES


@pytest.fixture(scope="module")
def three_files():
    """A store whose log has three files; nobody changes it."""
    with memory_directory() as directory:
        build_store(directory / "store", 120, Clock())
        yield directory / "store"


@pytest.fixture
def store(tmp_path, three_files):
    """Return a copy of it."""
    return shutil.copytree(three_files, tmp_path / "store")


@pytest.fixture
def s3():
    """Return an empty S3 server; modules that share a filled one have their own."""
    with running_s3() as server:
        yield server


@pytest.fixture(params=[*MODES, "entries"])
def mode(request, monkeypatch):
    """Options of either way to follow a store; queues are looked at first in long batches."""
    if request.param == "entries":
        monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    return MODES.get(request.param, MODES["queues"])


@pytest.fixture
def looks(monkeypatch):
    """Directories that were listed and files that were opened."""
    found = []
    listing, opening = files.LocalFiles.list, files.LocalFiles.open
    monkeypatch.setattr(
        files.LocalFiles, "list", lambda self, path: found.append(path) or listing(self, path)
    )
    monkeypatch.setattr(
        files.LocalFiles, "open", lambda self, path: found.append(path) or opening(self, path)
    )
    return found


@pytest.fixture
def reads(monkeypatch):
    """Bytes asked of files on the disk: path, position and size."""
    asked = []
    read_into, read = files.LocalFile.read_into, files.LocalFile.read

    def counted_into(self, position, view):
        asked.append((self.path, position, len(view)))
        return read_into(self, position, view)

    def counted(self, position, size):
        asked.append((self.path, position, size))
        return read(self, position, size)

    monkeypatch.setattr(files.LocalFile, "read_into", counted_into)
    monkeypatch.setattr(files.LocalFile, "read", counted)
    return asked
