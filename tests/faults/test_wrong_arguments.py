"""Wrong arguments at every public door: the error names the argument, and nothing is half done.

Each argument of each public call gets what may stand in its place by mistake: None, text for bytes,
a bool or a fraction for a number, one thing for several. It is taken, or refused by an error of the
package; never by one of Python's from inside, and never so that a later call fails.
"""

import asyncio
import enum
import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocketstore import (
    ArgumentError,
    ConfigError,
    ConsumerFilters,
    InvalidNameError,
    Message,
    MessageStore,
    PreparedMessage,
    ReadOnlyStore,
    RocketStoreError,
    RunningFlag,
    RunningFlags,
    Severity,
    StoreConfig,
    StoreStatistics,
    TopicsOfKind,
    load_config,
    pipeline,
    repair_store,
    verify_store,
)
from rocketstore.aio import AsyncConsumer, AsyncMessageStore
from rocketstore.broker.settings import BrokerSettings
from rocketstore.broker.testing import Broker
from rocketstore.config.store_config import FIELDS
from rocketstore.consuming.consumer import Consumer
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.rules.topics import is_system
from rocketstore.storage.opening import LONGEST_ROOT
from rocketstore.storage.threads import Bell
from support.clock import Clock
from support.patience import within_time

pytestmark = pytest.mark.timeout(120)

CONFIG = StoreConfig.small(
    memory_topic_enable=True,
    enable_consume_queue_ext=True,
    mapped_file_size_consume_queue_ext=4096,
    enable_calc_filter_bit_map=True,
    enable_multi_dispatch=True,
)
QUEUE = {"topic": "orders", "queue_id": 0}


class Index:
    """A whole number of another class."""

    def __index__(self) -> int:
        return 0


class Colour(enum.Enum):
    """An enum that belongs to nobody here."""

    RED = "red"


WRONG: tuple[Any, ...] = (
    None, True, -1, 1.5, 0.0, float("nan"), float("inf"), 1 << 31, 1 << 63, 1 << 70, -(1 << 70),
    "1", "", "x" * 5000, "a\0b", "\ud800", b"orders", bytearray(b"x"), memoryview(b"12"),
    np.int64(0), np.int32(1), np.True_, np.float64(1), np.str_("orders"), Index(),
    [], ["a"], (), {}, {"a": 1}, (one for one in ""), object(), Colour.RED, Path("none"),
)  # fmt: skip
FRACTIONS = {
    "begin_ms", "end_ms", "timestamp_ms", "timeout_s", "waited_s", "share", "idle_timeout_s",
}  # fmt: skip
"""Times and shares, which are numbers but not whole ones."""
WITHOUT = {
    *(
        "abandon",
        "check_held",
        "check_open",
        "close",
        "delete_expired_files",
        "flush",
        "look_again",
    ),
    *("earliest_log_timestamp", "runtime_info", "settle", "topics", "checkpoint", "index_files"),
    *("check_readable", "metrics", "put_by_topic", "put_time_histogram", "total_put"),
    *("note_failed_put", "note_unavailable", "note_writeable"),
}
"""Calls without arguments."""
OWN = {"put_rows", "put_encoded", "note_death", "note_slow_put", "sample", "look"}
"""Calls of the package's own parts, which do not check again what these have checked."""

Row = tuple[Callable[..., Any], dict[str, Any]]


def reads(store: MessageStore | ReadOnlyStore, message_id: str) -> Iterator[tuple[str, Row]]:
    page = QUEUE | {"offset": 0, "max_messages": 32, "tags": None}
    for name in ("get", "get_raw", "get_views"):
        yield name, (getattr(store, name), page)
    yield "is_in_memory", (store.is_in_memory, page | {"waits": False})
    for name in ("min_offset", "max_offset", "message_count", "earliest_timestamp"):
        yield name, (getattr(store, name), QUEUE)
    limits = {"begin_ms": 0, "end_ms": None, "max_messages": None}
    yield "find", (store.find, {"topic": "orders", "key": "k"} | limits)
    yield "by_id", (store.by_id, {"message_id": message_id})
    yield "at_physical_offset", (store.at_physical_offset, {"physical_offset": 0})
    yield "offset_at", (store.offset_at, QUEUE | {"timestamp_ms": 0})
    yield "store_timestamp", (store.store_timestamp, QUEUE | {"offset": 0})
    yield "end_within", (store.end_within, QUEUE | {"physical_limit": 100})
    yield "extension_unit", (store.extension_unit, QUEUE | {"address": 0})
    yield "queues", (store.queues, {"topic": None})
    entries = QUEUE | {"offset": None, "max_entries": None}
    yield "queue_entries", (lambda **given: list(store.queue_entries(**given)), entries)
    yield "wait_for", (store.wait_for, QUEUE | {"offset": 0, "timeout_s": 0.0})


def puts(store: MessageStore, message: Message) -> Iterator[tuple[str, Row]]:
    yield "put", (store.put, {"message": message, "queue_id": 0})
    future = {"message": message, "queue_id": 0}
    yield "put_async", (lambda **given: store.put_async(**given).result(30), future)
    yield "prepare", (store.prepare, {"message": message})
    prepared = store.prepare(message)
    given = {"prepared": prepared, "body": None, "queue_id": 0}
    yield "put_prepared", (store.put_prepared, given)
    yield "put_batch", (store.put_batch, {"messages": [message], "queue_id": 0})
    batch = {"batch": encode_client_batch([(0, b"b", b"")]), "properties": b"", "sys_flag": 0}
    born = {"born_timestamp_ms": None, "born_host": "127.0.0.1:0", "reconsume_times": 0}
    yield "put_client_batch", (store.put_client_batch, QUEUE | batch | born | {"wait_flush": True})
    record = QUEUE | {"record": prepared.record, "wait_flush": True}
    yield "put_record", (store.put_record, record)
    fields = {
        name: one.default if one.default is not inspect.Parameter.empty else "orders"
        for name, one in inspect.signature(Message).parameters.items()
    } | {"properties": {}}
    for topic in ("orders", "mem", "bat"):
        own = fields | {"topic": topic}
        yield "put", (lambda **given: store.put(Message(**given)), own)
    yield "put_batch", (lambda **given: store.put_batch([Message(**given)]), fields)
    # A half message is prepared at no other offset than its own.
    halves = {name: one for name, one in fields.items() if name != "prepared_transaction_offset"}
    yield "begin", (lambda **given: store.begin(Message(**given)), halves)
    encoded = {
        name: one for name, one in fields.items() if name not in {"tags", "keys", "unique_key"}
    }
    yield "put_prepared", (
        lambda **given: store.put_prepared(PreparedMessage(**given)), encoded | {"properties": b""}
    )  # fmt: skip


def services(store: MessageStore) -> Iterator[tuple[str, Row]]:
    result = store.put(Message(topic="orders"))
    yield "acknowledged", (store.acknowledged, {"result": result, "waited_s": 0.0})
    waits = {"physical_offset": None, "timeout_s": 0.0}
    yield "wait_dispatched", (store.wait_dispatched, waits)
    yield "wait_until", (store.wait_until, {"is_true": lambda: True, "timeout_s": 0.0})
    yield "ring", (lambda bell: store.ring(bell)(), {"bell": Bell()})

    def heard(**given: Any) -> None:
        store.add_listener(**given)
        store.remove_listener(given["listener"])

    yield "add_listener", (heard, {"listener": bool, "queues": None})
    yield "remove_listener", (store.remove_listener, {"listener": bool})
    yield "topics_of", (store.topics_of, {"kind": "batch"})
    yield "next_queue_offset", (store.next_queue_offset, QUEUE)
    names = (f"made{number}" for number in itertools.count())
    create = store.batch_topics.create
    yield "create", (lambda **given: create(**{"topic": next(names)} | given), {"queue_count": 1})
    yield "create", (create, {"topic": "made"})
    group = {"topics": "orders", "group": "g", "tags": None, "start": "last", "idle_timeout_s": 0.0}
    group |= {"max_reconsume_times": None, "max_unacknowledged": 10}
    yield "consume", (lambda **given: store.consume(**given).close(), group)
    yield (
        "begin",
        (store.begin, {"message": Message(topic="orders"), "queue_id": 0, "producer_group": None}),
    )
    half = store.begin(Message(topic="orders"))
    end = {"producer_group": "p", "queue_offset": half.queue_offset, "commits": False}
    place = {"physical_offset": half.physical_offset}
    yield "end_transaction", (store.end_transaction, end | place)
    yield "commit", (store.commit, {"half": half})
    yield "rollback", (store.rollback, {"half": half})
    yield "check_transactions", (store.check_transactions, {"on_check": lambda _: None})
    filters, flags = store.consumer_filters, store.running_flags
    of_group = {"topic": "filtered", "group": "g"}
    yield "register", (filters.register, of_group | {"predicate": bool})
    yield "unregister", (filters.unregister, of_group)
    yield "bit_map", (filters.bit_map, {"topic": "filtered", "properties": b""})
    yield "may_match", (filters.may_match, of_group | {"unit": None})
    yield "set", (flags.set, {"flag": RunningFlag.INDEX_ERROR, "reason": "a test"})
    yield "clear", (flags.clear, {"flag": RunningFlag.INDEX_ERROR})
    yield "rates", (store.statistics.rates, {"field": "put"})
    yield "put_latency_ms", (store.statistics.put_latency_ms, {"share": 0.5})
    consumer = store.consume("orders", "reader", start="first")
    first = consumer.poll()
    yield "poll", (consumer.poll, {"timeout_s": 0.0})
    yield "give_back", (consumer.give_back, {"message": first, "delay_level": 0})
    yield "acknowledge", (consumer.acknowledge, {"message": first})


def outcome(call: Callable[..., Any], given: dict[str, Any]) -> BaseException | None:
    """Return what a call raised."""
    found = within_time(call, **given)
    return found if isinstance(found, BaseException) else None


def faults_of(name: str, call: Callable[..., Any], good: dict[str, Any]) -> Iterator[str]:
    assert outcome(call, good) is None, name
    for argument, usual in good.items():
        for wrong in WRONG:
            error = outcome(call, good | {argument: wrong})
            if error is not None and not isinstance(error, RocketStoreError):
                yield f"{name}: {argument}={wrong!r:.40}: {error!r:.100}"
            is_number = type(usual) is int and argument not in FRACTIONS
            if is_number and isinstance(wrong, (float, bool, np.bool_)) and error is None:
                yield f"{name}: {argument}={wrong!r} is taken for a whole number"
            is_whole = is_number and isinstance(wrong, (np.int64, Index))
            if is_whole and outcome(call, good | {argument: 0}) is None and error is not None:
                yield f"{name}: {argument}={wrong!r} is taken for no number: {error!r:.100}"


@pytest.fixture
def store(tmp_path):
    with MessageStore.open(tmp_path / "store", CONFIG) as opened:
        opened.memory_topics.create("mem")
        opened.batch_topics.create("bat")
        for _ in range(3):
            opened.put(Message(topic="orders", body=b"b", keys="k", tags="t"))
        opened.wait_dispatched()
        yield opened
        result = opened.put(Message(topic="orders", body=b"last"))
        assert opened.wait_for("orders", 0, result.queue_offset, 30)
        assert opened.get("orders", 0, result.queue_offset).messages[0].body == b"last"
    report = verify_store(tmp_path / "store", CONFIG)
    assert [one for one in report.findings if one.severity is not Severity.NOTE] == []


def test_wrong_arguments_are_named_and_leave_the_store_as_it_was(store):
    message = Message(topic="orders", body=b"b")
    message_id = store.put(message).message_id
    store.wait_dispatched()
    walked = {"message_store": set(), "read_only": set()}
    faults = []
    with MessageStore.open(store.layout.root, read_only=True) as reader:
        cut_short = (
            "cut_short",
            (lambda **given: list(reader.cut_short(**given)), {"topic": None}),
        )
        of_reader = (*reads(reader, message_id), cut_short)
        of_store = (*reads(store, message_id), *puts(store, message), *services(store))
        for door, rows in (("read_only", of_reader), ("message_store", of_store)):
            for name, (call, good) in rows:
                walked[door].add(name)
                faults += faults_of(f"{door}.{name}", call, good)
    assert faults == [], "\n".join(faults)
    owners = (MessageStore, TopicsOfKind, Consumer, ConsumerFilters, RunningFlags, StoreStatistics)
    public = {
        name for owner in owners for name, one in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }  # fmt: skip
    assert public - WITHOUT - OWN - walked["message_store"] == set(), "give these a row"
    of_reader_only = {name for name in vars(ReadOnlyStore) if not name.startswith("_")}
    assert {name for name in of_reader_only if name == "cut_short"} <= walked["read_only"]


def test_wrong_arguments_of_an_opening_leave_nothing(tmp_path, monkeypatch):
    ids = itertools.count()
    small = {"config": StoreConfig.small()}

    def opened(**given: Any) -> None:
        MessageStore.open(**{"path": tmp_path / f"o{next(ids)}"} | small | given).close()

    good = {"read_only": False, "clock": Clock(), "disk": None, "policy": None, "threads": False}
    good |= small | {"services": (), "kinds": ()}
    path = tmp_path / "path"
    MessageStore.open(path, StoreConfig.small()).close()
    of_path = {"path": path, "config": None, "now_ms": None}
    repair = of_path | {"policy": "salvage", "dry_run": True, "disk": None}
    load = {"broker_conf": None, "environment": {}, "overrides": (), "others": ()}
    rows: dict[str, Row] = {
        "open": (opened, good),
        "path": (lambda path: MessageStore.open(path, read_only=True).close(), {"path": path}),
        "verify_store": (verify_store, of_path),
        "repair_store": (repair_store, repair),
        "load_config": (load_config, load),
    }
    monkeypatch.chdir(tmp_path)
    faults = []
    for name, (call, arguments) in rows.items():
        faults += faults_of(name, call, arguments)
    assert faults == []
    for argument, wrong in (("clock", None), ("disk", 1), ("threads", None), ("services", "a")):
        place = tmp_path / "refused"
        with pytest.raises(ArgumentError, match=f"MessageStore.open|{argument}"):
            MessageStore.open(place, **{argument: wrong})
        assert not place.exists()


class SparkSession:
    """Stands for Spark's, which a job that refuses its arguments does not use."""


def test_jobs_on_spark_refuse_wrong_arguments_before_they_use_spark(tmp_path):
    pytest.importorskip("pyspark")
    MessageStore.open(tmp_path, StoreConfig.small()).close()
    wrong = {
        "store": (None, b"store", 1, ["a"]), "target": (1, b"there"),
        "out": (1,), "archive": (None, 1), "max_split_bytes": (None, True, 1.5, "1"),
        "now_ms": ("x", True), "config": ({},), "topics": ("orders", [1], None),
        "begin_ms": ("x",), "allow_gaps": (None, "no"), "as_of": (1.5,),
    }  # fmt: skip
    good = {"spark": SparkSession(), "store": tmp_path, "archive": tmp_path}
    good |= {"target": tmp_path / "target", "out": tmp_path / "out"}
    for name in ("archive", "audit", "prove_rebuild", "rebuild", "report", "restore"):
        job = getattr(pipeline, name)
        wanted = inspect.signature(job).parameters
        for argument, one in ((at, one) for at in wanted for one in wrong.get(at, ())):
            given = {key: value for key, value in good.items() if key in wanted}
            with pytest.raises((ArgumentError, ConfigError), match=argument):
                job(**given | {argument: one})
    assert not any((tmp_path / place).exists() for place in ("target", "out"))


def test_wrong_arguments_of_calls_that_are_awaited_are_named(store):
    opened = AsyncMessageStore(store)
    consumer = opened.consume("orders", "awaiting", start="first")
    public = {
        *inspect.getmembers(AsyncMessageStore, inspect.isfunction),
        *inspect.getmembers(AsyncConsumer, inspect.isfunction),
    }
    message = Message(topic="orders", body=b"b")
    first = asyncio.run(consumer.poll(30))
    group = {"topics": "orders", "group": "g", "idle_timeout_s": 0.0, "start": "last"}
    rows: dict[str, Row] = {
        "put": (opened.put, {"message": message, "queue_id": 0}),
        "put_batch": (opened.put_batch, {"messages": [message], "queue_id": 0}),
        "get": (opened.get, QUEUE | {"offset": 0, "max_messages": 32, "tags": None}),
        "wait_for": (opened.wait_for, QUEUE | {"offset": 0, "timeout_s": 0.0}),
        "wait_dispatched": (opened.wait_dispatched, {"physical_offset": None, "timeout_s": 0.0}),
        "consume": (opened.consume, group),
        "poll": (consumer.poll, {"timeout_s": 0.0}),
        "give_back": (consumer.give_back, {"message": first, "delay_level": 0}),
        "acknowledge": (consumer.acknowledge, {"message": first}),
    }
    faults = []
    for name, (call, good) in rows.items():

        def done(call: Callable[..., Any] = call, **given: Any) -> None:
            async def awaited() -> None:
                result = call(**given)
                if isinstance(result, AsyncConsumer):
                    async with result:
                        await anext(result, None)
                elif inspect.isawaitable(result):
                    await result

            asyncio.run(awaited())

        faults += faults_of(f"aio.{name}", done, good)
    assert faults == [], "\n".join(faults)
    names = {name for name, _ in public if not name.startswith("_")}
    assert names - {"flush", "close"} - rows.keys() == set(), "give these a row"


def test_wrong_arguments_of_a_broker_in_a_test_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for argument, wrong in ((name, one) for name in ("path", "config") for one in WRONG):
        if wrong is not None and not isinstance(wrong, (str, Path)):
            with pytest.raises((ArgumentError, ConfigError), match=argument):
                Broker(**{argument: wrong})
    for field, wrong in ((name, one) for name in BrokerSettings.__struct_fields__ for one in WRONG):
        with suppress(ConfigError):
            BrokerSettings(**{field: wrong})
    with Broker() as broker:
        good = {"topic": "orders", "queue_count": 1}
        assert list(faults_of("make_topic", broker.make_topic, good)) == []
        table = broker.store.layout.root / "config" / "topics.json"
        made = json.loads(table.read_text("utf-8"))["topicConfigTable"].keys()
    assert {name for name in made if not is_system(name)} == {"orders", "1"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", StoreConfig.__struct_fields__)
def test_settings_of_another_kind_are_refused_by_their_name(field):
    refused = [error for wrong in WRONG if (error := outcome(StoreConfig, {field: wrong}))]
    assert len(refused) >= 29
    assert {getattr(error, "key", error) for error in refused} == {FIELDS[field].key}


def test_an_error_says_call_argument_expected_and_found(store):
    with pytest.raises(
        ArgumentError, match=r"^max_messages: expected int, found None \(NoneType\)$"
    ):
        store.get("orders", 0, 0, max_messages=None)  # type: ignore[arg-type] # that is the test
    with pytest.raises(ArgumentError, match=r"prepared: expected PreparedMessage, found None"):
        store.put_prepared(None)  # type: ignore[arg-type] # that is the test
    with pytest.raises(
        ArgumentError, match=r"MessageStore.commit: half: expected HalfMessage, found"
    ):
        store.commit("half")  # type: ignore[arg-type] # that is the test
    with pytest.raises(InvalidNameError, match="topic: expected str"):
        store.next_queue_offset(b"orders", 0)  # type: ignore[arg-type] # that is the test


def test_a_path_too_long_for_the_files_of_queues_is_refused_before_a_put(tmp_path):
    """Dispatch could make no queue, and who waits for it would wait for ever."""
    path = tmp_path
    while len(str(path)) < LONGEST_ROOT:
        path /= "x" * min(200, LONGEST_ROOT - len(str(path)))
    with pytest.raises(ConfigError, match=r"has 3,84\d bytes"):
        MessageStore.open(path, StoreConfig.small())
    assert not path.exists()
    fits = Path(str(path)[:LONGEST_ROOT])
    with MessageStore.open(fits, StoreConfig.small()) as store:
        store.put(Message(topic="t" * 127, body=b"b"), 2**31 - 1)
        assert store.wait_dispatched(timeout_s=30)
