"""Calls out of a listener or callback, which run on threads of the store itself."""

import threading
from collections.abc import Callable

import msgspec
import pytest

from rocketstore import FlushDiskType, Message, MessageStore, StoreConfig, StoreError, verify_store
from rocketstore.storage import threads
from rocketstore.transaction.checks import CheckAnswer
from support.patience import PATIENCE_S
from support.python_process import printed
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


AT_THE_END = """
import sys
from rocketstore import FlushDiskType, Message, MessageStore, StoreConfig

class Program:
    def __init__(self):
        has_threads = sys.argv[2] == "True"
        mode = FlushDiskType[sys.argv[3]]
        config = StoreConfig.small(flush_disk_type=mode, sync_flush_timeout=500)
        self.store = MessageStore.open(sys.argv[1], config, threads=has_threads)
        self.message, self.me = Message(topic="t", body=b"x"), self

    def __del__(self):
        print(self.store.put(self.message).is_stored, self.store.wait_dispatched())
        try:
            self.store.close()
        except Exception as error:
            print(error)

program = Program()
if sys.argv[4:]:
    program.store.put(program.message)
    program.store.wait_dispatched()
if sys.argv[4:] == ["off"]:
    program.store._writer._log.lock.acquire()  # as a thread has it that was stopped
"""


@pytest.mark.parametrize("before", [["on"], ["off"], []])
@pytest.mark.parametrize("has_threads", [True, False])
@pytest.mark.parametrize("mode", FlushDiskType)
def test_a_close_as_python_ends_says_that_its_threads_are_gone(
    tmp_path, mode, before, *, has_threads
):
    compiled = dict.fromkeys(["ROCKETSTORE_KERNELS"], *before) if before else {}
    said = printed(AT_THE_END, tmp_path, str(has_threads), mode.name, *before, **compiled)
    assert said.startswith(f"True {not has_threads}")
    assert ("its thread rocketstore-dispatch does not run any more" in said) == has_threads
    with MessageStore.open(tmp_path, StoreConfig.small(), threads=False) as store:
        assert len(store.get("t", 0, 0).messages) == bool(before) + 1
