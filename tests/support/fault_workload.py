"""What the fault tests put into a store: messages that say who they are and can be made again.

A step is one call of the store, decided by its run, its thread and its number alone. Each message
of it carries a label in a property, from which everything else about it follows; so whoever finds
a message can tell whether it is whole, and where it belongs.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rocketstore import MessageStore
from rocketstore.config import FlushDiskType, StoreConfig
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    WAIT,
    decode_properties,
    message_properties,
)
from rocketstore.message import Message
from rocketstore.storage.results import PutResult
from rocketstore.units import ByteRange, KiB, QueueKey
from support.reading import all_messages
from support.store_oracle import LogRecord, check_agreement

LABEL = "label"
TOPICS = ("orders", "payments", "a%b|c-d_E")
QUEUE_COUNT = 3
LIGHT = QueueKey("%LMQ%kitchen", 0)
LISTS = ("", LIGHT.topic, "{other}", f"{{other}},{LIGHT.topic}")
"""Further queues of single messages; the other topic gets messages of its own, too."""

TAGS = (None, "created", "paid", "größe")
SHARED_KEYS = 7

LOG_FILE_BYTES = 32 * KiB
QUEUE_FILE_BYTES = 20 * 60
INDEX_SLOTS, INDEX_ITEMS = 50, 200

KINDS = ("put", "put", "put", "put_prepared", "put_batch", "put_client_batch")


class Label(NamedTuple):
    """Which message: the `part`-th of the `step`-th call of a thread in a run."""

    run: int
    thread: int
    step: int
    part: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @staticmethod
    @functools.lru_cache(maxsize=1 << 14)
    def parse(text: str) -> Label:
        return Label(*map(int, text.split(".")))


class Step(NamedTuple):
    """One call of the store."""

    kind: str
    queue: QueueKey
    messages: tuple[Message, ...]
    waits: bool
    """Whether it waits for the flush in SYNC_FLUSH."""

    def do(self, store: MessageStore) -> PutResult:
        """Make the call."""
        topic, queue_id = self.queue
        if self.kind == "put":
            return store.put(self.messages[0], queue_id=queue_id)
        if self.kind == "put_prepared":
            return store.put_prepared(store.prepare(self.messages[0]), queue_id=queue_id)
        if self.kind == "put_batch":
            return store.put_batch(list(self.messages), queue_id=queue_id)
        batch = encode_client_batch(
            (message.flag, message.body, message_properties(message)) for message in self.messages
        )
        return store.put_client_batch(topic, queue_id, batch, wait_flush=self.waits)


def small_files(flush: FlushDiskType | str, **settings: object) -> StoreConfig:
    """Return settings with files so small that every kind of file rolls within a hundred puts."""
    options = {
        "flush_disk_type": FlushDiskType(flush),
        "mapped_file_size_commit_log": LOG_FILE_BYTES,
        "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
        "max_hash_slot_num": INDEX_SLOTS,
        "max_index_num": INDEX_ITEMS,
        "retention": False,
        "enable_multi_dispatch": True,
        "enable_lmq": True,
    }
    return StoreConfig(**{**options, **settings})  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1 << 14)
def step_of(run: int, thread: int, number: int) -> Step:
    """Return the call that a thread makes at its turn `number`."""
    chance = random.Random(f"{run}/{thread}/{number}")
    kind = chance.choice(KINDS)
    queue = QueueKey(chance.choice(TOPICS), chance.randrange(QUEUE_COUNT))
    if run % 4 == 3:
        # One queue gets everything, and so gets file after file.
        queue = QueueKey(TOPICS[0], 0)
    count = 1 if kind in {"put", "put_prepared"} else chance.randint(1, 12)
    waits = chance.random() < 0.9
    messages = tuple(
        _message(
            Label(run, thread, number, part), queue, chance, count,
            waits=waits, is_single=kind in {"put", "put_prepared"},
        )
        for part in range(count)
    )  # fmt: skip
    return Step(kind, queue, messages, waits)


def labels_of(run: int, thread: int, number: int) -> list[Label]:
    """Return the messages of a step."""
    count = len(step_of(run, thread, number).messages)
    return [Label(run, thread, number, part) for part in range(count)]


def places_of(labels: list[Label], result: PutResult) -> dict[Label, tuple[int, int]]:
    """Return the offsets in log and queue that the messages of a step got."""
    placed = zip(labels, result.record_offsets, strict=True)
    return {label: (at, result.queue_offset + part) for part, (label, at) in enumerate(placed)}


def _message(
    label: Label, queue: QueueKey, chance: random.Random, count: int, *, waits: bool,
    is_single: bool,
) -> Message:  # fmt: skip
    longest = chance.choice((0, 30, 300, 3000, 6000)) // (1 if count == 1 else 4)
    keys = (f"k-{label}", f"shared-{label.step % SHARED_KEYS}")[: chance.randrange(3)]
    properties = {LABEL: str(label), "padding": "p" * chance.choice((1, 1, 40, 700))}
    other = TOPICS[TOPICS.index(queue.topic) - 1]
    names = LISTS[label.step % len(LISTS)].format(other=other)
    if names and is_single:
        properties[INNER_MULTI_DISPATCH] = names
    return Message(
        topic=queue.topic,
        body=chance.randbytes(chance.randint(0, longest)),
        tags=chance.choice(TAGS),
        keys=keys,
        properties=properties,
        unique_key=f"u-{label}" if chance.random() < 0.3 else None,
        flag=chance.randint(-5, 5),
        wait_flush=waits,
    )


@functools.lru_cache(maxsize=1 << 14)
def _properties_of(label: Label) -> dict[str, str]:
    return decode_properties(message_properties(step_of(*label[:3]).messages[label.part]))


def check_true(records: list[LogRecord], tried: set[Label]) -> dict[Label, LogRecord]:
    """Assert that each record is a message that was put, whole and once; return them by label."""
    found: dict[Label, LogRecord] = {}
    for record in records:
        text = record.properties.get(LABEL)
        assert text is not None, f"a record without its label: {record}"
        label = Label.parse(text)
        assert label in tried, f"{label} was never put: {record}"
        assert label not in found, f"{label} twice: {found[label]} and {record}"
        found[label] = record
        step = step_of(*label[:3])
        wanted = step.messages[label.part]
        assert record.queue == step.queue, f"{label} in {record.queue}, not in {step.queue}"
        assert (record.body, record.flag) == (wanted.body, wanted.flag), f"{label} differs"
        properties = _properties_of(label)
        if INNER_MULTI_DISPATCH in properties:
            properties = properties.copy()
            properties.pop(WAIT, None)
            # Whether it is right, the queues tell.
            properties[INNER_MULTI_QUEUE_OFFSET] = record.properties[INNER_MULTI_QUEUE_OFFSET]
        assert record.properties == properties, f"{label}: {record.properties} is not {properties}"
    return found


def take_steps(root: Path, config: StoreConfig, steps: int, now_ms: int) -> None:
    """Make a store by the first steps of run 10, half a second for each look at the clock."""
    clock = itertools.count(now_ms, 500).__next__
    with MessageStore.open(root, config, clock=clock, threads=False) as store:
        for step in range(1, steps + 1):
            step_of(10, 0, step).do(store)


def tried_by(steps: int) -> set[Label]:
    """Return what `take_steps` puts."""
    return {label for step in range(1, steps + 1) for label in labels_of(10, 0, step)}


def check_reading(store: MessageStore, found: dict[Label, LogRecord]) -> None:
    """Assert that readers get exactly what is in the log: by queue, by id, by key."""
    seen = {}
    places = set()
    for queue in store.queues():
        numbers = []
        for message in all_messages(store, *queue):
            label = Label.parse(message.properties[LABEL])
            record = found[label]
            assert (message.physical_offset, message.queue_offset, message.body) == (
                record.physical_offset, record.queue_offset, record.body,
            )  # fmt: skip
            assert store.by_id(message.message_id) == message
            seen[label] = message
            numbers.append(record.places[queue])
            places.add((label, queue))
        assert numbers == sorted(set(numbers)), queue
    wanted = {(label, queue) for label, record in found.items() for queue in record.places}
    assert places == wanted, places ^ wanted
    for label, record in list(found.items())[::7]:
        for key in record.keys:
            hits = store.find(record.queue.topic, key, max_messages=1000)
            assert seen[label] in hits, f"{label} is not found by {key}"


def check_store(
    store: MessageStore,
    tried: set[Label],
    acknowledged: Mapping[Label, tuple[int, int]] | None = None,
    *,
    lost: Sequence[ByteRange] = (),
) -> dict[Label, LogRecord]:
    """Assert that an open store has all that was acknowledged and nothing false, and gives it.

    Queues and index agree with the log, which is whole but for what is `lost`; `acknowledged` has
    the physical offset and the queue offset of each. Returns what is there.
    """
    content = check_agreement(
        store.layout.root, log_file_bytes=LOG_FILE_BYTES, slot_count=INDEX_SLOTS, lost=[*lost]
    )
    assert content.damage == []
    found = check_true(content.records, tried)
    for label, place in (acknowledged or {}).items():
        if any(start <= place[0] < stop for start, stop in lost):
            continue
        assert label in found, f"lost {label}, acknowledged at {place}"
        assert (found[label].physical_offset, found[label].queue_offset) == place, label
    check_reading(store, found)
    return found
