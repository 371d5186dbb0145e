"""The one Spark session of a test run."""

from __future__ import annotations

import pytest

from rocketstore.pipeline import register
from support.spark_session import require_java, start_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    require_java()
    session = start_session(str(tmp_path_factory.mktemp("spark")))
    register(session)
    yield session
    session.stop()
