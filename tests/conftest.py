"""Fixtures for every test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from support.golden import unpacked_directories


@pytest.fixture(scope="session", autouse=True)
def _remove_unpacked_goldens() -> Iterator[None]:
    yield
    for directory in unpacked_directories():
        shutil.rmtree(directory, ignore_errors=True)
