"""Fixtures for every test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.golden import unpacked_directories

# The first example compiles kernels and a busy machine stalls others: time is pytest-timeout's job.
settings.register_profile("rocketstore", deadline=None, print_blob=True)
settings.load_profile("rocketstore")


@pytest.fixture(scope="session", autouse=True)
def _remove_unpacked_goldens() -> Iterator[None]:
    yield
    for directory in unpacked_directories():
        shutil.rmtree(directory, ignore_errors=True)
