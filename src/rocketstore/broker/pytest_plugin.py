"""Fixtures of pytest: a broker for a test, or for all of them; pytest loads them by itself.

Law: what every run of pytest loads is this module alone; the broker is imported by who asks for it.
Page: docs/guide/testing.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.broker.testing import Broker


@pytest.fixture
def rocketmq_broker() -> Iterator[Broker]:
    """Return a broker of RocketMQ that is this test's alone: a `rocketstore.broker.testing.Broker`.

    ``rocketmq_broker.name_server`` is what a client wants to know, ``rocketmq_broker.store`` where
    its messages are.
    """
    yield from _running()


@pytest.fixture(scope="session")
def rocketmq_broker_session() -> Iterator[Broker]:
    """Return a broker of RocketMQ that all tests share: let each use topics of its own."""
    yield from _running()


def _running() -> Iterator[Broker]:
    from rocketstore.broker.testing import Broker  # noqa: PLC0415 - see the law

    with Broker() as broker:
        yield broker
