"""Fixtures for every test."""

from __future__ import annotations

import gc
import shutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.golden import unpacked_directories

# The first example compiles kernels and a busy machine stalls others: time is pytest-timeout's job.
settings.register_profile("rocketstore", deadline=None, print_blob=True)
settings.load_profile("rocketstore")

# A shell's background job ignores Ctrl-C and hands that on; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _remove_unpacked_goldens() -> Iterator[None]:
    yield
    for directory in unpacked_directories():
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_files() -> Iterator[None]:
    """Free the parts of stores that tests made and nobody closed; their files are open till then.

    Where a process has more than 1,024 open files, the callbacks of PySpark's driver wait forever.
    """
    yield
    gc.collect()
