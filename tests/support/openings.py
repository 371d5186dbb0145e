"""Openings of a store by a writer while a reader looks at it, at each of the reader's calls."""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore
from rocketstore.rules.findings import Finding, Severity
from support.clock import Clock
from support.configured_store import open_small
from support.trees import copy_tree

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


def look_beside_openings(
    root: Path,
    end: str | None,
    look: Callable[[Path, int], Iterable[Finding]],
    monkeypatch: pytest.MonkeyPatch,
    every: int = 1,
) -> None:
    """Look again and again, a writer coming `every` so many calls later; nothing is wrong.

    It writes, and then its method `end` is called. `look` gets the root and a time.
    """
    clock, came = Clock(), list[MessageStore]()
    with open_small(root / "before", clock, **SIZES) as store:
        store.batch_topics.create("clicks")
        put(store, clock, 6)

    def come() -> None:
        store = open_small(root / "now", clock, **SIZES)
        put(store, clock, 6)
        store.delays.turn()
        came.append(store)
        if end is not None:
            getattr(store, end)()

    def looked(number: int) -> int:
        shutil.rmtree(root / "now", ignore_errors=True)
        copy_tree(root / "before", root / "now")
        calls = At(number, come)
        with monkeypatch.context() as patch:
            for name in ("open", "scandir", "listdir"):
                patch.setattr(os, name, calls.wrapped(getattr(os, name)))
            found = look(root / "now", clock.now_ms + 100_000)
        assert [one for one in found if one.severity is not Severity.NOTE] == []
        while came:
            came.pop().close()
        return calls.count

    count = looked(-1)
    assert count > 30
    for number in range(1, count + 1, every):
        looked(number)
