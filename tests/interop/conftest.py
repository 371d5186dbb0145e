"""Stores that both sides write and read are compared by their bytes: no disk is waited for."""

import pytest

from support.java_store import require_java
from support.memory import tmp_path

__all__ = ["tmp_path"]
"""A directory in memory."""


@pytest.fixture(scope="session")
def java_store():
    """Skip tests that use it where the genuine store cannot be run."""
    require_java()
