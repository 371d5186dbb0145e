"""What each service does in a store without threads, call by call, and what it promised by then.

A `Work` is done while something fails; then it is judged in a healthy store, opened again: what was
promised holds, what was not has happened as a whole or not at all, and nothing happens twice.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rocketstore import FlushDiskType, Message, MessageStore, RocketStoreError
from rocketstore.transaction.records import EndStatus
from support.clock import Clock
from support.configured_store import small_config
from support.failing_calls import Fault
from support.reading import pages_of
from support.store_files import overwrite_file

LEVELS = "1s 5s 1h"
HOUR_MS = 3_600_000


class Work:
    """The base: a store, its clock, and calls of which any may fail.

    `refuses` are the errors that may come out of a public call.
    """

    settings: ClassVar[dict[str, Any]] = {}
    has_sockets: ClassVar = False
    is_up = True
    """Whether the services work, as they do once a store that has threads is open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.refuses: tuple[type[BaseException], ...] = (RocketStoreError,)
        self.store: MessageStore
        self.was_refused = False
        self.prefix = ""
        """Of the names of what is put, another one for each `run`."""

    def open(self) -> MessageStore:
        config = small_config(message_delay_level=LEVELS, **self.settings)
        self.store = MessageStore.open(self.root, config, clock=self.clock, threads=False)
        return self.store

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a public call, which may refuse; None then."""
        try:
            return function(*arguments, **named)
        except self.refuses:
            self.was_refused = True
            return None

    def turn(self, function: Callable[[], Any]) -> None:
        """Do what a thread of the store does, which logs what fails and goes on."""
        try:
            function()
        except Exception:  # noqa: BLE001 - as there
            return

    def is_put(self, result: Any) -> bool:
        return result is not None and result.is_stored

    def run(self) -> None:
        """Do the work, in a store that is open; whatever is raised here ends it."""

    def is_beyond(self, _fault: Fault) -> bool:
        """Whether what is used, and not a service, breaks by that."""
        return False

    def is_lifted(self, _fault: Fault) -> bool:
        """Whether a lasting fault ends before the store is closed."""
        return False

    def recover(self) -> None:
        """Wait until what threads do goes on, now that nothing fails."""

    def judge(self) -> None:
        """Look at the store, opened again with nothing failing."""

    @property
    def stores(self) -> tuple[MessageStore, ...]:
        return (self.store,)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for store in reversed(self.stores):
                stack.callback(store.close)

    def bodies(self, topic: str, queue_id: int = 0) -> Counter[str]:
        self.store.wait_dispatched()
        pages = [*pages_of(self.store, topic, queue_id)]
        assert not any(page.skipped_entries for page in pages)
        return Counter(message.body.decode() for page in pages for message in page.messages)


class Delaying(Work):
    """Delayed messages: those acknowledged are delivered once, when their time has come."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried: set[str] = set()
        self.promised: set[str] = set()

    def put(self, name: str, level: int) -> None:
        name = self.prefix + name
        message = Message(topic="later", body=name.encode(), properties={"DELAY": str(level)})
        self.tried.add(name)
        if self.is_put(self.call(self.store.put, message)):
            self.promised.add(name)

    def deliver(self) -> None:
        delays = self.store.delays
        assert delays is not None
        for _ in range(3):
            self.turn(delays.turn)

    def run(self) -> None:
        self.deliver()
        for level in (1, 2, 3):
            self.put(f"{level}", level)
        self.call(self.store.wait_dispatched)
        self.deliver()
        self.clock.now_ms += 2000
        self.deliver()
        self.put("again", 1)
        self.call(self.store.flush)
        self.deliver()

    def judge(self) -> None:
        self.deliver()
        early = {name for name in self.bodies("later") if name.endswith("3")}
        assert not early, "an hour has not passed"
        for _ in range(3):
            self.clock.now_ms += HOUR_MS
            self.store.wait_dispatched()
            self.deliver()
        found = self.bodies("later")
        assert self.promised <= set(found) <= self.tried
        assert set(found.values()) <= {1}


class Transacting(Work):
    """Transactions: a committed message is delivered once, one rolled back never."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.halves: dict[str, Any] = {}
        self.ends: dict[str, Any] = {}

    def run(self) -> None:
        for name in (self.prefix + kind for kind in ("commit", "rollback", "open", "asked")):
            half = self.call(self.store.begin, Message(topic="t", body=name.encode()))
            if half is not None and half.put.is_stored:
                self.halves[name] = half
        self.call(self.store.check_transactions, lambda _half: None)
        for kind, end in (("commit", self.store.commit), ("rollback", self.store.rollback)):
            if (name := self.prefix + kind) in self.halves:
                self.ends[name] = self.call(end, self.halves[name])
        self.clock.now_ms += HOUR_MS
        self.call(self.store.wait_dispatched)
        self.turn(lambda: self.store.transaction_checks.turn(self.clock()))
        self.call(self.store.wait_dispatched)
        self.call(self.store.flush)

    def judge(self) -> None:
        self.store.wait_dispatched()
        wanted = Counter()
        for name, half in self.halves.items():
            end = self.store.rollback if name.endswith("rollback") else self.store.commit
            ended, before = end(half), self.ends.get(name)
            assert ended.status in (
                EndStatus.ENDED_ALREADY, EndStatus.COMMITTED, EndStatus.ROLLED_BACK
            )  # fmt: skip
            if before is not None and before.put is not None and before.put.is_stored:
                assert ended.status is EndStatus.ENDED_ALREADY, name
            if not name.endswith("rollback"):
                wanted[name] = 1
        found = self.bodies("t")
        assert {name: found[name] for name in self.halves} == {
            name: wanted[name] for name in self.halves
        }
        assert set(found.values()) <= {1}


class Consuming(Work):
    """A group: what was not acknowledged comes again, what was given back comes later."""

    NAMES: ClassVar = [str(number) for number in range(6)]

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried: set[str] = set()
        self.given_back: set[str] = set()
        self.tried_back: set[str] = set()

    def open(self) -> MessageStore:
        store = super().open()
        if not store.max_offset("t", 0) and not store.appended_physical_offset:
            for name in self.NAMES:
                store.put(Message(topic="t", body=name.encode()))
            store.wait_dispatched()
        return store

    def consume(self, start: str = "first") -> list[Any]:
        consumer = self.call(self.store.consume, "t", "g", start=start)
        if consumer is None:
            return []
        taken = []
        while (message := self.call(consumer.poll)) is not None:
            taken.append(message)
            name = message.body.decode()
            if name == "2":
                self.tried_back.add(name)
                if self.call(message.give_back, 1):
                    self.given_back.add(name)
            elif name not in ("4", "5"):
                self.tried.add(name)
                self.call(message.ack)
        self.call(consumer.close)
        return taken

    def run(self) -> None:
        self.consume()
        self.turn(self.store.consumer_offsets.save)
        self.call(self.store.flush)

    def judge(self) -> None:
        with self.store.consume("t", "g", start="first") as consumer:
            left = [message.body.decode() for message in consumer if message.ack()]
        assert set(self.NAMES) - self.tried - self.tried_back <= set(left)
        delays = self.store.delays
        assert delays is not None
        self.clock.now_ms += HOUR_MS
        for _ in range(4):
            delays.turn()
            self.store.wait_dispatched()
        again = self.bodies("%RETRY%g")
        assert self.given_back <= set(again) <= self.tried_back
        assert self.tried_back <= set(again) | set(left)


class Promising(Work):
    """Puts with futures, which tell the truth."""

    settings: ClassVar = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.futures: dict[str, Any] = {}

    def run(self) -> None:
        for number in range(6):
            name = f"{self.prefix}{number}"
            future = self.call(self.store.put_async, Message(topic="t", body=name.encode()))
            if future is not None:
                self.futures[name] = future

    def judge(self) -> None:
        found = self.bodies("t")
        assert set(found.values()) <= {1}
        for name, future in self.futures.items():
            assert future.done()
            if future.exception() is None and future.result().is_stored:
                assert name in found
                assert future.result().physical_offset >= 0
            elif future.exception() is None:
                assert name not in found


class Pooling(Work):
    """A transient store pool: what is acknowledged is in the files when the store has closed."""

    settings: ClassVar = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.promised: set[str] = set()

    def run(self) -> None:
        pool = self.store.transient_pool
        assert pool is not None
        for number in range(8):
            name = f"{self.prefix}{number}"
            body = name.encode().ljust(12_000)
            if self.is_put(self.call(self.store.put, Message(topic="t", body=body))):
                self.promised.add(name)
            if number % 3 == 1:
                self.turn(pool.take_turn)
                self.clock.now_ms += 300
        self.call(self.store.flush)

    def judge(self) -> None:
        found = [body.rstrip() for body in self.bodies("t").elements()]
        assert len(set(found)) == len(found)
        assert self.promised <= set(found)


class Scrubbing(Work):
    """The check of old files: what is damaged is found, what is not is not called so."""

    settings: ClassVar = {"scrub_bytes_per_second": 200_000, "mapped_file_size_commit_log": 16_384}

    def open(self) -> MessageStore:
        store = super().open()
        if not store.appended_physical_offset:
            for number in range(30):
                store.put(Message(topic="t", body=b"%d" % number * 1000))
            store.flush()
            overwrite_file(self.root / "commitlog" / f"{0:020}", 500, b"rotten")
        return store

    def run(self) -> None:
        for _ in range(3):
            self.turn(self.store.scrub.turn)

    def judge(self) -> None:
        self.store.flush()  # what is known to be on the disk is checked
        passes = self.store.scrub.known.passes
        for _ in range(4):
            self.store.scrub.turn()
        assert self.store.scrub.known.passes > passes + 1
        assert [one.physical_offset for one in self.store.scrub.known.damage] == [0]


WORKS: dict[str, type[Work]] = {
    "delay": Delaying,
    "transactions": Transacting,
    "consuming": Consuming,
    "async": Promising,
    "pool": Pooling,
    "scrub": Scrubbing,
}
