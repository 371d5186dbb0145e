"""The one Spark session of a test run."""

from __future__ import annotations

import os

import pytest

from rocketstore.pipeline import register
from support.s3_server import CREDENTIALS
from support.spark_session import require_java, start_session

OPEN_FILES_LIMIT = 800
"""PySpark's driver waits for callbacks by `select`, which no file beyond number 1,023 may join."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    require_java()
    open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names suffice
    assert open_files < OPEN_FILES_LIMIT, f"tests before this one left {open_files} files open"
    # What Spark starts has the environment of this moment: the key of the S3 server of tests in it.
    os.environ.update(CREDENTIALS)
    session = start_session(str(tmp_path_factory.mktemp("spark")))
    register(session)
    yield session
    session.stop()
