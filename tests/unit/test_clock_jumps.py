"""The clock is set by ±30 s, ±1 h, ±400 d around everything that waits, or has an age."""

import os

import pytest

from rocketstore import CheckAnswer, Message, PutMessageStatus
from rocketstore.storage.queues.consumer_filters import ConsumerFilters
from rocketstore.storage.retention import newest_store_time
from rocketstore.units import monotonic_ms
from support.clock import Clock
from support.clock_jumps import HOUR_MS, ahead, either_way
from support.configured_store import open_small
from support.inside import parts_of, workers_of

AGE_MS = 72 * HOUR_MS


@pytest.fixture
def store(tmp_path, clock):
    with open_small(tmp_path, clock, retention=True, delete_when=ALL_DAY) as opened:
        yield opened


ALL_DAY = ";".join(f"{hour:02d}" for hour in range(24))


def put(store, body=b"x", topic="orders", **more):
    result = store.put(Message(topic=topic, body=body, **more))
    result.raise_for_status()
    store.wait_dispatched()
    return result


def put_while_ahead(store, clock, jump_ms):
    clock.now_ms += jump_ms
    put(store, b"ahead", "other")
    clock.now_ms -= jump_ms


# --- what counts by a clock that only counts on ---------------------------------------------------


def test_pauses_of_an_open_store_are_counted_by_no_clock_that_is_set(store):
    workers, parts = workers_of(store), parts_of(store)
    waiting = (workers.flusher, workers.queue_flusher, workers.dispatch, parts.retention,
               parts.log)  # fmt: skip
    assert {one.monotonic for one in waiting} == {monotonic_ms}
    assert workers.statistics._monotonic is monotonic_ms
    workers.flusher.start()
    assert 0 < workers.flusher._last_thorough_ms <= monotonic_ms()


@either_way
def test_the_append_lock_does_not_look_held_for_longer_than_it_is(store, clock, jump_ms):
    parts_of(store).log.end.locked_since_ms = monotonic_ms()
    clock.now_ms += jump_ms
    assert store.put(Message(topic="orders", body=b"x")).status is PutMessageStatus.PUT_OK
    parts_of(store).log.end.locked_since_ms = monotonic_ms() - 2_000
    refused = store.put(Message(topic="orders", body=b"x"))
    assert refused.status is PutMessageStatus.OS_PAGECACHE_BUSY


@either_way
def test_dispatch_that_fails_stops_puts_after_a_while_and_not_at_once_or_never(
    store, clock, jump_ms
):
    workers = workers_of(store)
    workers.dispatch._note_failure(OSError("no"))
    clock.now_ms += jump_ms
    workers.watch_dispatch()
    assert not store.running_flags.bits


@either_way
def test_rates_and_the_time_since_the_start_go_on(store, clock, jump_ms):
    statistics, count = workers_of(store).statistics, Clock()
    statistics._monotonic = count
    statistics._started_ms = count()
    for _ in range(12):
        for _ in range(5):
            put(store)
        statistics.sample()
        count.now_ms += 1_000
        clock.now_ms += jump_ms
    assert statistics.rates("put")[0] == 5.0
    assert "0 hours, 0 minutes, 12 seconds" in statistics.runtime_info()["runtime"]


@either_way
def test_a_file_that_is_read_is_not_deleted_for_a_jump(store, clock, jump_ms):
    fill_files(store, 3)
    first = parts_of(store).log.files.files[0]
    view = memoryview(first.mapping)[:10]
    clock.now_ms += AGE_MS + HOUR_MS
    assert not log_files_deleted(store)
    clock.now_ms += jump_ms
    assert not log_files_deleted(store)
    assert len(view) == 10


# --- ages -----------------------------------------------------------------------------------------


def fill_files(store, count):
    files = parts_of(store).log.files
    while len(files.files) < count:
        put(store, bytes(4_000))
    store.flush()


def log_files_deleted(store):
    gone = parts_of(store).retention.run_once()
    return [one for one in gone if one.path.parent.name == "commitlog"]


def written(store, clock, *ages_ms):
    """Let the files of the log be written last so long ago, as a file system says it."""
    for file, age_ms in zip(parts_of(store).log.files.files, ages_ms, strict=False):
        when_ns = (clock.now_ms - age_ms) * 1_000_000
        os.utime(file.path, ns=(when_ns, when_ns))


@ahead
def test_files_whose_store_times_are_ahead_go_when_they_are_old(store, clock, jump_ms):
    put_while_ahead(store, clock, jump_ms)
    fill_files(store, 4)
    written(store, clock, 0, 0, 0, 0)
    for file in parts_of(store).log.files.files[:3]:
        assert newest_store_time(file, clock.now_ms) == clock.now_ms
    assert not log_files_deleted(store)
    began_ms = clock.now_ms
    clock.now_ms += AGE_MS - 1
    assert not log_files_deleted(store)
    clock.now_ms += 1
    if began_ms + jump_ms > clock.now_ms:
        assert len(log_files_deleted(store)) == 3
    else:  # the clock was there meanwhile, and the store times say when
        clock.now_ms += jump_ms
        assert len(log_files_deleted(store)) == 3


@ahead
def test_a_file_that_was_written_while_the_clock_was_ahead_goes_with_the_next_one(
    store, clock, jump_ms
):
    jump_ms += 2 * AGE_MS
    put_while_ahead(store, clock, jump_ms)
    fill_files(store, 4)
    written(store, clock, -jump_ms, AGE_MS - 1, 0)
    assert not log_files_deleted(store)
    clock.now_ms += 1
    assert len(log_files_deleted(store)) == 2


@ahead
def test_a_half_message_of_the_future_is_asked_about_after_its_time(store, clock, jump_ms):
    asked = []
    store.check_transactions(lambda half: asked.append(half.body) or CheckAnswer.UNKNOWN)
    for body, ahead_ms in {b"half": jump_ms, b"next": jump_ms + 1, b"of now": 0}.items():
        clock.now_ms += ahead_ms
        store.begin(Message(topic="orders", body=body)).put.raise_for_status()
        clock.now_ms -= ahead_ms
    store.wait_dispatched()
    checks = store.transaction_checks
    assert checks.turn(clock.now_ms + 3_000) == 0
    assert checks.turn(clock.now_ms) == 0  # it counts from now, though it was met in the future
    assert checks.turn(clock.now_ms + 5_999) == 0
    assert checks.turn(clock.now_ms + 6_000) == 3  # none waits for another
    assert asked == [b"half", b"next", b"of now"]
    assert checks.turn(clock.now_ms + 6_001) == 0  # the copies are as young again


@ahead
def test_a_half_message_is_as_old_as_the_clock_says_though_the_store_time_is_ahead(
    store, clock, jump_ms
):
    asked = []
    store.check_transactions(lambda half: asked.append(half.body) or CheckAnswer.UNKNOWN)
    put_while_ahead(store, clock, jump_ms)
    store.begin(Message(topic="orders", body=b"half")).put.raise_for_status()
    store.wait_dispatched()
    assert store.transaction_checks.turn(clock.now_ms + 5_999) == 0
    assert store.transaction_checks.turn(clock.now_ms + 6_000) == 1


@either_way
@pytest.mark.parametrize("topic", ["orders", "in_memory"])
def test_a_born_time_is_the_clock_s_and_a_store_time_never_goes_back(
    tmp_path, clock, jump_ms, topic
):
    with open_small(tmp_path, clock, memory_topic_enable=True) as store:
        store.memory_topics.create("in_memory")
        stored = [put(store, topic=topic).store_timestamp_ms]
        for message in ({}, {"tags": "a"}, {"properties": {"x": "y"}}):
            clock.now_ms += jump_ms
            stored.append(put(store, topic=topic, **message).store_timestamp_ms)
            newest = store.get(topic, 0, len(stored) - 1).messages[0]
            assert newest.born_timestamp_ms == clock.now_ms
            assert newest.store_timestamp_ms == stored[-1] == max(stored[-2], clock.now_ms)
            clock.now_ms -= jump_ms // 2


@ahead
def test_the_lag_of_a_group_grows_though_the_store_times_are_ahead(store, clock, jump_ms):
    put(store, born_timestamp_ms=clock.now_ms - 5_000)
    put_while_ahead(store, clock, jump_ms)
    put(store)
    put(store, born_timestamp_ms=clock.now_ms - 5_000)
    clock.now_ms += 7_000
    for offset, waited_ms in enumerate((7_000, 7_000, 12_000)):
        store.consumer_offsets.set("orders", "billing", 0, offset)
        assert lag_ms(store) == waited_ms


@ahead
def test_a_lag_is_never_below_zero(store, clock, jump_ms):
    clock.now_ms += jump_ms
    put(store)
    store.consumer_offsets.set("orders", "billing", 0, 0)
    clock.now_ms -= jump_ms
    assert lag_ms(store) == 0


def lag_ms(store):
    [lag] = [
        one for one in store.observation.metrics() if one.name == "rocketmq_consumer_lag_latency"
    ]
    [(_, value)] = lag.values.items()
    return value


# --- what is found by time ------------------------------------------------------------------------


@either_way
def test_a_moment_passes_over_nothing_that_was_put_at_it_or_later(store, clock, jump_ms):
    moments = []
    for step in (0, jump_ms, 1_000, -jump_ms, 500, 2_000, jump_ms // 2, 10):
        clock.now_ms += step
        moments.append((clock.now_ms, put(store).queue_offset))
    for moment_ms, offset in moments:
        assert store.offset_at("orders", 0, moment_ms) <= offset


@ahead
def test_a_key_is_found_from_the_moment_of_its_put_on(store, clock, jump_ms):
    put_while_ahead(store, clock, jump_ms)
    before_ms = clock.now_ms
    put(store, keys=("k",))
    assert len(store.find("orders", "k", begin_ms=before_ms)) == 1


@ahead
def test_a_filter_says_nothing_of_what_was_stored_before_it(tmp_path, clock, jump_ms):
    settings = {"enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}
    with open_small(tmp_path, clock, **settings) as store:
        put_while_ahead(store, clock, jump_ms)
        store.consumer_filters.register("orders", "other", lambda _: False)
        put(store)
        store.consumer_filters.register("orders", "billing", lambda _: True)
        [(_, entry)] = store.queue_entries("orders", 0, 0)
        unit = store.extension_unit("orders", 0, entry.tags_code)
        assert unit is not None
        assert store.consumer_filters.may_match("orders", "billing", unit)
        assert isinstance(store.consumer_filters, ConsumerFilters)
