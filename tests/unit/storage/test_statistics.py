"""What a store counts, under 4.9's names; and the flags that stop it."""

import pytest

from rocketstore.native.log_end import QueueCounter
from rocketstore.storage.running_flags import RunningFlag
from rocketstore.storage.statistics import BUCKET_NAMES, StoreStatistics
from rocketstore.units import QueueKey
from support.said import capture_logs

QUEUE = QueueKey("orders", 0)


class Totals:
    """A queue whose totals a test sets."""

    def __init__(self) -> None:
        self.counter = QueueCounter(QUEUE, b"orders", 0, 0)

    def set(self, messages: int, size: int) -> None:
        self.counter.next_offset, self.counter.stored_bytes = messages, size

    def get(self) -> tuple[int, int]:
        return self.counter.next_offset, self.counter.stored_bytes


@pytest.fixture
def totals():
    return Totals()


@pytest.fixture
def statistics(clock, totals):
    return StoreStatistics(clock, lambda: [totals.counter], totals.get)


@pytest.mark.parametrize(
    ("elapsed_ms", "bucket"),
    [
        (0, "[<=0ms]"), (1, "[0~10ms]"), (9, "[0~10ms]"), (10, "[10~50ms]"), (49, "[10~50ms]"),
        (50, "[50~100ms]"), (100, "[100~200ms]"), (200, "[200~500ms]"), (500, "[500ms~1s]"),
        (1000, "[1~2s]"), (2000, "[2~3s]"), (3000, "[3~4s]"), (4000, "[4~5s]"), (5000, "[5~10s]"),
        (9999, "[5~10s]"), (10_000, "[10s~]"),
    ],
)  # fmt: skip
def test_put_times_fall_into_13_buckets(statistics, totals, elapsed_ms, bucket):
    totals.set(1, 100)
    if elapsed_ms:
        statistics.note_slow_put(elapsed_ms)
    histogram = statistics.put_time_histogram()
    assert len(histogram) == 13
    assert [name for name, count in histogram.items() if count] == [bucket]
    assert statistics.put_time_max_ms == elapsed_ms


def test_rates_need_as_many_samples_as_their_span_and_601_are_kept(statistics, totals, clock):
    for second in range(700):
        totals.set(second * 7, 0)
        statistics.sample()
        clock.now_ms += 1000
        if second == 60:
            assert statistics.rates("put") == [7.0, 7.0, 0.0]
    assert len(statistics._samples) == 601
    assert statistics.rates("put")[2] == 7.0


def test_gets_are_counted_as_found_or_missed(statistics, clock):
    statistics.sample()
    for _ in range(10):
        clock.now_ms += 1000
        statistics.note_get(32, 4)
        statistics.note_get(0, 1)
        statistics.sample()
    gets = statistics.gets
    assert (gets.found, gets.missed, gets.longest_ms) == (10, 10, 4)
    info = statistics.runtime_info()
    assert info["getFoundTps"][0] == 1.0
    assert info["getMissTps"][0] == 1.0
    assert info["getTotalTps"][0] == 2.0
    assert info["getTransferedTps"][0] == 32.0


def test_runtime_info_has_the_keys_of_4_9(statistics, totals, clock):
    totals.set(4, 1000)
    statistics.sample(17)
    statistics.sample(3)
    clock.now_ms += ((2 * 24 + 3) * 60 + 4) * 60_000 + 5_000
    info = statistics.runtime_info()
    assert list(info) == [
        "bootTimestamp", "runtime", "putMessageEntireTimeMax", "putMessageTimesTotal",
        "putMessageFailedTimes", "putMessageSizeTotal", "putMessageDistributeTime",
        "putMessageAverageSize", "dispatchMaxBuffer", "getMessageEntireTimeMax", "putTps",
        "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps",
    ]  # fmt: skip
    assert info["runtime"] == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"
    assert info["putMessageAverageSize"] == 250.0
    assert info["dispatchMaxBuffer"] == 17
    assert info["putMessageDistributeTime"].startswith("[<=0ms]:4 ")
    assert len(BUCKET_NAMES) == 13


def test_no_put_at_all_is_reported_as_one(statistics):
    assert statistics.runtime_info()["putMessageTimesTotal"] == 1


# --- running flags -------------------------------------------------------------------------------


def test_flags_have_the_bits_of_4_9():
    assert [flag.value for flag in RunningFlag] == [1, 2, 4, 8, 16, 64, 1 << 16]


@pytest.fixture
def logged():
    with capture_logs() as logs:
        yield logs


def test_rates_and_put_times_are_logged_every_minute_and_counted_again(
    statistics, totals, clock, logged
):
    for minute in (1, 2):
        totals.set(60 * minute, 6_000 * minute)
        statistics.note_slow_put(15 * minute)
        for _ in range(60):
            clock.now_ms += 1_000
            statistics.sample()
    assert [line["event"] for line in logged] == ["store.statistics"] * 2
    assert [line["puts"] for line in logged] == [60, 60]
    times = [line["put_times"] for line in logged]
    assert times == [{"[<=0ms]": 59, "[10~50ms]": 1}] * 2
    totals.set(123, 12_300)
    told = statistics.runtime_info()["putMessageDistributeTime"].split()
    assert told[:3] == ["[<=0ms]:3", "[0~10ms]:0", "[10~50ms]:0"]


def test_a_clock_that_is_set_back_does_not_silence_the_statistics(statistics, clock, logged):
    for step_ms in (-3_600_000, 60_000):
        clock.now_ms += step_ms
        statistics.sample()
    assert len(logged) == 2
