"""The runtime information has 4.9.8's keys and texts, but for what only a broker knows."""

import pytest

from rocketstore import Message
from rocketstore.native.log_end import QueueCounter
from rocketstore.storage.observation import NO_POOL, Size
from rocketstore.storage.statistics import StoreStatistics
from rocketstore.units import GiB, KiB, QueueKey
from support.clock import Clock
from support.configured_store import open_small
from support.inside import parts_of

# As the classes of 4.9.8 have them: StoreStatsService, DefaultMessageStore.getRuntimeInfo, and
# AdminBrokerProcessor.prepareRuntimeInfo without version, thread pools and totals since midnight.
KEYS = """
bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes
putMessageSizeTotal putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer
getMessageEntireTimeMax putTps getFoundTps getMissTps getTotalTps getTransferedTps putLatency99
putLatency999 commitLogDiskRatio consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset
dispatchBehindBytes pageCacheLockTimeMills earliestMessageTimeStamp
remainTransientStoreBufferNumbs remainHowManyDataToFlush commitLogDirCapacity
"""


def test_the_keys_are_those_of_4_9(tmp_path):
    clock = Clock()
    with open_small(tmp_path, clock) as store:
        assert store.runtime_info()["earliestMessageTimeStamp"] == "-1"
        put = store.put(Message(topic="orders", body=b"x" * 2000))
        info = store.runtime_info()
        assert {*KEYS.split(), f"commitLogDiskRatio_{tmp_path / 'commitlog'}"} <= set(info)
        assert (info["commitLogMinOffset"], info["commitLogMaxOffset"]) == ("0", str(put.size))
        assert 0 <= float(info["commitLogDiskRatio"]) <= 1
        assert info["earliestMessageTimeStamp"] == str(clock.now_ms)
        assert info["remainTransientStoreBufferNumbs"] == str(NO_POOL)
        assert "remainHowManyDataToCommit" not in info
        assert info["remainHowManyDataToFlush"] == "2.0 KiB"
        assert info["dispatchBehindBytes"] == str(put.size)
        parts_of(store).disk.room = lambda _path: (9 * GiB, 2 * GiB, 4 * GiB)  # 3 GiB are others'
        info = store.runtime_info()
        assert info["commitLogDirCapacity"] == "Total : 9.0 GiB, Free : 4.0 GiB."
        parts_of(store).log.monotonic = clock
        parts_of(store).log.end.locked_since_ms = clock.now_ms - 70  # a put that takes long
        assert store.runtime_info()["pageCacheLockTimeMills"] == "70"
        parts_of(store).log.end.locked_since_ms = 0
        assert store.runtime_info()["pageCacheLockTimeMills"] == "0"
        store.flush()
        info = store.runtime_info()
        assert info["dispatchBehindBytes"] == "0"
        assert info["remainHowManyDataToFlush"] == "0 B"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (KiB, "1.0 KiB"), (1536, "1.5 KiB"), (252 * GiB, "252.0 GiB"),
    ],
)  # fmt: skip
def test_sizes_are_written_as_4_9_does(size, text):
    assert str(Size(size)) == text


def test_a_share_of_the_puts_of_the_last_minute_took_so_long():
    clock, counter = Clock(), QueueCounter(QueueKey("orders", 0), b"orders", 0, 0)
    statistics = StoreStatistics(clock, lambda: [counter], lambda: (counter.next_offset, 0))
    counter.next_offset = 1000
    for took_ms in [3] * 100 + [70] * 5 + [20_000]:
        statistics.note_slow_put(took_ms, 1000)
    shares = (0.5, 0.945, 0.99, 0.999, 1)
    assert [*map(statistics.put_latency_ms, shares)] == [0] * 5
    clock.now_ms += 60_000
    statistics.sample()
    assert [*map(statistics.put_latency_ms, shares)] == [0, 5.1, 9.6, 100, 20_000]
    clock.now_ms += 60_000
    statistics.sample()
    assert statistics.put_latency_ms(0.999) == 0
