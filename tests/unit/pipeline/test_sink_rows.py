"""Rows become the records that a put would make, and what a put refuses is refused."""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore import Message, MessageStore
from rocketstore.errors import ConfigError, RefusedMessageError, RocketStoreError
from rocketstore.format.java_hash import string_hash
from rocketstore.format.properties import encode_properties, split_keys
from rocketstore.pipeline.sink.row_encoder import RowEncoder
from rocketstore.pipeline.sink.sink_commit import check_target
from rocketstore.pipeline.sink.sink_writer import check_columns, parse_sink_options
from rocketstore.scan import kernels
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.units import KiB, MiB
from support.clock import Clock
from support.sink_parts import CONFIG, commit

TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "keys": pa.list_(pa.string()),
    "tags": pa.string(),
    "uniqKey": pa.string(),
    "queueId": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bornTimestamp": pa.timestamp("us", "UTC"),
    "bornHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()),
}


def batch_of(*rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.RecordBatch.from_pylist(list(rows), pa.schema([(n, TYPES[n]) for n in names]))


def encode(*rows, file_size=16_384, partition_id=0, **given):
    texts = {"path": "/store", "maxMessageSize": "1000", "chunkBytes": "1m", **given}
    options = parse_sink_options(texts, streaming=False)
    chunks = RowEncoder(options, file_size, partition_id).encode(batch_of(*rows))
    return [row for chunk in chunks for row in chunk.to_pylist()]


ROWS = [
    {"topic": "Plain", "body": b"a"},
    {"topic": "%RETRY%group|1", "body": b"", "tags": "t", "keys": ["k1", "k2"], "uniqKey": "u"},
    {"topic": "P", "body": b"x" * 500, "properties": [("b", "2"), ("a", "ä"), ("DELAY", "0")]},
    {"topic": "F", "body": b"f", "flag": -7, "sysFlag": 2, "reconsumeTimes": 3},
    {"topic": "Z", "body": bytes.fromhex("789c4b040000620062"), "sysFlag": 1},
    {"topic": "V6", "body": b"v", "bornHost": "[2001:db8::1]:4000"},
    {"topic": "B", "body": b"b", "bornTimestamp": datetime(2020, 5, 6, 7, 8, 9, 123_000, UTC)},
    {"topic": "O", "body": b"o", "preparedTransactionOffset": 1 << 40, "bornHost": "1.2.3.4:5"},
]


def message_of(row):
    born = row.get("bornTimestamp")
    return Message(
        topic=row["topic"],
        body=row["body"],
        tags=row.get("tags"),
        keys=tuple(row.get("keys") or ()),
        unique_key=row.get("uniqKey"),
        properties=dict(row.get("properties") or ()),
        flag=row.get("flag") or 0,
        sys_flag=row.get("sysFlag") or 0,
        born_timestamp_ms=None if born is None else round(born.timestamp() * 1000),
        born_host=row.get("bornHost") or "127.0.0.1:0",
        reconsume_times=row.get("reconsumeTimes") or 0,
        prepared_transaction_offset=row.get("preparedTransactionOffset") or 0,
    )


def test_the_log_is_byte_for_byte_what_puts_would_have_written(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("support.sink_parts.SCHEMA", pa.schema(list(TYPES.items())))
    rows = [{**row, "queueId": number % 3} for number, row in enumerate(ROWS * 40)]
    commit(tmp_path / "sink", [rows[:100], rows[100:]], clock=clock)
    with MessageStore.open(tmp_path / "put", CONFIG, clock=clock, threads=False) as store:
        for row in rows:
            assert store.put(message_of(row), row["queueId"]).is_stored
    for directory in ("commitlog", "consumequeue", "index"):
        paths = sorted(p for p in (tmp_path / "put" / directory).rglob("*") if p.is_file())
        assert paths
        for path in paths:
            other = tmp_path / "sink" / path.relative_to(tmp_path / "put")
            assert other.read_bytes() == path.read_bytes(), path


REFUSED = {
    "topic missing": (
        {"topic": None, "body": b""},
        "topic None. cannot be stored: a topic is a str",
    ),
    "topic characters": ({"topic": "../x", "body": b""}, "has characters outside"),
    "topic length": ({"topic": "x" * 128, "body": b""}, "has 128 bytes, more than 127"),
    "body null": ({"topic": "T", "body": None}, "body is null"),
    "body size": ({"topic": "T", "body": b"x" * 1001}, "exceeds maxMessageSize of 1000"),
    "properties size": (
        {"topic": "T", "body": b"", "properties": [("a", "x" * 32767)]},
        "exceed the limit of 32767",
    ),
    "delay": ({"topic": "T", "body": b"", "properties": [("DELAY", "3")]}, "delayed delivery"),
    "dispatch": (
        {"topic": "T", "body": b"", "properties": [("INNER_MULTI_DISPATCH", "a")]},
        "several queues",
    ),
    "separator": ({"topic": "T", "body": b"", "properties": [("a", "b\x02")]}, "has 0x02"),
    "empty name": (
        {"topic": "T", "body": b"", "properties": [("", "b")]},
        "empty name: name '', value 'b'",
    ),
    "null property": (
        {"topic": "T", "body": b"", "properties": [("a", None)]},
        "both text: name 'a', value None",
    ),
    "blank in key": ({"topic": "T", "body": b"", "keys": ["a b"]}, "contains a blank"),
    "null key": ({"topic": "T", "body": b"", "keys": [None]}, "texts?.*leave out what is null$"),
    "prepared": ({"topic": "T", "body": b"", "sysFlag": 4}, "transaction bits"),
    "rolled back": ({"topic": "T", "body": b"", "sysFlag": 12}, "transaction bits"),
    "born host": ({"topic": "T", "body": b"", "bornHost": "localhost"}, "is not ip:port"),
    "queue id": ({"topic": "T", "body": b"", "queueId": -1}, "queue id -1 is outside"),
    "inflated": ({"topic": "T", "body": b"plain", "sysFlag": 1}, "is not a zlib stream"),
}


NOT_OF_A_PUT = ("topic missing", "body null", "null key", "null property", "inflated", "delay")
"""No message at all, one that says something false about its body, or one that a put delays."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_cannot_be_stored_is_named_with_its_reason(name):
    row, reason = REFUSED[name]
    with pytest.raises(RefusedMessageError, match=reason) as caught:
        encode({"topic": "T", "body": b"good"}, row, partition_id=3)
    assert "row 1 of task 3" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in NOT_OF_A_PUT])
def test_what_is_refused_a_put_refuses_too(tmp_path, name):
    config = CONFIG.__class__(
        **{field: getattr(CONFIG, field) for field in ("mapped_file_size_commit_log",)},
        max_message_size=1000,
    )
    row, _ = REFUSED[name]
    with MessageStore.open(tmp_path, config, threads=False) as store:
        with contextlib.suppress(RocketStoreError):
            assert not store.put(message_of(row), row.get("queueId") or 0).is_stored
        assert store.max_physical_offset == 0


def test_a_record_larger_than_a_file_is_refused_by_its_task():
    with pytest.raises(RefusedMessageError, match="do not fit a CommitLog file of 600 bytes"):
        encode({"topic": "T", "body": b"x" * 520}, file_size=600)
    # The record of 500 + 91 + 1 bytes and a BLANK of 8 fill the file.
    for size, is_taken in ((500, True), (501, False)):
        with contextlib.nullcontext() if is_taken else pytest.raises(RefusedMessageError):
            assert encode({"topic": "T", "body": b"x" * size}, file_size=600)


def test_a_text_that_is_no_unicode_is_refused_and_not_stored_as_damage():
    for name in ("topic", "tags"):
        broken = pa.array([b"fine", b"\xff"], pa.binary()).view(pa.string())
        columns = {"topic": pa.array(["T", "T"]), "body": pa.array([b"", b""]), name: broken}
        options = parse_sink_options({"path": "/store"}, streaming=False)
        with pytest.raises(RefusedMessageError, match="is not UTF-8"):
            list(RowEncoder(options, 16_384, 0).encode(pa.RecordBatch.from_pydict(columns)))


TEXTS = st.text(st.sampled_from("ab ä1"), max_size=3)
SOME_ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "U", "%RETRY%g"]),
        "body": st.binary(max_size=3),
        "queueId": st.sampled_from([None, 0, 7]),
        "sysFlag": st.sampled_from([None, 0, 2]),
        "properties": st.none()
        | st.dictionaries(st.sampled_from(["a", "ä", "KEYS", "TAGS", "UNIQ_KEY"]), TEXTS).map(
            lambda pairs: [*pairs.items()]
        ),
    },
    optional={
        "keys": st.none() | st.lists(TEXTS.map(lambda text: text.replace(" ", "")), max_size=2),
        "tags": st.none() | TEXTS,
        "uniqKey": st.none() | TEXTS,
    },
)
ODD_ROWS = (
    {"properties": [("a", "1"), ("b", "2"), ("a", "3")]},
    {"properties": [("TAGS", "1"), ("b", "2")], "tags": "2"},
    {"properties": [("TAGS", "1"), ("UNIQ_KEY", "")], "tags": None, "uniqKey": "u"},
    {"properties": [("KEYS", " a  b"), ("b", "2")], "keys": ["a", "b"]},
    {"properties": [("KEYS", "a  b")], "keys": ["a", "c"]},
    {"properties": [("DELAY", "0")]},
    {"properties": [("a", "b\0")]},
    {"tags": "b\0"},
)


def block_of(row):
    """Return the properties that a row asks for, a column before an entry of the same name."""
    pairs = dict(row.get("properties") or ())
    keys = row.get("keys") or ()
    is_split_like_this = split_keys(pairs.get("KEYS", "")) == [*keys]
    columns = {"KEYS": "" if is_split_like_this else " ".join(keys)}
    columns |= {"UNIQ_KEY": row.get("uniqKey"), "TAGS": row.get("tags")}
    pairs |= {name: value for name, value in columns.items() if value}
    return encode_properties(pairs), pairs.get("KEYS")


@settings(max_examples=60)
@given(st.lists(SOME_ROWS | st.sampled_from(ODD_ROWS), min_size=1, max_size=6))
def test_rows_made_by_whole_columns_are_what_each_row_asks_for(rows):
    rows = [{"topic": "T", "body": b""} | row for row in rows]
    turn = 1
    for row, made in zip(rows, encode(*rows, partition_id=turn), strict=True):
        block, keys = block_of(row)
        queue = row.get("queueId")
        if queue is None and keys:
            queue = abs(string_hash(keys)) % 4
        elif queue is None:
            queue, turn = turn % 4, turn + 1
        assert (made["properties"], made["queueId"], made["body"]) == (block, queue, row["body"])
        assert made["size"] == 91 + len(row["topic"]) + len(row["body"]) + len(block)


def test_a_row_without_a_queue_goes_by_its_keys_or_in_turn():
    found = encode(
        {"topic": "T", "body": b"", "keys": ["polygenelubricants"]},
        {"topic": "T", "body": b"", "keys": ["k-1"]},
        {"topic": "T", "body": b""},
        {"topic": "T", "body": b""},
        {"topic": "T", "body": b"", "queueId": 9},
        {"topic": "T", "body": b""},
        partition_id=2,
    )
    # The first hash is Integer.MIN_VALUE, whose absolute value Java cannot say.
    expected = [0, abs(string_hash("k-1")) % 4, 2, 3, 9, 0]
    assert [row["queueId"] for row in found] == expected


def test_columns_win_over_properties_of_the_same_name_and_keep_their_place():
    (found,) = encode(
        {
            "topic": "T",
            "body": b"",
            "properties": [("KEYS", "a  b"), ("TAGS", "old"), ("x", "y")],
            "keys": ["a", "b"],
            "tags": "new",
        }
    )
    assert found["properties"] == b"KEYS\x01a  b\x02TAGS\x01new\x02x\x01y"


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Apia", "+05:30"])
def test_a_born_time_is_rounded_down_before_1970_as_well(monkeypatch, zone):
    monkeypatch.setitem(TYPES, "bornTimestamp", pa.timestamp("us", zone))
    moments = [-1_500, -1_001, -1_000, -1, 0, 999, 1_500, 253_402_300_799_999_999]
    rows = [{"topic": "A", "body": b"", "bornTimestamp": one} for one in (*moments, None)]
    found = [row["bornTimestamp"] for row in encode(*rows)]
    assert found == [*(one // 1_000 for one in moments), None]


def test_a_topic_option_wins_over_the_column():
    assert encode({"topic": "T", "body": b""}, topic="Given")[0]["topic"] == "Given"
    assert encode({"body": b""}, topic="Given")[0]["topic"] == "Given"


@pytest.mark.parametrize(
    ("types", "topic", "message"),
    [
        ([("topic", "string")], None, "no column body"),
        ([("body", "binary")], None, "neither a column topic nor an option topic"),
        ([("body", "int")], "T", "column body must be binary or string, found int"),
        ([("body", "binary"), ("colour", "string")], "T", "no column 'colour'"),
        ([("body", "binary"), ("BODY", "string")], "T", "column body is there twice"),
        ([("body", "binary"), ("bornTimestamp", "timestamp_ntz")], "T", "found timestamp_ntz"),
    ],
)
def test_columns_are_refused_by_name_before_any_work(types, topic, message):
    with pytest.raises(ConfigError, match=message):
        check_columns(types, topic)


def test_columns_that_a_read_gives_may_be_written_back():
    every = {"body": "binary", "topic": "string", "queueOffset": "bigint", "msgId": "string"}
    check_columns(list(every.items()), None)


def test_the_size_of_files_is_learnt_from_the_store_that_is_there(tmp_path):
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        store.put(Message(topic="T", body=b""))
    options = parse_sink_options({"path": str(tmp_path)}, streaming=False)
    assert check_target(options) == CONFIG.mapped_file_size_commit_log


@pytest.mark.skipif(not kernels.is_compiled(), reason="interpreted, rows go one by one")
@pytest.mark.parametrize(
    "row", [(0, 0, 4, 0, 0), (0, -1, 1, 0, 0), (0, 0, 1, 1, 1), (1, 0, 1, 0, 0)]
)
def test_a_place_outside_of_what_was_staged_is_left_to_the_caller(tmp_path, row):
    body, block = np.frombuffer(b"abc", np.uint8), np.frombuffer(b"", np.uint8)
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        prepared = [store.prepare(Message(topic="T", body=b""))]
        store.put_prepared(prepared[0])
        rows = np.array([(0, 1, 2, 0, 0, 7), (*row, 7), (0, 0, 1, 0, 0, 7)])
        assert store.put_rows(prepared, [0], rows, body, block) == 1
        store.flush()
        page = store.get("T", 0, 0)
    assert [(one.body, one.born_timestamp_ms) for one in page.messages][1:] == [(b"bc", 7)]


@pytest.mark.skipif(not kernels.is_compiled(), reason="interpreted, rows go one by one")
@pytest.mark.parametrize("is_refused", [False, True])
def test_rows_of_any_size_are_written_as_puts_write_them_also_where_the_file_takes_none(
    tmp_path, monkeypatch, is_refused
):
    config = msgspec.structs.replace(CONFIG, mapped_file_size_commit_log=2 * MiB)
    edge = 256 * KiB - 98  # of a record that is a piece
    sizes = [9_000] * 60 + [300_000, edge + 1, edge] + [100] * 3_000
    body, block = np.frombuffer(os.urandom(400_000), np.uint8), np.frombuffer(b"TAGS\1t", np.uint8)
    rows = np.array([(number % 2, number, size, 0, 6, 7) for number, size in enumerate(sizes)])

    @contextlib.contextmanager
    def read_only(file):
        with file.path.open("rb") as opened:
            yield opened.fileno()

    clock = Clock()
    for name in ("rows", "puts"):
        with MessageStore.open(tmp_path / name, config, clock=clock, threads=False) as store:
            topics = [Message(topic=topic, body=b"", tags="t") for topic in ("A", "B")]
            prepared = [store.prepare(topic) for topic in topics]
            for one in prepared:
                one.record.describe(block.tobytes(), 7)
                store.put_prepared(one, b"")
            if is_refused:
                monkeypatch.setattr(MappedFile, "descriptor", read_only)
            first = alone = 0
            while first < len(rows):
                if name == "rows":
                    first += store.put_rows(prepared, [0, 0], rows[first:], body, block)
                for number, at, size, *_ in rows[first : first + 1].tolist():
                    store.put_prepared(prepared[number], body[at : at + size].tobytes())
                    first, alone = first + 1, alone + 1
            monkeypatch.undo()
        assert name == "puts" or alone == 2
    path = Path("commitlog", f"{0:020}")
    assert (tmp_path / "rows" / path).read_bytes() == (tmp_path / "puts" / path).read_bytes()
