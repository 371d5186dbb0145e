"""A store with transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.transaction_stores import TransactionStores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[TransactionStores]:
    opened = TransactionStores(tmp_path)
    yield opened
    opened.store.abandon()
