"""A store with transactions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.transaction_stores import TransactionStores


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[TransactionStores]:
    opened = TransactionStores(tmp_path)
    yield opened
    opened.store.abandon()
