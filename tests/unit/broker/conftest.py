"""A broker's table over a store in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()
