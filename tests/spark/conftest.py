"""The one Spark session of a test run."""

import os

import pytest

from rocketstore.pipeline import register
from support.s3_server import CREDENTIALS
from support.spark_session import require_java, start_session

LOW_NUMBERS = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(64)]
"""Numbers of files kept for Spark. PySpark's driver waits for callbacks by `select`, which no file
beyond number 1,023 may join, and tests before the first one of Spark may have that many open."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    require_java()
    # What Spark starts has the environment of this moment: the key of the S3 server of tests in it.
    os.environ.update(CREDENTIALS)
    while LOW_NUMBERS:
        os.close(LOW_NUMBERS.pop())
    session = start_session(str(tmp_path_factory.mktemp("spark")))
    from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415 - heavy

    ensure_callback_server_started(session.sparkContext._gateway)
    register(session)
    yield session
    session.stop()
