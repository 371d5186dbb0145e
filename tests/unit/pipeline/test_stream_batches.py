"""Every message of a store that is being written comes once, whatever is in between."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from rocketstore import Message
from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline import planning
from rocketstore.pipeline.streaming import live_queues
from rocketstore.pipeline.streaming.stream_options import UNLIMITED, BatchLimits
from rocketstore.pipeline.streaming.stream_reader import StoreStreamReader
from rocketstore.places import files
from support.clock import Clock
from support.golden_stores import STORES, golden_root
from support.memory import memory_directory
from support.pipeline_tables import read_table
from support.small_store import LOG_FILE_BYTES, messages, open_store, put_all
from support.stream_run import MODES, StreamRun, flat, places_of, sorted_places

ALL = {"startingOffsets": "earliest"}


@pytest.fixture
def store(tmp_path, clock):
    with open_store(tmp_path / "store", clock) as opened:
        yield opened


@pytest.fixture
def root(tmp_path, store):
    return tmp_path / "store"


@pytest.fixture
def both(tmp_path, clock):
    """Two stores that are open, below `stores`."""
    top = tmp_path / "stores"
    with open_store(top / "a", clock) as a, open_store(top / "b", clock) as b:
        yield a, b


# --- growth -------------------------------------------------------------------------------------


def test_what_is_put_between_batches_is_in_the_next_one(root, store, clock, mode):
    run = StreamRun(root, **ALL, **mode)
    first = 0
    for count in (1, 3, 80, 1, 200, 2):
        put = put_all(store, messages(count, first=first), clock)
        first += count
        rows = run.batch()
        assert sorted(places_of(rows)) == put
        assert run.batch() is None


def test_bodies_and_offsets_are_what_was_put(root, store, clock, mode):
    wanted = messages(40)
    put_all(store, wanted, clock)
    rows = flat(StreamRun(root, **ALL, **mode).drain())
    rows.sort(key=lambda row: row["physicalOffset"])
    assert [(row["topic"], row["body"], row["tags"]) for row in rows] == [
        (one.topic, one.body, one.tags) for one in wanted
    ]
    assert [row["queueOffset"] for row in rows if row["topic"] == "Topic1"] == list(range(20))


def test_a_new_stream_begins_after_what_is_there(root, store, clock, mode):
    put_all(store, messages(30), clock)
    run = StreamRun(root, **mode)
    assert run.batch() == []
    assert run.batch() is None
    later = put_all(store, messages(5, first=30), clock)
    assert sorted_places(run.drain()) == later


def test_an_empty_store_may_get_its_first_message_later(root, store, clock, mode):
    for start in ("earliest", "latest"):
        run = StreamRun(root, startingOffsets=start, **mode)
        assert run.batch() == []
        assert run.batch() is None
        put_all(store, messages(3), clock)
        assert len(flat(run.drain())) in (3, 6)


def test_the_rows_of_a_store_without_a_file_come_once_there_is_one(tmp_path, clock, mode):
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "lock").touch()
    run = StreamRun(root, **mode)
    assert run.batch() == []
    assert StreamRun(root, startingTimestamp=5, **mode).batch() == []
    with open_store(root, clock) as store:
        put = put_all(store, messages(5), clock)
        assert sorted_places(run.drain()) == put


HEALTHY = [name for name in STORES if not name.startswith("crash/")]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_stream_over_a_java_store_has_the_rows_of_a_query(name):
    root = golden_root(name)
    rows = read_table(root)
    stream = StreamRun(root, **ALL, maxOffsetsPerTrigger=100)
    assert flat(stream.drain()) == rows
    entries = {
        (one["topic"], one["queueId"], one["queueOffset"])
        for one in read_table(root, table="consumequeue")
    }
    queues = StreamRun(root, **ALL, subscribePattern=".*", maxOffsetsPerTrigger=100)
    found = sorted(flat(queues.drain()), key=lambda row: row["physicalOffset"])
    assert found == [
        row for row in rows if (row["topic"], row["queueId"], row["queueOffset"]) in entries
        and row["sysFlag"] & 0xC not in (0x4, 0xC)
    ]  # fmt: skip


# --- limits -------------------------------------------------------------------------------------


def test_a_batch_has_as_many_records_as_it_may(root, store, clock, mode):
    put = put_all(store, messages(100), clock)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=30, **mode)
    batches = run.drain()
    assert [len(rows) for rows in batches] == [30, 30, 30, 10]
    assert [sorted(places_of(rows)) for rows in batches] == [
        put[:30],
        put[30:60],
        put[60:90],
        put[90:],
    ]


def test_a_batch_has_as_many_bytes_as_it_may(root, store, clock, mode):
    put_all(store, messages(100), clock)
    limit = 5_000
    run = StreamRun(root, **ALL, maxBytesPerTrigger=limit, **mode)
    sizes = [[row["size"] for row in rows] for rows in run.drain()]
    assert sum(map(len, sizes)) == 100
    assert all(sum(batch) <= limit for batch in sizes)
    assert all(sum(batch) + 400 > limit for batch in sizes[:-1])


@pytest.mark.parametrize(("limits", "expected"), [((10, 1_000_000), 10), ((50, 1_000), 3)])
def test_the_smaller_of_two_limits_wins(root, store, clock, mode, limits, expected):
    put_all(store, messages(60), clock)
    rows, size = limits
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=rows, maxBytesPerTrigger=size, **mode)
    batches = run.drain()
    assert {len(batch) for batch in batches[:-1]} == {expected}
    assert len(flat(batches)) == 60


def test_a_record_heavier_than_the_limit_is_a_batch_by_itself(root, store, clock, mode):
    put_all(store, messages(3, body_size=2_000), clock)
    run = StreamRun(root, **ALL, maxBytesPerTrigger=10, **mode)
    assert [len(rows) for rows in run.drain()] == [1, 1, 1]


def test_everything_at_once_when_spark_asks_for_it(root, store, clock, mode):
    put_all(store, messages(60), clock)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=7, **mode)
    assert len(run.batch(UNLIMITED)) == 60


@pytest.mark.parametrize("split", [200, 5_000, "1g"])
@pytest.mark.parametrize("parts", [1, 7])
def test_batches_do_not_depend_on_how_they_are_cut(root, store, clock, mode, split, parts):
    put = put_all(store, messages(120), clock)
    run = StreamRun(
        root, **ALL, maxOffsetsPerTrigger=50,
        maxSplitBytes=split, minPartitions=parts, **mode,
    )  # fmt: skip
    assert sorted_places(run.drain()) == put


def test_a_stream_through_many_files_loses_nothing_at_their_ends(root, store, clock, mode):
    put = put_all(store, messages(60, body_size=3000), clock)
    assert put[-1] > 10 * LOG_FILE_BYTES
    for limit in (1, 13, 1000):
        run = StreamRun(root, **ALL, maxOffsetsPerTrigger=limit, **mode)
        assert sorted_places(run.drain()) == put


# --- waiting for more ---------------------------------------------------------------------------


@pytest.fixture
def seconds():
    """A clock that a test moves."""
    return [0.0]


def waiting(root, seconds, **options):
    return StreamRun(
        root, **ALL, clock=lambda: seconds[0], minOffsetsPerTrigger=10,
        maxTriggerDelay="60s", **options,
    )  # fmt: skip


def test_a_batch_waits_for_so_many_records_or_so_long(root, store, clock, mode, seconds):
    put = put_all(store, messages(3), clock)
    run = waiting(root, seconds, **mode)
    # The first batch of a run waits for nothing.
    assert sorted(places_of(run.batch())) == put
    more = put_all(store, messages(9, first=3), clock)
    assert run.batch() is None
    more += put_all(store, messages(1, first=12), clock)
    assert sorted(places_of(run.batch())) == more
    late = put_all(store, messages(2, first=13), clock)
    seconds[0] = 59.9
    assert run.batch() is None
    seconds[0] = 60
    assert sorted(places_of(run.batch())) == late
    put_all(store, messages(2, first=15), clock)
    assert run.batch() is None
    # A restart does not wait either.
    assert len(StreamRun(root, run.checkpoint, minOffsetsPerTrigger=10, **mode).batch()) == 2


def test_records_of_all_stores_count_for_a_batch_that_waits(tmp_path, clock, both, mode, seconds):
    a, b = both
    run = waiting(tmp_path / "stores", seconds, **mode)
    assert run.batch() == []
    put_all(a, messages(6), clock)
    assert run.batch() is None
    put_all(b, messages(4), clock)
    assert len(run.batch()) == 10


def test_available_now_and_once_wait_for_nothing(root, store, clock, mode, seconds):
    put_all(store, messages(3), clock)
    run = waiting(root, seconds, maxOffsetsPerTrigger=10, **mode)
    run.batch()
    put_all(store, messages(3, first=3), clock)
    assert run.batch() is None
    assert len(run.batch(UNLIMITED)) == 3
    put_all(store, messages(3, first=6), clock)
    run.reader.prepareForTriggerAvailableNow()
    assert len(run.batch()) == 3


# --- available now ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 20}, {}])
def test_available_now_ends_where_the_log_was_when_it_began(root, store, clock, mode, limit):
    put = put_all(store, messages(50), clock)
    run = StreamRun(root, available_now=True, **ALL, **limit, **mode)
    batches = [run.batch()] if limit else []
    later = put_all(store, messages(50, first=50), clock)
    batches += run.drain()
    assert sorted_places(batches) == put
    again = StreamRun(root, run.checkpoint, available_now=True, **mode)
    assert sorted_places(again.drain()) == later
    assert StreamRun(root, run.checkpoint, available_now=True, **mode).drain() == []


def test_a_queue_made_after_available_now_began_is_for_the_next_run(root, store, clock):
    put_all(store, messages(10), clock)
    run = StreamRun(root, available_now=True, **ALL, subscribePattern=".*")
    store.put(Message(topic="Late", body=b"x"), queue_id=0)
    assert store.wait_dispatched()
    assert {row["topic"] for row in flat(run.drain())} == {"Topic0", "Topic1"}
    again = StreamRun(root, run.checkpoint, available_now=True, subscribePattern=".*")
    assert [row["topic"] for row in flat(again.drain())] == ["Late"]


# --- restarts -----------------------------------------------------------------------------------


def test_a_restart_at_every_boundary_gives_the_same_batches(root, store, clock, mode):
    options = {**ALL, "maxOffsetsPerTrigger": 17, **mode}
    put_all(store, messages(100), clock)
    run = StreamRun(root, **options)
    whole = run.drain()
    first, found = StreamRun(root, **options), []

    def assert_a_restart_goes_on():
        assert found + StreamRun(root, first.checkpoint.copy(), **options).drain() == whole

    while True:
        assert_a_restart_goes_on()
        if not first.plan_next():
            break
        assert_a_restart_goes_on()
        rows = first.run_planned()
        assert_a_restart_goes_on()
        first.commit()
        found.append(rows)
    assert len(found) == len(whole) > 5


@pytest.mark.parametrize("is_run", [False, True])
def test_a_first_batch_from_the_latest_is_not_moved_by_a_restart(root, store, clock, mode, is_run):
    put_all(store, messages(20), clock)
    first = StreamRun(root, **mode)
    first.plan_next()
    if is_run:
        assert first.run_planned() == []
    later = put_all(store, messages(5, first=20), clock)
    # Spark asks for the initial offset again, and now the log's end is elsewhere.
    second = StreamRun(root, first.checkpoint, **mode)
    assert second.batch() == []
    assert sorted_places(second.drain()) == later


def test_a_store_that_grew_during_a_restart_does_not_grow_the_batch(root, store, clock, mode):
    put = put_all(store, messages(20), clock)
    first = StreamRun(root, **ALL, **mode)
    first.plan_next()
    later = put_all(store, messages(30, first=20), clock)
    second = StreamRun(root, first.checkpoint, **ALL, **mode)
    assert sorted(places_of(second.batch())) == put
    assert sorted_places(second.drain()) == later


def test_start_options_mean_nothing_once_there_is_a_checkpoint(root, store, clock, mode):
    put_all(store, messages(20), clock)
    first = StreamRun(root, **ALL, **mode)
    first.drain()
    second = StreamRun(root, first.checkpoint, startingOffsets="latest", **mode)
    later = put_all(store, messages(5, first=20), clock)
    assert sorted_places(second.drain()) == later


# --- beginnings ---------------------------------------------------------------------------------


def test_a_stream_begins_at_a_time(root, store, clock, mode):
    put = put_all(store, messages(100), clock)
    since = clock.now_ms - 39
    run = StreamRun(root, startingTimestamp=since, **mode)
    assert sorted_places(run.drain()) == put[60:]
    run = StreamRun(root, startingTimestamp=clock.now_ms + 1, **mode)
    assert flat(run.drain()) == []
    later = put_all(store, messages(3, first=100), clock)
    assert sorted_places(run.drain()) == later


def test_a_queue_or_a_log_begins_at_a_time_of_its_own(root, store, clock):
    put = put_all(store, messages(100), clock)
    since = clock.now_ms - 39
    run = StreamRun(root, startingOffsetsByTimestamp=json.dumps({"store": since}))
    assert sorted_places(run.drain()) == put[60:]
    # A queue that is not named begins at its beginning, as with startingOffsets.
    times = json.dumps({"Topic0": {"0": since}, "Topic1": {"store": {"0": clock.now_ms + 1}}})
    run = StreamRun(root, subscribe="Topic0,Topic1", startingOffsetsByTimestamp=times)
    assert sorted_places(run.drain()) == put[60::2]
    times = json.dumps({"Topic0": {"0": since}})
    run = StreamRun(root, subscribe="Topic0,Topic1", startingOffsetsByTimestamp=times)
    assert sorted_places(run.drain()) == sorted([*put[60::2], *put[1::2]])


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_where_nothing_was_stored_since_it_begins_at_the_end_or_fails(
    root, store, clock, mode, option
):
    put_all(store, messages(10), clock)
    later = clock.now_ms + 1
    text = later
    if option != "startingTimestamp":
        text = json.dumps({f"Topic{n}": {"0": later} for n in (0, 1)} if mode else {"store": later})
    options = {option: text, **mode}
    run = StreamRun(root, **options)
    assert run.batch() == []
    assert sorted_places(run.drain()) == []
    with pytest.raises(StoreError, match=rf"nothing was stored at {later} ms or later.*latest"):
        StreamRun(root, startingOffsetsByTimestampStrategy="error", **options).batch()


def test_a_time_in_a_log_of_many_files_is_found_by_their_first_records(
    root, store, clock, monkeypatch
):
    put = put_all(store, messages(200, body_size=900), clock)
    opened = []
    since = clock.now_ms - 5
    monkeypatch.setattr(planning, "CLOCK_MARGIN_MS", 0)
    run = StreamRun(root, startingTimestamp=since)
    reads = files.LocalFile.read_into
    monkeypatch.setattr(
        files.LocalFile, "read_into", lambda self, *rest: opened.append(self) or reads(self, *rest)
    )
    run.plan_next()
    assert len(opened) < 8
    assert sorted_places(run.drain()) == put[-6:]


def test_a_log_begins_at_a_physical_offset(root, store, clock):
    put = put_all(store, messages(100), clock)
    for row in (0, 37, 99):
        run = StreamRun(root, startingOffsets=json.dumps({"store": put[row]}))
        assert sorted_places(run.drain()) == put[row:]


def test_queues_begin_at_their_offsets(root, store, clock):
    put = put_all(store, messages(100), clock)
    starts = json.dumps({"Topic0": {"store": {"0": 45}}, "Topic1": {"0": -1}})
    run = StreamRun(root, subscribe="Topic0,Topic1", startingOffsets=starts)
    assert sorted_places(run.drain()) == put[90::2]


def test_a_store_that_is_not_there_is_named(root, store):
    with pytest.raises(ConfigError, match=r"names store 'broker-z'.*the stores are store"):
        StreamRun(root, startingOffsets='{"broker-z":5}').batch()
    queues = '{"Topic0":{"broker-z":{"0":5}}}'
    for option in ("startingOffsets", "startingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=rf"{option} names store 'broker-z'.*are store"):
            StreamRun(root, subscribe="Topic0", **{option: queues}).batch()


# --- queues and stores --------------------------------------------------------------------------


def test_a_queue_that_appears_later_begins_at_its_beginning(root, store, clock):
    options = {"subscribePattern": ".*"}
    put_all(store, messages(10), clock)
    run = StreamRun(root, **options)
    assert run.batch() == []
    for number in range(4):
        for queue_id in (0, number):
            store.put(Message(topic="Late", body=b"%d" % number), queue_id=queue_id)
    assert store.wait_dispatched()
    run.plan_next()
    # The batch with the new queues in it may be run again after a restart.
    again = StreamRun(root, run.checkpoint, **options)
    rows = flat(again.drain())
    assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [
        (0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (2, 0), (3, 0),
    ]  # fmt: skip


def test_only_chosen_queues_are_streamed(root, store, clock):
    for number in range(40):
        store.put(Message(topic=f"Topic{number % 2}", body=b"x"), queue_id=number % 4)
    assert store.wait_dispatched()
    run = StreamRun(root, **ALL, assign='{"Topic0":[2]}')
    rows = flat(run.drain())
    assert {(row["topic"], row["queueId"]) for row in rows} == {("Topic0", 2)}
    assert [row["queueOffset"] for row in rows] == list(range(10))


@pytest.mark.parametrize("most_held", [4, 9, 2_000_000])
def test_queues_of_unequal_speed_are_read_in_the_order_of_the_log(
    root, store, clock, monkeypatch, most_held
):
    monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    monkeypatch.setattr(live_queues, "LIMITED_ENTRIES", most_held)
    put = [
        store.put(Message(topic="Topic0", body=b"x"), queue_id=0 if number % 7 else 1 + number % 3)
        for number in range(120)
    ]
    assert store.wait_dispatched()
    run = StreamRun(root, **ALL, subscribe="Topic0", maxOffsetsPerTrigger=20)
    batches = [sorted(places_of(rows)) for rows in run.drain()]
    assert [place for batch in batches for place in batch] == [one.physical_offset for one in put]
    assert all(0 < len(batch) <= 20 for batch in batches)


def test_tags_choose_rows_and_not_batches(root, store, clock, mode):
    put_all(store, messages(90), clock)
    run = StreamRun(root, **ALL, maxOffsetsPerTrigger=30, subExpression="Tag1", **mode)
    batches = run.drain()
    assert [len(rows) for rows in batches] == [10, 10, 10]
    assert {row["tags"] for row in flat(batches)} == {"Tag1"}


def test_a_table_without_bodies_can_be_streamed(root, store, clock, mode):
    put = put_all(store, messages(20), clock)
    run = StreamRun(root, **ALL, table="commitlog", **mode)
    rows = flat(run.drain())
    assert sorted(places_of(rows)) == put
    assert "body" not in rows[0]


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_limit_holds_for_each_store_by_itself(tmp_path, clock, both, mode, limit):
    a, b = both
    put_all(a, messages(100), clock)
    put_all(b, messages(20), clock)
    run = StreamRun(tmp_path / "stores", **ALL, maxOffsetsPerTrigger=limit, **mode)
    batches = run.drain()
    for name, total in (("a", 100), ("b", 20)):
        counts = [sum(row["brokerName"] == name for row in rows) for rows in batches]
        full, rest = divmod(total, limit)
        assert counts == [*[limit] * full, *[rest] * (rest > 0), *[0] * len(counts)][: len(counts)]


@pytest.mark.parametrize("busy", ["a", "b"])
def test_a_store_that_grows_faster_than_the_limit_never_keeps_another_waiting(
    tmp_path, clock, both, mode, busy
):
    other, store = both if busy == "b" else reversed(both)
    put_all(other, messages(50), clock)
    put_all(store, messages(50), clock)
    run = StreamRun(tmp_path / "stores", **ALL, maxOffsetsPerTrigger=10, **mode)
    rows = []
    for number in range(5):
        put_all(store, messages(30, first=50 + 30 * number), clock)
        rows += run.batch()
    counts = {name: sum(row["brokerName"] == name for row in rows) for name in "ab"}
    assert counts == {"a": 50, "b": 50}


@pytest.mark.parametrize("limits", [{"maxOffsetsPerTrigger": 10}, {"maxBytesPerTrigger": 4000}])
def test_a_store_far_ahead_and_one_that_grows_both_move_in_each_batch(
    tmp_path, clock, both, mode, limits
):
    a, b = both
    put_all(a, messages(400, body_size=1000), clock)
    run = StreamRun(tmp_path / "stores", startingOffsets="latest", **limits, **mode)
    assert run.batch() == []
    # From here on every offset of `a` is beyond all that `b` will ever have.
    put_all(a, messages(30, first=400), clock)
    put_all(b, messages(30), clock)
    found = []
    for first in range(30, 75, 15):
        rows = run.batch()
        assert {row["brokerName"] for row in rows} == {"a", "b"}
        found += rows
        put_all(b, messages(15, first=first), clock)
    found += flat(run.drain())
    assert len(found) == 30 + 75
    places = {(row["brokerName"], row["physicalOffset"]) for row in found}
    assert len(places) == len(found)


def test_a_store_that_appears_later_begins_at_its_beginning(tmp_path, clock, mode):
    with open_store(tmp_path / "stores" / "a", clock) as a:
        put_all(a, messages(10), clock)
        run = StreamRun(tmp_path / "stores", **mode)
        assert run.batch() == []
        with open_store(tmp_path / "stores" / "b", clock) as b:
            put_all(b, messages(7), clock)
            run.plan_next()
            put_all(b, messages(3, first=7), clock)
            again = StreamRun(tmp_path / "stores", run.checkpoint, **mode)
            rows = again.batch()
            assert {row["brokerName"] for row in rows} == {"b"}
            assert len(rows) == 7
            assert len(flat(again.drain())) == 3


def test_two_stores_of_one_name_are_refused(tmp_path, both):
    with pytest.raises(ConfigError, match="two stores are called same"):
        StreamRun(tmp_path / "stores", brokerName="same,same").batch()


def test_what_is_left_is_shown_for_every_store(tmp_path, clock, both):
    a, b = both
    put = put_all(a, messages(30), clock)
    put_all(b, messages(4), clock)
    options = {**ALL, "maxOffsetsPerTrigger": "10"}
    shown = {}
    for kind, choice in MODES.items():
        given_options = {"path": str(tmp_path / "stores"), **options, **choice}
        reader = StoreStreamReader(given_options, StructType())
        assert reader.reportLatestOffset() is None
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        shown[kind] = reader.reportLatestOffset()
    assert shown["log"]["of"] == f"the whole log in {tmp_path}/stores"
    assert shown["queues"]["of"] == f"queues of Topic.* in {tmp_path}/stores"
    logs = shown["log"]["log"]
    assert logs["a"]["lag"] == logs["a"]["offset"] - put[10]
    assert logs["b"]["lag"] == 0
    assert shown["queues"]["queues"] == logs


# --- anything in any order ----------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 40)),
        st.tuples(st.just("batch"), st.integers(1, 25)),
        st.tuples(st.just("plan"), st.integers(1, 25)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("queue"), st.integers(0, 3)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", MODES)
@given(steps=STEPS, body_size=st.sampled_from([10, 900, 5_000]))
@settings(max_examples=25)
def test_every_message_comes_once_whatever_happens(name, steps, body_size):
    mode, clock = MODES[name], Clock()
    put, found = [], []
    with memory_directory() as root, open_store(root, clock) as store:
        run = StreamRun(root, **ALL, **mode)
        for step, number in steps:
            if step == "put":
                put += put_all(store, messages(number, first=len(put), body_size=body_size), clock)
            elif step == "queue":
                message = Message(topic="TopicLate", body=b"x" * body_size)
                put.append(store.put(message, queue_id=number).physical_offset)
                assert store.wait_dispatched()
            elif step == "batch":
                found += run.batch(BatchLimits(number)) or []
            elif step == "plan":
                run.plan_next(BatchLimits(number))
            else:
                run = StreamRun(root, run.checkpoint, startingOffsets="latest" if found else
                                "earliest", **mode)  # fmt: skip
        found += flat(run.drain())
    assert sorted(places_of(found)) == put
