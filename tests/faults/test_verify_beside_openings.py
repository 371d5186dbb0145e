"""A writer that comes while the store is verified: what it writes is no damage."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore, verify_store
from rocketstore.rules.findings import Severity
from support.clock import Clock
from support.configured_store import open_small

TOPIC = "orders"
SIZES = {
    "mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 200,
    "mapped_file_size_batch_queue": 460, "max_hash_slot_num": 5, "max_index_num": 20,
    "max_message_size": 1000,
}  # fmt: skip


def put(store: MessageStore, clock: Clock, count: int) -> None:
    for number in range(count):
        clock.now_ms += 1000
        store.put(Message(topic=TOPIC, body=bytes(100), keys=f"k{number}"), number % 2)
        store.put_batch([Message(topic="clicks")] * 3)
        store.put(Message(topic=TOPIC, properties={"DELAY": "1"}))
        store.begin(Message(topic=TOPIC, body=b"half"))
    store.wait_dispatched()
    with store.consume([TOPIC, "clicks"], "billing", start="first", idle_timeout_s=0) as consumer:
        for message in consumer:
            message.ack()


class At:
    """Calls of the system, before one of which something happens."""

    def __init__(self, number: int, happens: Callable[[], object]) -> None:
        self._left, self._happens = number, happens
        self.count = 0

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            # Who asks for the lock keeps the threads of this process from it.
            self.count += not str(arguments[0]).endswith("lock")
            if self.count == self._left:
                self._left = -1
                count = self.count
                self._happens()
                self.count = count
            return call(*arguments, **options)

        return wrapper


@pytest.mark.parametrize("end", ["close", "abandon", None])
def test_a_writer_that_comes_while_a_store_is_verified_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str | None
) -> None:
    """Whether or not it has gone again before the look ends."""
    clock = Clock()
    with open_small(tmp_path / "before", clock, **SIZES) as store:
        store.batch_topics.create("clicks")
        put(store, clock, 6)
    came = list[MessageStore]()

    def come() -> None:
        store = open_small(tmp_path / "now", clock, **SIZES)
        put(store, clock, 6)
        store.delays.turn()
        came.append(store)
        if end is not None:
            getattr(store, end)()

    def verified(number: int) -> int:
        shutil.rmtree(tmp_path / "now", ignore_errors=True)
        shutil.copytree(tmp_path / "before", tmp_path / "now")
        calls = At(number, come)
        with monkeypatch.context() as patch:
            for name in ("open", "scandir", "listdir"):
                patch.setattr(os, name, calls.wrapped(getattr(os, name)))
            report = verify_store(tmp_path / "now", now_ms=clock.now_ms + 100_000)
        assert [one for one in report.findings if one.severity is not Severity.NOTE] == []
        while came:
            came.pop().close()
        return calls.count

    count = verified(-1)
    assert count > 30
    for number in range(1, count + 1):
        verified(number)


def test_a_log_file_that_is_deleted_while_it_is_verified_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each look another one, as where retention follows a scan of many files."""
    clock = Clock()
    with open_small(tmp_path, clock, **SIZES) as store:
        put(store, clock, 20)
        files = sorted((tmp_path / "commitlog").iterdir())
        assert len(files) > 4
        opened = os.open

        def after_a_deletion(path: Any, *arguments: Any, **options: Any) -> int:
            if len(files) > 3 and Path(path) == files[0]:
                files.pop(0).unlink()
            return opened(path, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", after_a_deletion)
            report = verify_store(tmp_path, now_ms=clock.now_ms)
        assert len(files) < 5
        assert [one for one in report.findings if one.severity is Severity.DAMAGE] == []
