"""Commands are compared to the letter with what they say."""

import pytest

from support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _leave_slow_calls_unsaid(monkeypatch):
    """A busy machine makes a sync or a put slow, and that would be a line on standard error."""
    monkeypatch.setattr("rocketstore.storage.log.flush._SLOW_FLUSH_S", PATIENCE_S)
    monkeypatch.setattr("rocketstore.storage.statistics._SLOW_PUT_MS", PATIENCE_S * 1000)
