"""A broker's table over a store in memory."""

import pytest

from support.broker_desk import Desk


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.close()
