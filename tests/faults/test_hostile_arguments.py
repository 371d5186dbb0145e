"""Objects that misbehave while a store reads them: it stores or refuses them, and goes on.

Subclasses with methods of their own, buffers that are released or resized, mappings and lists that
change or put again while they are read, objects that another thread changes. Afterwards puts, gets
and searches work, and the store verifies clean. ``make test-builds`` runs this with sanitizers.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from rocketstore import Message, MessageStore, RocketStoreError, verify_store
from support.clock import Clock
from support.small_store import CONFIG

pytestmark = pytest.mark.timeout(120)

EXPECTED = (
    RocketStoreError, AttributeError, BufferError, LookupError, MemoryError, OverflowError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What Python or the store may answer; no memory where a length is a lie."""


class Text(str):
    """A string that puts into the store whenever it is asked for anything."""

    store: MessageStore | None = None
    __slots__ = ()

    def _puts(self) -> None:
        store, Text.store = Text.store, None
        if store is not None:
            store.put(Message(topic="inner", body=b"inner"))
            Text.store = store

    def __eq__(self, other: object) -> bool:
        self._puts()
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self._puts()
        return str.__hash__(self)

    def __str__(self) -> str:
        self._puts()
        return str.__str__(self)

    def __len__(self) -> int:
        self._puts()
        return 1 << 40

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self._puts()
        return str.encode(self, encoding, errors) + b"more"

    def __iter__(self) -> Iterator[str]:
        self._puts()
        return iter("lie")


class Number(int):
    """A number whose methods lie or put."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __eq__(self, other: object) -> bool:
        return bool(Text("x") == "x") and int.__eq__(self, other)

    def __hash__(self) -> int:
        hash(Text("x"))
        return int.__hash__(self)

    def __lt__(self, other: int) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


class Buffer(bytes):
    """Bytes whose length is a lie."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, _: Any) -> Any:
        raise RuntimeError("no item")


class Shrinking(dict[str, str]):
    """A dict that loses its items while they are read."""

    def items(self) -> Any:
        for item in list(super().items()):
            self.clear()
            hash(Text("x"))
            yield item

    def __len__(self) -> int:
        return 0


class Endless(Mapping[str, str]):
    """A mapping that says one thing of its length and gives another."""

    def __getitem__(self, key: str) -> str:
        hash(Text("x"))
        return key * 100

    def __iter__(self) -> Iterator[str]:
        return iter(Text(f"key{number}") for number in range(2_000))

    def __len__(self) -> int:
        return -1  # noqa: PLE0303 - a lie


class Emptied(list[Message]):
    """A list of messages that is emptied while it is read."""

    def __iter__(self) -> Iterator[Message]:
        for message in list(super().__iter__()):
            self.clear()
            yield message

    def __len__(self) -> int:
        return 1 << 30


def message(**fields: Any) -> Message:
    return Message(**({"topic": "outer", "body": b"body"} | fields))


def released() -> memoryview:
    view = memoryview(bytearray(b"released"))
    view.release()
    return view


BAD_NUMBERS = (Number(1), Number(-1), True, 1.5, "1", None, 1 << 31, 1 << 63, 1 << 70, -(1 << 70))
BODIES = (
    Buffer(b"body"),
    bytearray(b"body"),
    memoryview(b"body"),
    memoryview(b"b-o-d-y")[::2],
    memoryview(np.arange(6, dtype=np.int32)),
    np.arange(6, dtype=np.int64).reshape(2, 3),
    released(),
    "body",
    None,
    12,
)
TEXTS = (Text("outer"), Text(""), "\ud800", "a\0b", "\x01\x02", b"outer", None, 1, "x" * 40_000)
KEYS = (Text("a"), (Text("a"), Text("b")), ["a", 1], ("\ud800",), {"a": 1}, iter(["a"]), ((),), 7)
PROPERTIES = (
    {Text("a"): Text("b")},
    Shrinking(a="b", c="d"),
    Endless(),
    {"a": 1},
    {1: "a"},
    {"a\x01": "b"},
    {"a": "\ud800"},
    [("a", "b")],
    "ab",
    None,
)
NUMBER_FIELDS = (
    "flag", "sys_flag", "born_timestamp_ms", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip


def hostile_messages() -> Iterator[Message]:
    yield from (message(body=body) for body in BODIES)
    for name in ("topic", "tags", "unique_key", "born_host"):
        yield from (message(**{name: text}) for text in TEXTS)
    yield from (message(keys=keys) for keys in KEYS)
    yield from (message(properties=properties) for properties in PROPERTIES)
    for name in NUMBER_FIELDS:
        yield from (message(**{name: number}) for number in BAD_NUMBERS)
    yield message(wait_flush=Number(1))


def puts_of(store: MessageStore, one: Message) -> Iterator[Callable[[], object]]:
    yield lambda: store.put(one)
    yield lambda: store.put_prepared(store.prepare(one), one.body)
    yield lambda: store.put_batch([one, message()])
    yield lambda: store.put_batch(Emptied([one, one, one]))


def other_calls(store: MessageStore) -> Iterator[Callable[[], object]]:
    good = message()
    prepared = store.prepare(good)
    for number in BAD_NUMBERS:
        wrong: Any = number
        yield lambda wrong=wrong: store.put(good, wrong)
        yield lambda wrong=wrong: store.put_prepared(prepared, b"", wrong)
        yield lambda wrong=wrong: store.get("outer", wrong, 0)
        yield lambda wrong=wrong: store.get("outer", 0, wrong)
        yield lambda wrong=wrong: store.get_raw("outer", 0, 0, wrong)
        yield lambda wrong=wrong: store.get_views("outer", 0, wrong)
    for body in BODIES:
        data: Any = body
        yield lambda data=data: store.put_prepared(prepared, data)
        yield lambda data=data: store.put_client_batch("outer", 0, data)
        yield lambda data=data: store.put_client_batch("outer", 0, b"", properties=data)
    for text in (*TEXTS, *KEYS):
        name: Any = text
        yield lambda name=name: store.get(name, 0, 0)
        yield lambda name=name: store.get_raw("outer", 0, 0, tags=name)
        yield lambda name=name: store.get("outer", 0, 0, tags=name)
        yield lambda name=name: store.find("outer", key=name)
        yield lambda name=name: store.find(name, key="a")
        yield lambda name=name: store.by_id(name)


@pytest.fixture
def store(tmp_path):
    """A store that was put into before, and verifies clean after the test."""
    with MessageStore.open(tmp_path / "store", CONFIG, clock=Clock()) as opened:
        opened.put(message(keys="first"))
        Text.store = opened
        yield opened
        Text.store = None
        check_works(opened)
    report = verify_store(tmp_path / "store", CONFIG)
    assert [str(finding) for finding in report.findings] == []


def check_works(store: MessageStore) -> None:
    result = store.put(message(body=b"last", keys="last"))
    store.wait_dispatched()
    page = store.get("outer", 0, result.queue_offset)
    assert [one.body for one in page.messages] == [b"last"]
    raw = store.get_raw("outer", 0, result.queue_offset)
    assert raw.next_offset == result.queue_offset + 1
    assert [one.physical_offset for one in store.find("outer", key="last")] == [
        result.physical_offset
    ]


def test_hostile_messages_are_stored_or_refused_and_the_store_goes_on(store):
    for one in hostile_messages():
        for put in puts_of(store, one):
            with contextlib.suppress(*EXPECTED):
                put()


def test_hostile_arguments_of_calls_are_taken_or_refused_and_the_store_goes_on(store):
    for call in other_calls(store):
        with contextlib.suppress(*EXPECTED):
            call()


def test_objects_that_other_threads_change_are_stored_as_they_once_were(store):
    Text.store = None
    properties = {"a": "b"}
    body = bytearray(b"x" * 100)
    batch = [message()]
    client_batch = bytearray(200)
    stopped = threading.Event()

    def change() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            properties[f"key{number % 50}"] = "v" * (number % 300)
            if number % 7 == 0:
                properties.clear()
            with contextlib.suppress(BufferError):
                body[:] = b"y" * (number % 3_000)
            with contextlib.suppress(BufferError):
                del client_batch[100 + number % 100 :]
                client_batch.extend(number.to_bytes(4, "big") * 30)
            batch[:] = [message(body=b"z" * (number % 900))] * (number % 20)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(400):
            changing: Any = body
            for put in (
                lambda: store.put(message(properties=properties)),
                lambda: store.put(message(body=changing)),  # noqa: B023 - called in this turn
                lambda: store.put_batch(batch),
                lambda: store.put_client_batch("outer", 0, memoryview(client_batch)),
            ):
                with contextlib.suppress(*EXPECTED):
                    put()
    finally:
        stopped.set()
        changer.join()
