"""A store that was opened by a relative path stays where it was when the program goes elsewhere.

A daemon goes to ``/``, a notebook or a test to a directory of its own, while the store is open.
"""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from rocketstore import Message, MessageStore, StoreConfig, repair_store, verify_store
from rocketstore.aio import open as open_async
from rocketstore.errors import SystemRefusedError
from support.small_store import CONFIG

LOGS = (None, "logs/one,logs/two")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A directory without anything in it; the program is in another one."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


def config(logs: str | None) -> StoreConfig:
    return msgspec.structs.replace(CONFIG, store_path_commit_log=logs)


def put(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        message = Message(topic="t", body=b"x" * 500, keys=f"k{number}", tags="a")
        assert store.put(message, queue_id=number % 2).is_stored


def check(store: MessageStore, count: int) -> None:
    found = [bool(store.find("t", f"k{number}")) for number in range(count)]
    assert all(found)
    assert sum(store.message_count("t", queue_id) for queue_id in (0, 1)) == count


@pytest.mark.parametrize("logs", LOGS)
def test_an_open_store_stays_where_it_is(elsewhere, monkeypatch, logs):
    with MessageStore.open("store", config(logs)) as store:
        put(store, range(10))
        monkeypatch.chdir(elsewhere)
        put(store, range(10, 300))
        assert store.wait_dispatched()
        store.consume("t", group="g", start="first", idle_timeout_s=0.0).close()
        check(store, 300)
    assert not list(elsewhere.iterdir())
    monkeypatch.chdir(elsewhere.parent / "here")
    with MessageStore.open("store", config(logs), read_only=True) as reader:
        monkeypatch.chdir(elsewhere)
        assert sum(reader.message_count("t", queue_id) for queue_id in (0, 1)) == 300
    monkeypatch.chdir(elsewhere.parent / "here")
    with MessageStore.open("store", config(logs)) as store:
        check(store, 300)
        assert store.recovery.findings == []
    assert not verify_store("store", config(logs)).findings
    assert not repair_store("store", config(logs)).is_changed


def test_so_do_the_directories_that_it_only_reads(elsewhere, monkeypatch):
    with MessageStore.open("store", config("logs/one")) as store:
        put(store, range(300))
    divided = msgspec.structs.replace(
        config("logs/one,logs/two"), read_only_commit_log_store_paths="logs/one"
    )
    for is_read_only in (False, True):
        with MessageStore.open("store", divided, read_only=is_read_only) as store:
            monkeypatch.chdir(elsewhere)
            found = [bool(store.find("t", f"k{number}")) for number in range(300)]
            assert all(found)
        monkeypatch.chdir(elsewhere.parent / "here")


def test_so_does_one_of_asyncio(elsewhere, monkeypatch):
    async def fill() -> None:
        async with open_async("store", config(None)) as store:
            monkeypatch.chdir(elsewhere)
            for number in range(100):
                await store.put(Message(topic="t", body=b"x" * 500, keys=f"k{number}"))

    asyncio.run(fill())
    assert not list(elsewhere.iterdir())


def test_where_the_program_is_nowhere_the_error_says_so(elsewhere, monkeypatch):
    monkeypatch.chdir(elsewhere)
    elsewhere.rmdir()
    doors: list[Callable[[], object]] = [
        lambda: MessageStore.open("store", CONFIG),
        lambda: MessageStore.open("store", CONFIG, read_only=True),
        lambda: verify_store("store", CONFIG),
        lambda: repair_store("store", CONFIG),
    ]
    for door in doors:
        with pytest.raises(SystemRefusedError, match="cannot tell where store lies: No such file"):
            door()
