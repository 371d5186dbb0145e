"""The one Spark session of a test run."""

import os

import pytest

from rocketstore.pipeline import register
from support.memory import tmp_path
from support.s3_server import CREDENTIALS
from support.spark_session import require_java, start_session

__all__ = ["tmp_path"]
"""A directory in memory: jobs and sinks sync each file that they make."""

LOW_NUMBERS = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(64)]
"""Numbers of files kept for Spark. PySpark's driver waits for callbacks by `select`, which no file
beyond number 1,023 may join, and tests before the first one of Spark may have that many open."""


RARE_SETTINGS = {
    "spark.sql.retainGroupColumns": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
    "spark.sql.execution.arrow.compression.codec": "zstd",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.session.timeZone": "Pacific/Apia",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


@pytest.fixture
def rare_spark(spark):
    """Return the session, set in ways that a user's may be and that change no outcome."""
    before = {name: spark.conf.get(name) for name in RARE_SETTINGS}
    for name, value in RARE_SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


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
