"""What a stream keeps in a checkpoint, what it may be asked for, and how much a batch may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.options import EARLIEST, LATEST, QueuePlace
from rocketstore.pipeline.streaming.stream_options import (
    LOG,
    QUEUES,
    BatchLimits,
    Place,
    from_json,
    parse_stream_options,
    read_options_of_either,
    to_json,
)
from rocketstore.pipeline.streaming.stream_reader import StoreStreamReader
from support.store_files import StoreFiles
from support.stream_run import StreamRun

NUMBERS = st.integers(0, 2**63 - 1)
CRCS = st.integers(0, 2**32 - 1)
NAMES = st.text(min_size=1, max_size=5)
CHOICES = st.none() | st.dictionaries(st.just("subscribe"), NAMES, min_size=1)
PLACES = st.builds(Place, NUMBERS, since=st.none() | NUMBERS, choice=CHOICES, then=st.none())
PLACES |= st.builds(
    Place, NUMBERS, NUMBERS, CRCS, st.none() | NUMBERS, choice=CHOICES, then=PLACES.map(Place.saved)
)
FIRSTS = st.dictionaries(
    NAMES, st.dictionaries(st.integers(0, 9).map(str), NUMBERS, max_size=3), max_size=3
)
BEGINNINGS = st.builds(Place, NUMBERS, first=FIRSTS, until=NUMBERS, then=st.none())
LOGS = st.tuples(st.just(LOG), st.dictionaries(NAMES, PLACES, max_size=4))
OFFSETS = LOGS | st.tuples(st.just(QUEUES), st.dictionaries(NAMES, PLACES | BEGINNINGS, max_size=4))


def parse(**given_options):
    return parse_stream_options({"path": "/data/store", **given_options})


def refused(**given_options):
    with pytest.raises(ConfigError) as caught:
        parse(**given_options)
    return caught.value


# --- offsets ------------------------------------------------------------------------------------


@given(OFFSETS)
def test_an_offset_comes_back_from_the_checkpoint_as_it_was_and_equal_ones_are_equal_text(offset):
    kind, places = offset
    text = json.dumps(to_json(kind, places))
    assert from_json(json.loads(text), kind) == places
    assert json.dumps(to_json(kind, dict(reversed(places.items())))) == text


def test_a_checkpoint_of_the_other_kind_is_refused_with_what_to_do():
    saved = to_json(LOG, {"a": Place(1)})
    with pytest.raises(ConfigError, match=r"the whole log, not queues.*Location of its own"):
        from_json(saved, QUEUES)
    with pytest.raises(ConfigError, match=r"follows queues .* not the whole log"):
        from_json(to_json(QUEUES, {}), LOG)


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"version": 2, "log": {}},
        {"version": 1},
        {"version": 1, "log": {"a": 5}},
        {"version": 1, "log": {"a": {"record": 5}}},
        {"version": 1, "log": [1]},
        5,  # as Spark's source of rates has it
        ["log"],
    ],
)
def test_what_is_no_offset_is_refused(tmp_path, saved):
    StoreFiles(tmp_path / "store").put()
    reader = StreamRun(tmp_path / "store").reader
    for call in (reader.partitions, reader.latestOffset):
        with pytest.raises(ConfigError, match="offset is not one of this version"):
            call(saved, None)


def test_a_checkpoint_of_the_first_version_is_refused_with_what_to_do():
    of_queues = {"a": {"t": {"0": {"offset": 23, "record": 4500, "crc": 1}, "1": {"offset": 7}}}}
    with pytest.raises(ConfigError, match=r"an offset of each queue \(version 1\)") as caught:
        from_json({"version": 1, QUEUES: of_queues}, QUEUES)
    hint = str(caught.value.hint)
    assert "give this query a checkpointLocation of its own" in hint
    assert "to go on where it stood its last offsets as startingOffsets" in hint
    # Of a whole log nothing has changed.
    saved = {"version": 1, LOG: {"a": {"offset": 5, "record": 3, "crc": 1, "since": 0}}}
    assert from_json(saved, LOG) == {"a": Place(5, 3, 1, 0)}


# --- options ------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_latest_message_unless_told_otherwise():
    assert parse().starts == {None: LATEST}
    assert parse(startingOffsets="earliest").starts == {None: EARLIEST}
    assert parse(startingOffsets="-2").starts == {None: EARLIEST}
    assert parse(startingOffsets="-1").starts == {None: LATEST}


def test_queues_are_given_offsets_and_logs_physical_ones():
    of_queues = parse(subscribe="t", startingOffsets='{"t":{"0":5,"1":-1}}')
    assert of_queues.starts == {
        None: EARLIEST,
        QueuePlace("t", "", 0): 5,
        QueuePlace("t", "", 1): LATEST,
    }
    of_logs = parse(startingOffsets='{"broker-a":4711,"b":-2}')
    assert of_logs.starts == {None: EARLIEST, "broker-a": 4711, "b": EARLIEST}


def test_limits_are_numbers_and_sizes():
    options = parse(maxOffsetsPerTrigger="100", maxBytesPerTrigger="8m")
    assert options.limits == BatchLimits(100, 8 << 20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "-1"),
        ("endingOffsets", "latest"),
        ("endingTimestamp", "5"),
        ("startingTimestamp", "yesterday"),
        ("minOffsetsPerTrigger", "0"),
        ("maxTriggerDelay", "5s"),
        ("triggerLimitOf", "all"),
        ("triggerLimitOf", "each"),
        ("startingOffsetsByTimestamp", "yesterday"),
        ("startingOffsetsByTimestamp", '{"broker-a":-1}'),
        ("startingOffsetsByTimestamp", '{"t":{"0":5}}'),
        ("startingOffsetsByTimestampStrategy", "error"),
        ("startingOffsets", "soon"),
        ("startingOffsets", '{"broker-a":"5"}'),
        ("startingOffsets", '{"broker-a":-3}'),
        ("startingOffsets", '{"t":{"0":5}}'),
        ("startingOffsets", "[]"),
        *(("table", table) for table in TABLES if table not in ("messages", "commitlog")),
    ],
)
def test_an_option_that_a_stream_cannot_have_is_refused_by_name(name, value):
    error = refused(**{name: value})
    assert error.key == name
    assert name in str(error)


def test_there_is_one_beginning():
    error = refused(startingOffsets="earliest", startingTimestamp="5")
    assert "startingTimestamp cannot be given together with startingOffsets" in str(error)
    error = refused(startingTimestamp="5", startingOffsetsByTimestamp='{"broker-a":5}')
    assert "startingOffsetsByTimestamp cannot be given together with startingTimestamp" in str(
        error
    )


def test_a_least_number_above_the_most_is_refused():
    error = refused(minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    assert "minOffsetsPerTrigger is more than maxOffsetsPerTrigger" in str(error)
    assert parse(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10").limits == BatchLimits(
        10, None, 10
    )


def test_times_are_given_to_queues_and_to_logs():
    of_queues = parse(subscribe="t", startingOffsetsByTimestamp='{"t":{"0":5,"b":{"1":7}}}')
    assert of_queues.start_times_ms == {QueuePlace("t", "", 0): 5, QueuePlace("t", "b", 1): 7}
    assert of_queues.starts == {None: EARLIEST}
    of_logs = parse(startingOffsetsByTimestamp='{"broker-a":5}')
    assert of_logs.start_times_ms == {"broker-a": 5}


def test_columns_are_the_same_for_a_query_and_for_a_stream():
    path = {"path": "/data/store"}
    assert read_options_of_either({**path, "endingTimestamp": "5"}).ending_timestamp_ms == 5
    assert read_options_of_either({**path, "maxOffsetsPerTrigger": "5"}).table == "messages"
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger must be a number"):
        read_options_of_either({**path, "maxOffsetsPerTrigger": "x"})
    with pytest.raises(ConfigError, match="did you mean"):
        read_options_of_either({**path, "startingOffset": "x"})
    # What a batch may begin at tells nothing of a stream.
    for name, value in (
        ("startingTimestamp", "5"),
        ("startingOffsetsByTimestamp", '{"T":{"0":5}}'),
        ("startingOffsets", '{"T":{"0":5}}'),
    ):
        with pytest.raises(ConfigError, match="endingTimestamp must be ms"):
            read_options_of_either({**path, "subscribe": "T", name: value, "endingTimestamp": "x"})


def test_a_query_has_no_limit_per_trigger():
    from rocketstore.pipeline.options import parse_options  # noqa: PLC0415 - of the other kind

    # The second spelling is that of Spark, which hands it on so.
    for spelling in ("maxBytesPerTrigger", "maxbytespertrigger", "maxOffsetsPerTrigger"):
        with pytest.raises(ConfigError, match="(?i)" + spelling + " applies to streams only"):
            parse_options({"path": "/data/store", spelling: "5"})


# --- limits -------------------------------------------------------------------------------------


def limit_of(**given_options):
    return StoreStreamReader(
        {"path": "/data/store", **given_options}, StructType()
    ).getDefaultReadLimit()


def test_spark_is_given_a_limit_to_hand_back_where_there_is_one():
    assert limit_of() == ReadAllAvailable()
    assert limit_of(maxOffsetsPerTrigger="100", maxBytesPerTrigger="8m") == ReadMaxRows(100)
    for name in ("maxBytesPerTrigger", "minOffsetsPerTrigger"):
        assert limit_of(**{name: "5"}) != ReadAllAvailable()


def test_a_wait_is_15_minutes_unless_it_is_given():
    assert parse(minOffsetsPerTrigger="5", maxTriggerDelay="2m").longest_wait_s == 120
    plain = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "120000"}
    assert parse(**plain).longest_wait_s == 120_000
    assert parse(columnNames="kafka", **plain).longest_wait_s == 120  # in ms, as there
    assert parse(minOffsetsPerTrigger="5").longest_wait_s == 900
