"""Fixtures of simulated accidents; the kills of `test_kill` happen to stores on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.memory import memory_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a directory in memory."""
    with memory_directory() as root:
        yield root
