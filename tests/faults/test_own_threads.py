"""Calls out of a listener or callback, which run on threads of the store itself."""

import threading
from collections.abc import Callable

import msgspec
import pytest

from rocketstore import FlushDiskType, Message, MessageStore, StoreError, verify_store
from rocketstore.storage import threads
from rocketstore.transaction.checks import CheckAnswer
from support.patience import PATIENCE_S
from support.small_store import CONFIG

MESSAGE = Message(topic="t", body=b"x")
SETTINGS = msgspec.structs.replace(
    CONFIG,
    flush_disk_type=FlushDiskType.SYNC_FLUSH,
    transaction_check_interval=1,
    transaction_time_out=0,
)


def on_listener(store: MessageStore, call: Callable[[], None]) -> None:
    store.add_listener(lambda _arrival: call())
    store.put(MESSAGE)


def on_future(store: MessageStore, call: Callable[[], None]) -> None:
    store.put_async(MESSAGE).add_done_callback(lambda _future: call())


def on_check(store: MessageStore, call: Callable[[], None]) -> None:
    def check(_half: object) -> CheckAnswer:
        call()
        return CheckAnswer.COMMIT

    store.begin(MESSAGE)
    store.check_transactions(check)


def called(begin: Callable[..., None], store: MessageStore, call: Callable[[], object]) -> object:
    """Return what a call gives on the store's thread, or the error that it raises there."""
    seen: list[object] = []
    done = threading.Event()

    def run() -> None:
        try:
            seen.append(call())
        except StoreError as error:
            seen.append(error)
        done.set()

    begin(store, run)
    assert done.wait(PATIENCE_S)
    return seen[0]


EVERY = pytest.mark.parametrize("begin", [on_listener, on_future, on_check])


@EVERY
def test_a_close_there_says_at_once_that_it_cannot_wait_for_itself(begin, tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "JOIN_TIMEOUT_S", PATIENCE_S * 2)
    with MessageStore.open(tmp_path, SETTINGS) as store:
        before = {thread.name for thread in threading.enumerate()}
        refused = called(begin, store, store.close)
        if begin is on_listener:  # it looks before anything stops
            assert {thread.name for thread in threading.enumerate()} >= before
        assert isinstance(refused, StoreError)
        assert "own thread rocketstore-" in str(refused)
        assert "on another thread" in str(refused.hint)
    MessageStore.open(tmp_path, SETTINGS).close()
    assert not verify_store(tmp_path, SETTINGS).findings


@EVERY
def test_puts_there_are_answered(begin, tmp_path):
    with MessageStore.open(tmp_path, SETTINGS) as store:
        other = Message(topic="other")
        results = called(
            begin, store, lambda: (store.put(other), store.put_async(other).result(PATIENCE_S))
        )
        assert all(result.is_stored for result in results)  # type: ignore[attr-defined]
