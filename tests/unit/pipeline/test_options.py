"""Options of the data source are taken at their word or refused by name."""

import itertools

import pytest

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.option_table import OPTIONS, SERVERS, SINK, STREAM
from rocketstore.pipeline.options import GivenOptions, QueuePlace, parse_options
from support.page_tables import table_with


def parse(**given):
    return parse_options({"path": "/data/store", **given})


def refused(**given):
    with pytest.raises(ConfigError) as caught:
        parse(**given)
    return caught.value


def test_defaults_read_every_message_and_stop_at_damage():
    options = parse()
    assert options.table == "messages"
    assert options.columns == tuple(TABLES["messages"])
    assert options.damage == "fail"
    assert options.fail_on_data_loss
    assert options.max_split_bytes == 256 * 1024 * 1024
    assert not options.has_topic_choice
    assert not options.starting_offsets


def test_an_unknown_option_is_named_with_the_nearest_known_one():
    error = refused(startingOffset="earliest")
    assert error.key == "startingOffset"
    assert "did you mean startingOffsets" in str(error)


@pytest.mark.parametrize("option", [option for option in OPTIONS if not option.uses >= set(TABLES)])
def test_an_option_is_refused_by_name_where_it_means_nothing(option):
    uses = set().union(*(one.uses for one in OPTIONS if one.name == option.name))
    for table in set(TABLES) - uses:
        error = refused(**{"table": table, option.name: "1"})
        assert error.key == option.name
        assert any(word in str(error) for word in (table, "streams", "does not apply to a read"))
    for use in {STREAM, SINK} - uses:
        with pytest.raises(ConfigError, match=f"option {option.name} does not apply to a {use}"):
            GivenOptions({option.name: "1"}, frozenset({use}))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20.000001Z", 1_700_000_000_001),
        ("2023-11-15", 1_700_006_400_000),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601_in_utc_unless_it_has_a_zone(text, milliseconds):
    assert parse(startingTimestamp=text).starting_timestamp_ms == milliseconds
    assert parse(endingTimestamp=text).ending_timestamp_ms == milliseconds


def test_sizes_times_and_numbers_of_sink_and_stream_are_read_by_one_parser():
    sink = GivenOptions({"LockTimeout": "2m", "chunkBytes": "8m"}, frozenset({SINK}))
    assert (sink.seconds("lockTimeout", 60), sink.byte_count("chunkBytes")) == (120, 8 << 20)
    assert sink.number("queueCount") is None
    wrong = GivenOptions({"lockTimeout": "soon", "chunkBytes": "2g"}, frozenset({SINK}))
    with pytest.raises(ConfigError, match="option lockTimeout must be a length of time"):
        wrong.seconds("lockTimeout", 60)
    with pytest.raises(ConfigError, match="option chunkBytes must be a number of bytes"):
        wrong.byte_count("chunkBytes", 1 << 30)
    stream = GivenOptions({"maxTriggerDelay": "500ms"}, frozenset({STREAM}))
    assert stream.seconds("maxTriggerDelay", 900) == 0.5


def test_names_are_matched_without_regard_to_case():
    assert parse(TABLE="Segments").table == "segments"
    assert parse(MAXSPLITBYTES="64M").max_split_bytes == 64 << 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table", "tables"),
        ("brokerName", "a\0"),
        ("damage", "ignore"),
        ("includeBody", "yes"),
        ("failOnDataLoss", ""),
        ("maxSplitBytes", "0"),
        ("maxSplitBytes", "-5"),
        ("maxSplitBytes", "many"),
        ("minPartitions", "0"),
        ("startingTimestamp", "2026-13-01"),
        ("startingTimestamp", "yesterday"),
        ("endingTimestamp", "-1"),
        ("columns", ","),
        ("columns", "topic,topic"),
        ("columns", "topic,nothing"),
        ("subscribe", " , "),
        ("subscribePattern", "("),
        ("assign", "orders"),
        ("assign", '{"orders":{"broker-a":0}}'),
        ("assign", '{"orders":["0"]}'),
        ("assign", '{"orders":[-1]}'),
        ("assign", '{"orders":[0],"orders":[1]}'),
        ("subExpression", "||"),
    ],
)
def test_a_malformed_value_is_refused_with_the_option_s_name(name, value):
    error = refused(**{name: value})
    assert error.key == name
    assert name in str(error)


def test_no_path_is_an_error_that_says_where_it_goes():
    with pytest.raises(ConfigError, match=r"give its directory to load\(\)"):
        parse_options({})


def test_several_paths_come_with_commas_or_as_spark_s_array():
    assert parse_options({"path": "/a, /b"}).locations == ("/a", "/b")
    assert parse_options({"paths": '["/a","/b,c"]'}).locations == ("/a", "/b,c")
    with pytest.raises(ConfigError):
        parse_options({"paths": '["/a"'})
    for empty in ("", " ", "[]"):
        with pytest.raises(ConfigError, match="no store is named"):
            parse_options({"paths": empty})
    with pytest.raises(ConfigError, match="option paths cannot be given together with path"):
        parse_options({"path": "/a", "paths": '["/b"]'})


def test_columns_keep_the_order_that_was_asked_for():
    assert parse(columns="topic, physicalOffset").columns == ("topic", "physicalOffset")


def test_bodies_and_properties_can_be_left_out():
    columns = parse(includeBody="false", includeProperties="false").columns
    assert set(TABLES["messages"]) - set(columns) == {"body", "properties"}
    assert refused(includeBody="false", columns="topic,body").key == "columns"


def test_only_one_way_to_choose_topics():
    assert "subscribe" in str(refused(subscribe="a", assign='{"a":[0]}'))
    assert parse(subscribe="a, b").topics == {"a", "b"}
    assert parse(topic="a").topics == {"a"}
    assert parse(assign='{"a":[0,2]}').queues == {QueuePlace("a", "", 0), QueuePlace("a", "", 2)}
    assert parse(assign='{"a":{"b1":[1]}}').queues == {QueuePlace("a", "b1", 1)}


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsetsByTimestamp"])
def test_offsets_are_of_queues_that_are_assigned(name):
    some, of_b1, of_b2 = '{"a":{"1":5}}', '{"a":{"b1":{"1":5}}}', '{"a":{"b2":{"1":5}}}'
    for assigned, given in (('{"a":[1]}', some), ('{"a":[1]}', of_b1), ('{"a":{"b1":[1]}}', some)):
        parse(assign=assigned, **{name: given})
    for assigned, given in (('{"a":[0]}', some), ('{"a":{"b1":[1]}}', of_b2)):
        error = refused(assign=assigned, **{name: given})
        assert "names topic 'a', queue 1, which is not chosen" in str(error)


def test_a_pattern_matches_whole_topics():
    options = parse(subscribePattern="order.*")
    assert options.wants_topic("orders")
    assert not options.wants_topic("my-orders")


def test_offsets_are_given_for_two_or_three_levels():
    two = parse(subscribe="t", startingOffsets='{"t":{"0":23,"1":-2}}')
    assert two.starting_offsets == {QueuePlace("t", "", 0): 23, QueuePlace("t", "", 1): -2}
    three = parse(subscribe="t", endingOffsets='{"t":{"b":{"0":23,"1":-1}}}')
    assert three.ending_offsets == {QueuePlace("t", "b", 0): 23, QueuePlace("t", "b", 1): -1}
    all_there = parse(subscribe="t", startingOffsets="earliest", endingOffsets="LATEST")
    assert (all_there.starting_offsets, all_there.ending_offsets) == ({}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"t":{"0":-1}}'),
        ("startingOffsets", '{"t":{"0":-3}}'),
        ("startingOffsets", '{"t":{"0":1.5}}'),
        ("startingOffsets", '{"t":{"0":true}}'),
        ("startingOffsets", '{"t":{"x":1}}'),
        ("startingOffsets", '{"t":5}'),
        ("startingOffsets", '{"t":{'),
        ("startingOffsets", '{"t":{"0":1},"t":{"1":1}}'),
        ("startingOffsets", '{"t":' * 100_000),
        ("startingOffsets", '{"t":{"0":1,"00":2}}'),
        ("startingOffsets", "[]"),
        ("startingOffsets", '{"other":{"0":1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t":{"0":-2}}'),
    ],
)
def test_offsets_that_cannot_be_meant_are_refused(name, value):
    assert refused(subscribe="t", **{name: value}).key == name


def test_offsets_need_topics():
    assert "subscribe" in str(refused(startingOffsets='{"t":{"0":1}}'))


def test_tags_are_an_expression():
    assert parse(subExpression="created || paid").tags == {"created", "paid"}
    assert parse(subExpression=" * ").tags is None


def kafka(**given):
    return parse_options({SERVERS: "/data/store", "subscribe": "t", **given})


@pytest.mark.parametrize("name", [
    "kafka.group.id", "kafka.session.timeout.ms", "kafka.acks", "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxRecordsPerPartition", "kafka.sasl.jaas.config",
])  # fmt: skip
def test_what_only_a_kafka_client_has_is_refused_by_its_own_name_with_what_to_do(name):
    for uses in ({"messages"}, {STREAM}, {SINK}):
        with pytest.raises(ConfigError) as caught:
            GivenOptions({name.lower(): "s3cret"}, frozenset(uses))
        assert f"option {name} belongs to a Kafka client; leave it out" in str(caught.value)
        assert "s3cret" not in f"{caught.value} {vars(caught.value)}"
        assert "did you mean" not in str(caught.value)


def test_the_first_option_of_a_kafka_client_that_is_refused_names_all_others():
    given = {"kafka.group.id": "g", "kafka.acks": "1", "fetchOffset.numRetries": "3"}
    for servers in (SERVERS, "kafka.bootstrap.server"):
        with pytest.raises(ConfigError) as caught:
            GivenOptions(given | {servers: "data/store"}, frozenset({STREAM}))
        assert "option kafka.group.id belongs to" in str(caught.value)
        assert "; leave out fetchOffset.numRetries, kafka.acks too: a store" in str(caught.value)


def test_a_name_that_is_like_no_other_has_no_nearest_one():
    for name in ("key.deserializer", "nonsense", "fs.s3a.secret.key"):
        error = refused(**{name: "s3cret"})
        assert "is unknown; all are in docs/reference/spark-options.md" in str(error)
        assert "s3cret" not in f"{error} {vars(error)}"
    assert "did you mean kafka.bootstrap.servers?" in str(
        refused(**{"kafka.bootstrap.server": "x"})
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("subscribe", text) for text in ("", " , ")),
        *(("subscribePattern", text) for text in ("", " ")),
        *(("brokerName", text) for text in ("", " , ")),
        *(("assign", text) for text in ("{}", '{"t":[]}', '{"t":{"b":[]}}')),
    ],
)
def test_a_choice_of_nothing_is_refused(name, text):
    assert f"option {name} names no" in str(refused(**{name: text}))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("topic\\p{Digit}", "bad escape"),
        ("[a-z&&[^b]]", "set intersection"),
        ("[[a]b]", "nested set"),
    ],
)
def test_an_error_about_a_pattern_of_java_says_that_patterns_are_python_s(pattern, why):
    error = refused(subscribePattern=pattern)
    assert "is not a regular expression: " in str(error)
    assert why in str(error)
    assert "write it as Python has it" in str(error)


def test_a_batch_of_kafka_s_begins_and_ends_in_one_way():
    places, times = '{"t":{"0":5}}', '{"t":{"0":1700000000000}}'
    for side in ("starting", "ending"):
        by_time, of_all = f"{side}OffsetsByTimestamp", f"{side}Timestamp"
        values = {f"{side}Offsets": places, by_time: times, of_all: "5"}
        for first, other in itertools.combinations(values, 2):
            with pytest.raises(
                ConfigError, match=f"option {other} cannot be given together with {first}"
            ):
                kafka(**{name: values[name] for name in (first, other)})
        word = {"starting": "earliest", "ending": "latest"}[side]
        kafka(**{f"{side}Offsets": word, of_all: "5"})
    parse(subscribe="t", startingOffsets=places, startingTimestamp="5")  # rows of both


def test_the_strategy_is_error_for_kafka_s_names_and_latest_else_and_needs_a_time():
    name = "startingOffsetsByTimestampStrategy"
    assert kafka(startingTimestamp="5").must_have_time
    assert not parse(startingTimestamp="5").must_have_time
    for strategy in ("error", "Latest"):
        for one in (kafka, parse):
            is_error = one(startingTimestamp="5", **{name: strategy}).must_have_time
            assert is_error == (strategy == "error")
    for given, what in (
        ({"startingTimestamp": "5", name: "earliest"}, "must be one of error, latest"),
        ({name: "latest"}, "does nothing by itself"),
    ):
        with pytest.raises(ConfigError, match=f"option {name} {what}"):
            kafka(**given)


def test_slots_and_items_come_together():
    assert parse(table="index", maxHashSlotNum="5", maxIndexNum="20").layout == (5, 20)
    assert refused(table="index", maxHashSlotNum="5").key == "maxHashSlotNum"


def page_of(uses):
    words = {STREAM: "streams", SINK: "sink"}
    tables = ["all tables"] if uses >= set(TABLES) else sorted(uses & set(TABLES))
    return ", ".join([*tables, *(words[use] for use in (STREAM, SINK) if use in uses)])


def test_the_page_has_every_option_with_its_uses_default_and_meaning():
    rows = table_with("reference/spark-options.md", "option", "of", "default", "meaning")
    page = [(row["option"], row["of"], row["default"], row["meaning"]) for row in rows]
    assert page == [
        (f"`{option.name}`", page_of(option.uses), option.default, option.meaning)
        for option in OPTIONS
    ]


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_every_column_with_its_type(table):
    page = table_with("reference/spark-tables.md", f"column of {table}", "type", "meaning")
    columns = {row[f"column of {table}"].strip("`"): row["type"].strip("`") for row in page}
    assert columns == TABLES[table]
    assert list(columns) == list(TABLES[table])
