"""The one door through which tests look past the public calls of a store."""

import time
from collections.abc import Callable

from rocketstore.storage.opening import StoreParts
from rocketstore.storage.store import BaseStore
from rocketstore.storage.workers import StoreWorkers
from support.patience import PATIENCE_S


def parts_of(store: BaseStore) -> StoreParts:
    """Return what an open store consists of: its log, queues, index, dispatcher and retention."""
    return store._parts


def workers_of(store: BaseStore) -> StoreWorkers:
    """Return the threads of an open store, as they flush, dispatch and clean up."""
    return store._workers


def wait_until_led(store: BaseStore, due: Callable[[], object]) -> None:
    """Wait until the dispatching thread sleeps, and the next append calls `due`."""
    log, until = parts_of(store).log, time.monotonic() + PATIENCE_S
    dispatch = workers_of(store).dispatch
    assert due == (dispatch._led_by or dispatch._bell.ring)
    while log.end.look_at or log._ring != due:
        assert time.monotonic() < until
        time.sleep(0.001)
