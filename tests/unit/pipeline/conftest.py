"""Fixtures for the pipeline without Spark."""

from __future__ import annotations

import pytest

from rocketstore.pipeline.streaming import live_queues
from support.s3_server import running_s3
from support.stream_run import MODES


@pytest.fixture
def s3():
    """Return an empty S3 server; modules that share a filled one have their own."""
    with running_s3() as server:
        yield server


@pytest.fixture(params=[*MODES, "entries"])
def mode(request, monkeypatch):
    """Options of either way to follow a store; queues are looked at first in long batches."""
    if request.param == "entries":
        monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    return MODES.get(request.param, MODES["queues"])
