"""A directory in memory, for tests of many small stores that no accident takes anything from.

What they simulate (a power cut, a disk that fails, a killed process) is not the machine's own loss
of power, so their syncs need not reach a disk, which takes most of their time.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a directory of its own there


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Make a directory in memory, or on the disk where there is none, and remove it."""
    where = MEMORY if MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="rocketstore-test-", dir=where))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
