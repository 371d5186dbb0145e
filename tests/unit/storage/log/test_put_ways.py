"""A put by `PlainPuts`, compiled and interpreted, and one by the checks: the same; and no crash."""

import contextlib
import importlib.util
import random
import struct
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore import Message, MessageStore, PutMessageStatus, StoreConfig
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.native import log_end
from rocketstore.native import put as native_put
from rocketstore.scan import kernels
from rocketstore.storage.files.ahead import TOUCH_BYTES
from rocketstore.storage.log import commit_log, prepared, writer
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.storage.running_flags import RunningFlag
from rocketstore.units import QueueKey
from support.clock import Clock
from support.configured_store import LOG_FILE_BYTES, open_small
from support.inside import parts_of
from support.leaks import assert_keeps_nothing
from support.mapped_bytes import bytes_at
from support.memory import memory_directory
from support.oracle.record import decode_record
from support.store_oracle import read_log

needs_compiled = pytest.mark.skipif(
    not kernels.is_compiled(), reason="interpreted, all puts are left to the checks"
)

OK = PutMessageStatus.PUT_OK
Record = log_end.Record
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])
PLAIN = Message(topic="orders", body=b"x" * 100, keys="k1", unique_key="u1", tags="paid")


class Text(str):
    """Not a plain text: what it looks like may differ from what it says."""

    __slots__ = ()


class Subclass(Message, frozen=True, kw_only=True):
    """A message of a class of its own."""


ODD = st.sampled_from([None, 1.5, True, b"k", [], Text("orders"), 2**31, 2**63, -(2**31) - 1])
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text("abcXYZ019 -_", max_size=30) | st.sampled_from(
    ["", "a\x01b", "\x02", "é", "\ud800", "a\0", "longer than 8\0", "a\0b"]
)
NAMES = TEXTS | st.sampled_from(["DELAY", "WAIT", "INNER_MULTI_DISPATCH"])
BODIES = st.binary(max_size=300) | st.integers(0, 70_000).map(lambda size: b"b" * size)
FIELDS = {
    "topic": st.sampled_from(["orders", "p" * 127, "p" * 128, "", "..", "ü"]) | ODD,
    "body": st.sampled_from([bytearray(b"x"), memoryview(b"y"), "text"]) | ODD,
    "keys": TEXTS
    | st.lists(TEXTS | st.just("k"), max_size=6).map(tuple)
    | st.lists(st.text("ab", min_size=1, max_size=3), max_size=6).map(tuple)
    | ODD,
    "unique_key": TEXTS | ODD,
    "tags": TEXTS | st.just("t" * 40_000) | ODD,
    "properties": st.dictionaries(NAMES, TEXTS | st.sampled_from(["1", "false"]), max_size=2)
    | st.dictionaries(st.text("ab", min_size=1, max_size=3), st.text("ab", max_size=9), max_size=9)
    | ODD,
    "flag": INT32 | ODD,
    "sys_flag": st.sampled_from([0, 1, 0x10, 0x20, 0x700, 4, 8, 12, -16]) | ODD,
    "born_timestamp_ms": st.sampled_from([None, -1, 0]) | INT64 | ODD,
    "born_host": st.sampled_from(["10.0.0.1:1", "[2001:db8::1]:1", "nowhere"]) | ODD,
    "reconsume_times": INT32 | ODD,
    "prepared_transaction_offset": INT64 | ODD,
    "wait_flush": st.booleans() | ODD,
}  # fmt: skip


@st.composite
def varied_messages(draw, topic=None):
    """Return a message that is plain in most of its fields."""
    fields = {"topic": "orders", "body": draw(BODIES), "keys": draw(st.sampled_from(["", "k"]))}
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2)):
        fields[name] = draw(FIELDS[name])
    if topic is not None:
        fields["topic"] = topic
    return draw(st.sampled_from([Message, Message, Message, Subclass]))(**fields)


QUEUE_IDS = st.sampled_from([0, 0, 1, 2**31 - 1, 2**31, -1, True, None, "0"])
SINGLES = st.tuples(st.just("put"), varied_messages(), QUEUE_IDS)
BATCHES = st.tuples(
    st.just("batch"),
    st.lists(varied_messages("orders"), max_size=6)
    | st.lists(st.just(PLAIN), min_size=1, max_size=40)
    | st.lists(varied_messages(), max_size=3).map(tuple),
    QUEUE_IDS,
)
ENCODED = st.lists(
    st.tuples(INT32, st.binary(max_size=80), st.sampled_from([b"", b"K\x01v", b"K\x01v\x02"])),
    min_size=1,
    max_size=12,
).map(encode_client_batch)
ENCODED_ODD = ENCODED | st.binary(max_size=200) | st.sampled_from(
    [
        encode_client_batch([(0, b"", b"DELAY\x011")]),
        encode_client_batch([(0, b"", b"K\x01v\0"), (0, b"", b"K\x01longer than 8\0")]),
        encode_client_batch([(0, b"", b"A\x01b\x02INNER_MULTI_DISPATCH\x01q")]),
        encode_client_batch([(0, b"b" * 70_000, b"")]),
        encode_client_batch([(0, b"", b"K\x01" + b"v" * 32_700)]),
        b"",
    ]
)  # fmt: skip
CLIENT_BATCHES = st.tuples(
    st.just("client"),
    ENCODED | ENCODED_ODD,
    st.fixed_dictionaries(
        {},
        optional={
            "properties": st.sampled_from(
                [
                    b"",
                    b"C\x01w",
                    b"C\x01w\0",
                    b"C\x01" + b"w" * 32_700,
                    b"WAIT\x01false",
                    b"A\x01b\x02DELAY\x011",
                ]
            )
            | st.just({"C": "w"}),
            "sys_flag": FIELDS["sys_flag"],
            "born_timestamp_ms": FIELDS["born_timestamp_ms"],
            "born_host": FIELDS["born_host"],
            "reconsume_times": FIELDS["reconsume_times"],
        },
    ),
)
PREPARED = st.tuples(
    st.just("prepared"),
    varied_messages(),
    st.none() | BODIES | st.sampled_from([bytearray(b"x"), "text", 5]),
    QUEUE_IDS,
)


def interpreted(name):
    """Return a source of `rocketstore.native`, not compiled."""
    path = Path(native_put.__file__).with_name(f"{name}.py")
    loader = SourceFileLoader(f"rocketstore.native.{name}", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def interpreted_put():
    with pytest.MonkeyPatch.context() as patched:
        for name in ("walk", "log_end"):
            patched.setitem(sys.modules, f"rocketstore.native.{name}", interpreted(name))
        return interpreted("put")


INTERPRETED = interpreted_put()


@contextlib.contextmanager
def way(name):
    """Have stores that are opened here put in one of the ways."""
    with pytest.MonkeyPatch.context() as patched:
        if name == "interpreted":
            for module in (writer, commit_log, prepared):
                for attribute in ("PlainPuts", "Record", "LogEnd", "QueueCounter"):
                    if hasattr(module, attribute):
                        patched.setattr(module, attribute, getattr(INTERPRETED, attribute))
        yield


def open_in(name, path, clock, **settings_):
    store = open_small(path, clock, **settings_)
    if name == "checked":
        store._writer.plain.close()
    elif name == "interpreted":
        store._writer.plain.is_open = True  # closed, as others may come between; here nobody does
    return store


def outcome(store, call):
    kind, *arguments = call
    try:
        if kind == "put":
            return store.put(*arguments)
        if kind == "batch":
            return store.put_batch(*arguments)
        if kind == "client":
            batch, fields = arguments
            return store.put_client_batch("orders", 0, batch, **fields)
        message, body, queue_id = arguments
        return store.put_prepared(PreparedMessage.of(message), body, queue_id)
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        return type(error), str(error)


def picture(store):
    log = parts_of(store).log
    return (
        [file.read_at(0, file.size) for file in log.files.files],
        [file.write_position for file in log.files.files],
        (log.max_offset, log.last_store_timestamp_ms, log.end.locked_since_ms),
        {key: (each.next_offset, each.stored_bytes) for key, each in log.counters.items()},
    )


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(SINGLES | PREPARED | BATCHES | CLIENT_BATCHES, st.integers(-1, 2)), max_size=12
    ),
    st.sampled_from(["10.0.0.1:1", "[::1]:1"]),
)
def test_all_ways_leave_the_same_bytes_and_say_the_same(calls, address):
    results = []
    for name in ("plain", "interpreted", "checked"):
        clock = Clock()
        settings_ = {"store_host": address, "max_message_size": 80_000}
        settings_["mapped_file_size_commit_log"] = 4 * LOG_FILE_BYTES
        with (
            memory_directory() as path,
            way(name),
            open_in(name, path / "s", clock, **settings_) as store,
        ):
            outcomes = [outcome(store, ("put", PLAIN, 0))]
            for call, step in calls:
                clock.now_ms += step
                outcomes.append(outcome(store, call))
            results.append((outcomes, picture(store)))
    assert results[0] == results[1]
    assert results[0] == results[2]


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "store") as opened:
        opened.put(PLAIN)
        yield opened


@pytest.fixture
def appends(store, monkeypatch):
    """Count the puts that were looked at closer, and appended."""
    log, counted = parts_of(store).log, []
    append = log.append
    monkeypatch.setattr(log, "append", lambda *a: counted.append(a) or append(*a))
    return counted


@needs_compiled
def test_what_is_plain_is_done_without_the_plain_ways(store, appends):
    for fields in (
        {},
        {"keys": ()},
        {"keys": ("a", "b")},
        {"keys": ["a", "b"]},
        {"properties": {"a": "b", "c": ""}},
        {"tags": None, "sys_flag": 1, "flag": -3},
        {"body": b""},
    ):
        assert store.put(msgspec.structs.replace(PLAIN, **fields)).status is OK
    prepared = store.prepare(PLAIN)
    assert store.put_prepared(prepared).status is OK
    assert store.put_prepared(prepared, b"another", 0).status is OK
    assert store.put_batch([PLAIN] * 5).message_count == 5
    assert store.put_batch((PLAIN,) * 5).message_count == 5
    assert store.put_client_batch("orders", 0, encode_client_batch([(0, b"a", b"K\x01v")])).size
    assert appends == []
    store.put(msgspec.structs.replace(PLAIN, properties={"a": "é"}))
    assert appends == []
    store.put(msgspec.structs.replace(PLAIN, properties=MappingProxyType({"a": "b"})))
    store.put(PLAIN, queue_id=1)
    assert len(appends) == 2


def test_a_put_is_refused_although_it_is_plain(store):
    store.running_flags.set(RunningFlag.DISK_FULL, "full")
    end = store.max_physical_offset
    for result in (
        store.put(PLAIN),
        store.put_prepared(store.prepare(PLAIN)),
        store.put_batch([PLAIN]),
        store.put_client_batch("orders", 0, encode_client_batch([(0, b"a", b"")])),
    ):
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "full" in result.detail
    assert store.statistics.failed_puts == 4
    assert store.max_physical_offset == end


def test_a_plain_put_that_takes_long_is_counted(tmp_path):
    class SlowClock(Clock):
        pause_s = 0.0

        def __call__(self):
            time.sleep(self.pause_s)
            return super().__call__()

    clock = SlowClock()
    with open_small(tmp_path / "store", clock) as store:
        store.put(PLAIN)
        noted = []
        store.statistics.note_slow_put = lambda took_ms, _count: noted.append(took_ms)
        clock.pause_s = 0.003
        store.put(PLAIN)
        store.put_prepared(store.prepare(PLAIN))
        assert len(noted) == 2
        assert min(noted) >= 3


@pytest.mark.parametrize(
    "size",
    [
        *(0, 1, 7, 8, 15, 16, 63, 64, 65, 100, 127, 128),
        *(255, 256, 257, 319, 320, 511, 512, 767, 1000, 1024, 4096, 65_536),
    ],
)
def test_bodies_get_the_checksum_of_zlib(tmp_path, size):
    body = random.Random(size).randbytes(size)
    with open_small(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        store.put(PLAIN)
        message = msgspec.structs.replace(PLAIN, body=body)
        for result in (store.put(message), store.put_batch([message])):
            offset = result.physical_offset
            record = decode_record(
                bytes_at(parts_of(store).log.files, offset, result.size), 0, base=offset
            )
            assert record.body_crc == zlib.crc32(body) & 0x7FFFFFFF


def test_random_bytes_as_a_client_s_batch_store_all_or_nothing(store):
    source = random.Random(1)
    good = encode_client_batch([(1, b"body", b"K\x01v"), (2, b"", b"")] * 3)
    for _ in range(3000):
        batch = bytearray(good[: source.randrange(len(good) + 1)])
        for _ in range(source.randrange(3)):
            if batch:
                batch[source.randrange(len(batch))] = source.randrange(256)
        count = store.next_queue_offset("orders", 0)
        result = outcome(store, ("client", bytes(batch), {}))
        stored = store.next_queue_offset("orders", 0) - count
        assert stored == (0 if isinstance(result, tuple) else result.message_count)
    sizes = struct.pack(">iiiii", 0, 0, 0, 0, 2**31 - 1)
    for batch in (sizes, sizes + b"\0\0", sizes[:16] + b"\xff" * 6, b"\0" * 22):
        outcome(store, ("client", batch, {}))


def test_odd_calls_are_errors_of_python(store):
    writer = store._writer
    for arguments in ((), (PLAIN, 0, 1), (None,), (PLAIN, object()), (Message, 0)):
        with pytest.raises(Exception):  # noqa: B017, PT011 - any but a crash
            writer.put(*arguments)
        with pytest.raises(Exception):  # noqa: B017, PT011
            writer.put_prepared(*arguments, None, None)
    plain = writer.plain
    for arguments in (
        (None, 0, 9),
        ([], 0, 9),
        ([None], 0, 9),
        ([PLAIN], None, 9),
        ([PLAIN], 0, 9),
    ):
        assert plain.put_messages(*arguments) is None
    batch = encode_client_batch([(0, b"a", b"")])
    good = {"sys_flag": 0, "born_timestamp_ms": 5, "born_host": PLAIN.born_host}
    good |= {"reconsume_times": 0, "wait_flush": True}
    for name in good:
        for odd in (None, "x", 2**80, [], bytearray(b"x"), object()):
            if (name, odd) != ("born_timestamp_ms", None):
                arguments = good | {name: odd}
                assert plain.put_client_batch(batch, b"", "orders", 0, **arguments) is None
    for arguments in (
        (b"", b"", "orders", 0),
        (bytearray(batch), b"", "orders", 0),
        (batch, None, "orders", 0),
        (batch, b"", ["orders"], 0),
        (batch, b"", "orders", True),
        (batch * (1 << 19), b"", "orders", 0),
    ):
        assert plain.put_client_batch(*arguments, **good) is None


@needs_compiled
def test_objects_of_the_log_refuse_what_does_not_belong_to_them(store):
    log = parts_of(store).log
    end, counter = log.end, log.counter(QueueKey("orders", 0))
    file = log.files.last()
    for wrong in (
        lambda: Record("text", b"", HOST),
        lambda: Record(b"", None, bytearray(HOST)),
        lambda: end.write(None, [], 0),
        lambda: end.write(counter, [None], 0),
        lambda: end.write(counter, 5, 0),
        lambda: end.write_into(file, file.array, 0, len(file.array) + 1),
        lambda: end.write_into(file, file.array, -1, 5),
        lambda: end.write_into(file, b"not writable" * 9, 0, 9),
        lambda: end.write_into(object(), file.array, 0, 9),
        lambda: end.write(counter, [Record(bytes(LOG_FILE_BYTES), b"", HOST)], 0),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError, BufferError)):
            wrong()
    for kind in (log_end.LogEnd, log_end.Record, log_end.QueueCounter):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            log_end.LogEnd.write(kind.__new__(kind), counter, [Record(b"", b"", HOST)], 0)
    assert store.put(PLAIN).status is OK


def test_a_message_with_a_field_taken_away_is_no_crash(store):
    prepared = store.prepare(PLAIN)
    for name in PreparedMessage.__slots__:
        kept = getattr(prepared, name)
        delattr(prepared, name)
        if name != "wait_flush":  # which is not looked at where nothing waits
            with pytest.raises(AttributeError):
                store.put_prepared(prepared)
        setattr(prepared, name, kept)
    assert store.put_prepared(prepared).status is OK


def test_a_list_that_changes_while_the_clock_is_asked_is_no_crash(tmp_path):
    messages = [msgspec.structs.replace(PLAIN, keys=f"k{n}") for n in range(20)]

    class Shrinking(Clock):
        def __call__(self):
            del messages[10:]
            return super().__call__()

    with open_small(tmp_path / "store", Shrinking()) as store:
        store.put(PLAIN)
        messages[:] = [PLAIN] * 20
        assert store.put_batch(messages).message_count == 10
        messages.clear()
        assert store.next_queue_offset("orders", 0) == 11


def test_puts_leave_nothing_behind(store):
    prepared = store.prepare(PLAIN)
    batch = encode_client_batch([(0, b"a", b"K\x01v")] * 5)

    def put_all():
        store.put(PLAIN)
        store.put_prepared(prepared, b"body")
        store.put_batch([PLAIN] * 3)
        store.put_client_batch("orders", 0, batch)
        outcome(store, ("put", msgspec.structs.replace(PLAIN, tags="\x01"), 0))

    assert_keeps_nothing(put_all, 40, PLAIN, PLAIN.topic, PLAIN.body, OK)


def test_many_threads_of_all_kinds_leave_one_unbroken_row(store):
    rounds = 150
    batch = encode_client_batch([(0, b"a" * 50, b"K\x01v")] * 3)
    odd = msgspec.structs.replace(PLAIN, properties=MappingProxyType({"a": "é"}))

    def put_many(seed):
        source = random.Random(seed)
        for _ in range(rounds):
            message = msgspec.structs.replace(PLAIN, body=bytes(source.randrange(300)))
            ways = (
                (store.put, message, seed),
                (store.put, msgspec.structs.replace(message, body=bytearray(message.body)), seed),
                (store.put_batch, [message] * 3, seed),
                (store.put_batch, [message, odd, message], seed),
                (store.put_client_batch, "orders", seed, batch),
            )
            put, *arguments = source.choice(ways)
            put(*arguments)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(put_many, range(6)))
    finally:
        sys.setswitchinterval(interval)
    log = parts_of(store).log
    content = read_log(store.layout.commit_log_directories[0], log.files.file_size)
    assert content.damage == []
    places = {}
    for record in content.records:
        places.setdefault(record.queue.queue_id, []).append(record.queue_offset)
    assert len(places) == 6
    for queue_id, offsets in places.items():
        assert offsets == list(range(log.next_queue_offset(("orders", queue_id))))


@needs_compiled
def test_a_batch_longer_than_a_file_s_rest_is_left_to_the_checks(store, appends):
    big = msgspec.structs.replace(PLAIN, body=bytes(LOG_FILE_BYTES // 3))
    for _ in range(4):
        assert store.put_batch([big]).status is OK
    assert 0 < len(appends) < 4


@needs_compiled
def test_no_batch_is_left_to_the_checks_because_it_enters_a_window(tmp_path, monkeypatch):
    config = StoreConfig.small(mapped_file_size_commit_log=4 * TOUCH_BYTES)
    message = msgspec.structs.replace(PLAIN, body=bytes(TOUCH_BYTES // 5))
    batch = encode_client_batch([(0, message.body, b"")] * 4)
    with MessageStore.open(tmp_path / "store", config) as store:
        assert store.put(PLAIN).status is OK
        appended = []
        monkeypatch.setattr(parts_of(store).log, "append", appended.append)
        for _ in range(2):
            store.put_batch([message] * 4)
            store.put_client_batch("orders", 0, batch, born_host=PLAIN.born_host)
        assert store.max_physical_offset > 3 * TOUCH_BYTES
    assert not appended


@needs_compiled
def test_a_put_that_is_done_at_once_has_the_next_windows_touched(tmp_path, monkeypatch):
    config = StoreConfig.small(mapped_file_size_commit_log=4 * TOUCH_BYTES)
    message = msgspec.structs.replace(PLAIN, body=bytes(TOUCH_BYTES // 5))
    with MessageStore.open(tmp_path / "store", config, clock=Clock()) as store:
        asked = []
        touch = parts_of(store).touch_ahead
        monkeypatch.setattr(touch, "request", lambda _file, start, _stop: asked.append(start))
        for _ in range(12):
            assert store.put(message).status is OK
    assert asked == [2 * TOUCH_BYTES, 3 * TOUCH_BYTES]


@needs_compiled
def test_an_interrupt_after_a_put_is_stored_does_not_keep_dispatch_asleep(store):
    first = store.put(PLAIN).queue_offset
    end, calls = parts_of(store).log.end, []

    def interrupted():
        calls.append(end.position)
        if len(calls) == 1:
            raise KeyboardInterrupt
        end.look_at = log_end.NEVER

    end.on_look, end.look_at = interrupted, 0
    with pytest.raises(KeyboardInterrupt):
        store.put(PLAIN)
    assert calls == [end.position] * 2
    assert store.put(PLAIN).queue_offset == first + 2
    assert len(calls) == 2
