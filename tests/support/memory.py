"""A directory in memory, for tests of many small stores that no accident takes anything from.

What they simulate (a power cut, a disk that fails, a killed process) is not the machine's own loss
of power, so their syncs need not reach a disk, which takes most of their time.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstore.units import GiB

NEEDED_BYTES = 2 * GiB
"""A container often has 64 MiB: too few for what tests make side by side."""

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a directory of its own there


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Make a directory in memory, or on the disk where there is not enough, and remove it."""
    root = made_in_memory()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def made_in_memory() -> Path:
    """Make the same directory, for one who removes it."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= NEEDED_BYTES
    return Path(tempfile.mkdtemp(prefix="rocketstore-test-", dir=MEMORY if has_room else None))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory instead of one on the disk, where a `conftest.py` imports this."""
    with memory_directory() as root:
        path = root / "test"  # what stands beside it is the test's own too
        path.mkdir()
        yield path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the directory of a store that a test makes."""
    made = tmp_path / "store"
    made.mkdir()
    return made
