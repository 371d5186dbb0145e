"""Tests that cannot run where something is absent: skipped, but in CI, where nothing may be."""

import os
from typing import NoReturn

import pytest


def skip_but_in_ci(reason: str) -> NoReturn:
    """Skip the calling test; in CI (``CI`` is set) fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
