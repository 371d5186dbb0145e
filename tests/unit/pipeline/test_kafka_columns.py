"""Columns and options as Spark's Kafka source and sink have them, without Spark.

What these do was observed of those of Spark 4.2.0, which ran in Spark 4.3.0 against Kafka 3.9.1.
"""

import json

import pyarrow as pa
import pytest

from rocketstore import Message, MessageStore
from rocketstore.errors import ConfigError, RefusedMessageError, StoreError
from rocketstore.format.java_hash import string_hash
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.sink.row_encoder import RowEncoder
from rocketstore.pipeline.sink.sink_writer import check_columns, parse_sink_options
from rocketstore.pipeline.streaming.stream_options import parse_stream_options
from rocketstore.pipeline.tables import READERS
from support.clock import Clock
from support.pipeline_tables import plan_table
from support.sink_parts import CONFIG, commit
from support.store_files import StoreFiles
from support.stream_run import StreamRun

KINDS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
NAMES = [*KINDS][:-1]


def read(root, **given):
    options = parse_options({"path": str(root), "columnNames": "kafka", **given})
    schema = pa.schema([(name, KINDS[name]) for name in options.columns])
    table = READERS["messages"]
    batches = [batch for task in table.plan(options) for batch in table.read(task, options, schema)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=schema).to_pylist()


@pytest.fixture
def root(tmp_path):
    clock = Clock()
    messages = [
        Message(topic="T", body=b"a", keys=("k1", "k2"), tags="t", properties={"n": "ä"}),
        Message(topic="T", body=b"", keys="k3"),
        Message(topic="T", body=b"c", properties={"x": "1", "y": "2"}),
        Message(topic="U", body=b"d"),
    ]
    with MessageStore.open(tmp_path / "store", CONFIG, clock=clock, threads=False) as store:
        for number, message in enumerate(messages):
            clock.now_ms += 1000
            store.put(message, number % 2)
    return tmp_path / "store", clock.now_ms


def test_a_message_is_what_a_consumer_of_kafka_would_see(root):
    store, now_ms = root
    rows = read(store, includeHeaders="true")
    assert [[row[name] for name in NAMES[:5]] for row in rows] == [
        [b"k1 k2", b"a", "T", 0, 0],
        [b"k3", b"", "T", 1, 0],
        [None, b"c", "T", 0, 1],
        [None, b"d", "U", 1, 0],
    ]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [
        now_ms - 3000, now_ms - 2000, now_ms - 1000, now_ms,
    ]  # fmt: skip
    assert {row["timestampType"] for row in rows} == {1}
    assert [row["headers"] for row in rows] == [
        [{"key": "n", "value": "ä".encode()}, {"key": "TAGS", "value": b"t"}],
        None,
        [{"key": "x", "value": b"1"}, {"key": "y", "value": b"2"}],
        None,
    ]
    assert list(read(store)[0]) == NAMES
    assert read(store, columns="value,key")[1] == {"value": b"", "key": b"k3"}


def test_a_pattern_is_found_anywhere_in_a_name_but_not_in_internal_topics_names():
    options = {"path": "/s", "columnNames": "kafka", "subscribePattern": "order"}
    for read in (parse_options(options), parse_stream_options(options).read):
        names = ["order", "orders", "my-orders", "Orders", "%RETRY%orders", "RMQ_SYS_order"]
        assert [*filter(read.wants_topic, names)] == ["order", "orders", "my-orders"]
    assert parse_options(options | {"subscribePattern": "^order$"}).wants_topic("order")
    assert not parse_options(options | {"subscribePattern": "^order$"}).wants_topic("orders")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"startingOffsets": '{"T":{"0":4}}'}, {"endingOffsets": '{"T":{"0":2}}'}),
        (
            {"startingOffsetsByTimestamp": '{"T":{"0":4}}'},
            {"endingOffsetsByTimestamp": '{"T":{"0":2}}'},
        ),
        ({"startingTimestamp": "4"}, {"endingTimestamp": "2"}),
    ],
)
def test_what_ends_before_it_starts_is_refused(start, end):
    given = {"path": "/s", "columnNames": "kafka", "subscribe": "T", **start}
    with pytest.raises(ConfigError, match=r"before .* 4, found") as caught:
        parse_options(given | end)
    assert [caught.value.key] == [*end]
    for other in ("4", "6"):
        parse_options(given | {name: text.replace("2", other) for name, text in end.items()})
    parse_options({**start, **end, "path": "/s", "subscribe": "T"})  # our own rows: there are none


def test_the_address_says_the_names_too():
    options = parse_options({"kafka.bootstrap.servers": "/data/store"})
    assert (options.locations, options.columns) == (("/data/store",), tuple(NAMES))
    own = parse_options({"kafka.bootstrap.servers": "/data/store", "columnNames": "rocketstore"})
    assert own.columns[2] == "body"
    assert parse_stream_options({"Kafka.Bootstrap.Servers": "/data/store"}).read.has_kafka_names
    assert parse_sink_options({"kafka.bootstrap.servers": "/s"}, streaming=True).has_kafka_names
    with pytest.raises(ConfigError, match=r"kafka.bootstrap.servers must be a dir.*'s3://b/s'"):
        parse_sink_options({"kafka.bootstrap.servers": "s3://b/s"}, streaming=True)


@pytest.mark.parametrize(
    "address",
    [
        "host1:9092", "host1:9092,host2:9092", " 10.0.0.1:9092 , b-2.kafka.example:9094 ",
        "[2001:db8::1]:9092", "host1:9092,", "SASL_SSL://host1:9092,SASL_SSL://host2:9092",
    ],
)  # fmt: skip
def test_addresses_of_brokers_are_refused_where_a_store_is_named(address):
    given = {"kafka.bootstrap.servers": address, "topic": "t"}
    for parse in (
        parse_options,
        parse_stream_options,
        lambda options: parse_sink_options(options, streaming=False),
        lambda options: parse_sink_options(options, streaming=True),
    ):
        with pytest.raises(ConfigError, match=r"has addresses of brokers, .*; name the"):
            parse(given)
        parse(given | {"kafka.bootstrap.servers": "./host1:9092"})


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"columnNames": "pulsar"}, "columnNames"),
        ({"kafka.bootstrap.servers": "/other"}, "kafka.bootstrap.servers"),
        ({"columnNames": "kafka", "table": "commitlog"}, "columnNames"),
        ({"columnNames": "kafka", "includeBody": "false"}, "includeBody"),
        ({"columnNames": "kafka", "columns": "value,headers"}, "columns"),
        ({"columnNames": "kafka", "columns": "body"}, "columns"),
        ({"includeHeaders": "true"}, "includeHeaders"),
        ({"kafka.group.id": "g"}, "kafka.group.id"),
        ({"startingOffsetsByTimestamp": '{"T":{"0":1}}'}, "startingOffsetsByTimestamp"),
        ({"subscribe": "T", "endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp"),
        (
            {
                "subscribe": "T",
                "startingOffsets": '{"T":{"0":1}}',
                "startingOffsetsByTimestamp": '{"T":{"0":1}}',
            },
            "startingOffsetsByTimestamp",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(given, key):
    with pytest.raises(ConfigError) as caught:
        parse_options({"path": "/data/store", **given})
    assert caught.value.key == key


def test_each_queue_begins_and_ends_at_its_time(root):
    store, now_ms = root
    times = {
        "startingOffsetsByTimestamp": f'{{"T":{{"0":{now_ms - 1000}}}}}',
        "endingOffsetsByTimestamp": f'{{"T":{{"1":{now_ms - 2000}}}}}',
    }
    assert [row["value"] for row in read(store, subscribe="T", **times)] == [b"c"]
    times["endingOffsetsByTimestamp"] = f'{{"T":{{"1":{now_ms - 1999}}}}}'
    assert [row["value"] for row in read(store, subscribe="T", **times)] == [b"", b"c"]


@pytest.mark.parametrize("columns", [{}, {"columnNames": "kafka"}])
@pytest.mark.parametrize("strategy", ["", "error", "latest"])
@pytest.mark.parametrize("name", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_a_queue_without_a_message_since_the_start_is_an_error_for_kafka_s_jobs_or_where_asked(
    tmp_path, columns, strategy, name
):
    store = StoreFiles(tmp_path / "store")
    for topic, queue_id, stored_ms in (
        ("Early", 0, 1_000), ("Early", 1, 1_000), ("Early", 0, 6_000), ("Early", 1, 4_999),
        ("Late", 0, 1_000), ("Late", 0, 5_000),
    ):  # fmt: skip
        store.put(topic, queue_id=queue_id, store_timestamp_ms=stored_ms)
    for topics in ("Late", "Early", "Early,Late"):
        queues = {"Early": {"0": 5_000, "1": 5_000}, "Late": {"0": 5_000}}
        times = json.dumps({topic: queues[topic] for topic in topics.split(",")})
        options = {**columns, "subscribe": topics, name: times if "Off" in name else "5000"}
        options |= {"startingOffsetsByTimestampStrategy": strategy} if strategy else {}
        for work in (
            lambda given=options: plan_table(store.root, **given),
            lambda given=options: StreamRun(store.root, **given).drain(),
        ):
            if topics != "Late" and strategy != "latest" and (columns or strategy):
                what = f"queue Early/1 of {store.root}: nothing was stored at 5000 ms or later"
                with pytest.raises(StoreError, match=what):
                    work()
            else:
                work()


def test_a_start_of_the_whole_log_needs_one_message_since(tmp_path):
    store = StoreFiles(tmp_path / "store")
    store.put("A", store_timestamp_ms=1_000)
    store.put("B", store_timestamp_ms=9_000)
    plan_table(store.root, columnNames="kafka", startingTimestamp="5000")
    with pytest.raises(StoreError, match="nothing was stored at 9001 ms or later"):
        plan_table(store.root, columnNames="kafka", startingTimestamp="9001")


# --- writing ------------------------------------------------------------------------------------


def encode(*rows, **given):
    names = list(dict.fromkeys(name for row in rows for name in row))
    batch = pa.RecordBatch.from_pylist(list(rows), pa.schema([(n, KINDS[n]) for n in names]))
    options = parse_sink_options({"path": "/s", "columnNames": "kafka", **given}, streaming=False)
    return [
        row for chunk in RowEncoder(options, 16_384, 1).encode(batch) for row in chunk.to_pylist()
    ]


def headers(**pairs):
    return [{"key": name, "value": value} for name, value in pairs.items()]


def test_a_record_of_kafka_becomes_a_message():
    first, second, third = encode(
        {"key": b"k", "value": b"v", "topic": "T", "headers": headers(n="ä".encode(), TAGS=b"t")},
        {"key": None, "value": b"", "topic": "T", "partition": 7, "offset": 5},
        {"key": b"k", "value": b"v", "topic": "T", "partition": None},
    )
    by_key = abs(string_hash("k")) % 4
    assert (first["queueId"], second["queueId"], third["queueId"]) == (by_key, 7, by_key)
    assert first["properties"] == "n\x01ä\x02TAGS\x01t\x02KEYS\x01k".encode()
    assert (second["body"], second["properties"]) == (b"", b"")
    assert encode({"value": b"v", "topic": "T"}, topic="U")[0]["topic"] == "U"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"value": None}, "its body is null"),
        ({"value": b"", "key": b"\xff"}, "is not UTF-8"),
        ({"value": b"", "headers": headers(a=b"\xff")}, "is not UTF-8"),
        ({"value": b"", "headers": headers(a=None)}, "name 'a', value None"),
        ({"value": b"", "headers": headers(a=b"1") * 2}, "a header is null, or there twice"),
        ({"value": b"", "headers": headers(DELAY=b"3")}, "delayed delivery"),
    ],
)
def test_a_record_that_is_no_message_is_refused_by_its_row(row, reason):
    with pytest.raises(RefusedMessageError, match=rf"row \d of task 1.*{reason}"):
        encode({"value": b"good", "topic": "T"}, {"topic": "T", **row})


def test_columns_are_checked_as_kafka_s_writer_checks_them():
    value = ("value", "string")
    headers = ("headers", "array<struct<KEY:string,Value:binary>>")  # Spark knows no case either
    left_out = [("offset", "bigint"), ("colour", "int")]
    check_columns([value, headers, *left_out], "T", has_kafka_names=True)
    for types, what in (
        ([("key", "string")], "there is no column value"),
        ([value, ("partition", "bigint")], "column partition must be int"),
        ([value, ("key", "int")], "column key must be binary or string"),
        ([value, ("headers", "map<string,string>")], "column headers must be array<struct"),
    ):
        with pytest.raises(ConfigError, match=what):
            check_columns(types, "T", has_kafka_names=True)
    with pytest.raises(ConfigError, match="no column 'value'"):
        check_columns([value], "T")


def test_what_was_read_with_headers_and_written_again_is_the_same(root, tmp_path, monkeypatch):
    store, _ = root
    rows = read(store, includeHeaders="true")
    monkeypatch.setattr("support.sink_parts.SCHEMA", pa.schema(list(KINDS.items())))
    commit(tmp_path / "copy", [rows], columnNames="kafka")
    same = [*NAMES[:5], "headers"]
    copied = read(tmp_path / "copy", includeHeaders="true")
    assert [[row[name] for name in same] for row in copied] == [
        [row[name] for name in same] for row in rows
    ]
