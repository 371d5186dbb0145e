"""A store with transactions."""

import pytest

from support.transaction_stores import TransactionStores


@pytest.fixture
def stores(tmp_path):
    opened = TransactionStores(tmp_path)
    yield opened
    opened.store.abandon()
