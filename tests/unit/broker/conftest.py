"""A broker's table over a store in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.broker_desk import Desk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()
