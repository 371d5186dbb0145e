"""Fixtures for the pipeline without Spark."""

from __future__ import annotations

import pytest

from support.s3_server import running_s3


@pytest.fixture
def s3():
    """Return an empty S3 server; modules that share a filled one have their own."""
    with running_s3() as server:
        yield server
