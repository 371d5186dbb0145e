"""Tests of units wait for no disk: half of their time went by in syncs.

They look at what is written, and at which calls are made; what a sync is good for is shown by
tests/crash with a simulated disk. Files themselves (unit/storage/files) are tested on the disk.
"""

import pytest

from support.clock import Clock
from support.failing_disk import FailingDisk
from support.memory import root, tmp_path

__all__ = ["clock", "root", "tmp_path"]


@pytest.fixture
def clock():
    """Return the clock of a test: it stands still until the test moves it."""
    return Clock()


@pytest.fixture
def disk():
    """Return a disk that does what a disk does until the test has it fail."""
    return FailingDisk()
