"""A service starts with the store: no public call starts a thread, and none can fail to."""

import threading

import pytest

from rocketstore import FlushDiskType, MessageStore, StoreConfig
from support.public_calls import CHANGES, READS, SERVICES

CALLS = CHANGES | READS | SERVICES | {"close": lambda store: store.close()}


@pytest.mark.parametrize("flush", FlushDiskType)
def test_no_public_call_starts_a_thread(tmp_path, monkeypatch, flush):
    started: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():
            started.append(thread.name)
        start(thread)

    config = StoreConfig.small(flush_disk_type=flush, retention=True, memory_topic_enable=True)
    with MessageStore.open(tmp_path, config) as store:
        monkeypatch.setattr(threading.Thread, "start", noted)
        for name, call in CALLS.items():
            call(store)
            assert not started, name
