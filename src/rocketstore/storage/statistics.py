"""What a store has done since it was opened: totals, rates, and how long puts took.

Law: counting costs a put no measurable time, and a sample looks at no queue. Messages and bytes are
read off the queues' own counters, and what these add up to off the log's end; only a put of a
millisecond or more is entered in the histogram, the rest is the difference to the total.

How derived: StoreStatsService of 4.9 (spec B20): samples once a second, 601 of them, so that rates
over 10, 60 and 600 seconds are known; thirteen buckets of put time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rocketstore.arguments import checked
from rocketstore.events import get_logger
from rocketstore.locks import Lock
from rocketstore.native.page import GetCounts
from rocketstore.process import OfOneProcess
from rocketstore.storage.metric import Histogram, Metric, counter

if TYPE_CHECKING:
    from rocketstore.native.log_end import QueueCounter

SAMPLE_COUNT: Final = 601
RATE_SPANS_S: Final = (10, 60, 600)
BUCKET_LIMITS_MS: Final = (10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
BUCKET_NAMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
"""Names as StoreStatsService prints them."""

PRINT_INTERVAL_MS: Final = 60_000
"""How often rates and put times are logged (StoreStatsService.printTPSInterval)."""

_SLOW_PUT_MS: Final = 500
"""A put that takes longer is logged (DefaultMessageStore.putMessage)."""

_LOG_EVERY: Final = 50_000
"""One in so many refused puts is logged (DefaultMessageStore.printTimes)."""

_log: Final = get_logger(__name__)


PUT_LIMITS_S: Final = (*(f"{limit / 1000}" for limit in (1, *BUCKET_LIMITS_MS)), "+Inf")
"""Upper limits of `BUCKET_NAMES`, the first of which is below a millisecond."""

SYNC_LIMITS_S: Final = tuple(0.0001 * 2**step for step in range(17))
"""From a sync of a fast disk, 0.1 ms, doubled until past the 5 s that a put waits for its flush
(``syncFlushTimeout``); etcd's buckets of its log, begun three steps earlier."""


class SyncTimes:
    """How many syncs took how long; `note` is called by one thread at a time."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SYNC_LIMITS_S) + 1)
        self.total_s = 0.0

    def note(self, took_s: float) -> None:
        """Enter a sync."""
        self.counts[bisect_left(SYNC_LIMITS_S, took_s)] += 1
        self.total_s += took_s


class Rates(list[float]):
    """Events per second over `RATE_SPANS_S`; as a text as 4.9 writes them."""

    __slots__ = ()

    def __str__(self) -> str:
        return " ".join(map(str, self))


class Latency(float):
    """A time in ms; as a text as 4.9 writes it."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self:.2f}"


class PutTotals(NamedTuple):
    """Messages and bytes put."""

    messages: int = 0
    bytes: int = 0


class _Sample(NamedTuple):
    at_ms: int
    put: int
    get_found: int
    get_miss: int
    transferred: int


class StoreStatistics(OfOneProcess):
    """Counters of one open store since `boot_ms`; `counters` returns those of its queues.

    `put_totals` returns what these add up to, messages and bytes.
    """

    def __init__(
        self, monotonic: Callable[[], int], counters: Callable[[], Iterable[QueueCounter]],
        put_totals: Callable[[], tuple[int, int]], *,
        boot_ms: int | None = None, syncs: SyncTimes | None = None,
    ) -> None:  # fmt: skip
        self.syncs = syncs or SyncTimes()
        self._monotonic = monotonic
        self._counters = counters
        self._put_totals = put_totals
        self._started_ms = self._printed_ms = monotonic()
        self._boot_ms = self._started_ms if boot_ms is None else boot_ms
        self._lock = Lock()
        self._samples: deque[_Sample] = deque(maxlen=SAMPLE_COUNT)
        self._slow_puts = [0] * len(BUCKET_NAMES)
        self._printed = self.last_minute = dict.fromkeys(BUCKET_NAMES, 0)
        self._unavailable_count = 0
        self.failed_puts = 0
        self.put_time_max_ms = 0
        self.gets = GetCounts()
        self.note_get = self.gets.note
        self.dispatch_max_buffer = 0

    # --- recorded by the store --------------------------------------------------------------------

    def note_slow_put(self, elapsed_ms: int, message_count: int = 1) -> None:
        """Record a put that took a millisecond or more, and warn of one that took far too long.

        The first put of an open store makes the log's file and touches it: no reason to warn.
        """
        with self._lock:
            # Upper limits of buckets are exclusive.
            self._slow_puts[1 + bisect_right(BUCKET_LIMITS_MS, elapsed_ms)] += 1
            self.put_time_max_ms = max(self.put_time_max_ms, elapsed_ms)
        if elapsed_ms > _SLOW_PUT_MS and self.total_put().messages > message_count:
            _log.warning("put.slow", took_ms=elapsed_ms)

    def note_failed_put(self) -> None:
        """Count a put that was refused."""
        with self._lock:
            self.failed_puts += 1

    def note_unavailable(self, why: str) -> None:
        """Count a put refused because of the store's state; log the first of every 50,000."""
        with self._lock:
            count = self._unavailable_count
            self._unavailable_count += 1
        if count % _LOG_EVERY == 0:
            _log.warning("put.refused", reason=why, count=count + 1)

    def note_writeable(self) -> None:
        """Start counting refusals from zero: the store takes puts."""
        self._unavailable_count = 0

    def sample(self, dispatch_backlog: int = 0) -> None:
        """Take the sample of this second; log rates and put times of the minute when it is over.

        Source: StoreStatsService.sampling, printTps.
        """
        self.dispatch_max_buffer = max(self.dispatch_max_buffer, dispatch_backlog)
        gets, now_ms = self.gets, self._monotonic()
        self._samples.append(
            _Sample(now_ms, self.total_put().messages, gets.found, gets.missed, gets.messages)
        )
        if 0 <= now_ms - self._printed_ms < PRINT_INTERVAL_MS:
            return
        before, self._printed = self._printed, self.put_time_histogram()
        self._printed_ms = now_ms
        self.last_minute = {name: now - before[name] for name, now in self._printed.items()}
        _log.info(
            "store.statistics",
            put_per_s=self.rates("put")[1],
            get_found_per_s=self.rates("get_found")[1],
            get_miss_per_s=self.rates("get_miss")[1],
            puts=sum(self.last_minute.values()),
            put_times={name: count for name, count in self.last_minute.items() if count},
        )

    # --- for users -------------------------------------------------------------------------

    def put_by_topic(self) -> dict[str, PutTotals]:
        """Return messages and bytes put, by topic."""
        totals: dict[str, PutTotals] = {}
        for one in list(self._counters()):
            messages, size = totals.get(one.key.topic, PutTotals())
            messages += one.next_offset - one.first_offset
            totals[one.key.topic] = PutTotals(messages, size + one.stored_bytes)
        return totals

    def total_put(self) -> PutTotals:
        """Return messages and bytes put, of all topics."""
        return PutTotals(*self._put_totals())

    def put_time_histogram(self) -> dict[str, int]:
        """Return how many puts took how long, by the names of 4.9."""
        with self._lock:
            counts = list(self._slow_puts)
        counts[0] = max(self.total_put().messages - sum(counts), 0)
        return dict(zip(BUCKET_NAMES, counts, strict=True))

    @checked
    def rates(self, field: Literal["put", "get_found", "get_miss", "transferred"]) -> Rates:
        """Return events per second over the last 10, 60 and 600 seconds, 0.0 without samples.

        Source: StoreStatsService.getPutTps and its like.
        """
        samples = list(self._samples)
        rates = Rates([0.0] * len(RATE_SPANS_S))
        for number, span in enumerate(RATE_SPANS_S):
            if len(samples) > span:
                last, before = samples[-1], samples[-1 - span]
                elapsed_ms = last.at_ms - before.at_ms
                count = getattr(last, field) - getattr(before, field)
                rates[number] = count * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0
        return rates

    @checked
    def put_latency_ms(self, share: float) -> Latency:
        """Return the time in ms within which this share of the last whole minute's puts were done.

        Between two limits of the put times it is interpolated, as in 4.9, which has more of them.
        Source: StoreStatsService.findPutMessageEntireTimePX.
        """
        counts = self.last_minute.values()
        wanted = int(sum(counts) * min(max(share, 0), 1))
        before, lower = 0, 0
        for upper, count in zip((0, *BUCKET_LIMITS_MS, self.put_time_max_ms), counts, strict=True):
            if wanted <= before + count:
                break
            before, lower = before + count, upper
        return Latency(lower + (upper - lower) * (wanted - before) / max(count, 1))

    def metrics(self) -> Iterator[Metric | Histogram]:
        """Yield what was put, got and synced, with the names of a 5.x broker where it has them."""
        puts, gets = sorted(self.put_by_topic().items()), self.gets
        count = {topic: put.messages for topic, put in puts}
        size = {topic: put.bytes for topic, put in puts}
        results = {"found": gets.found, "missed": gets.missed}
        yield counter("rocketmq_messages_in", "Messages put.", count, "topic")
        yield counter("rocketmq_throughput_in", "Bytes put.", size, "topic")
        yield counter("rocketmq_messages_out", "Messages got.", gets.messages)
        text = "Gets, by whether they found a message."
        yield counter("rocketstore_gets", text, results, "result")
        yield counter("rocketstore_puts_failed", "Puts that were refused.", self.failed_puts)
        text = "How long puts took, in the buckets of 4.9; without a sum."
        counts = [*self.put_time_histogram().values()]
        yield Histogram("rocketstore_put_seconds", text, counts, PUT_LIMITS_S)
        text, limits = "How long syncs of the CommitLog took.", [f"{s:.4f}" for s in SYNC_LIMITS_S]
        counts, total_s = self.syncs.counts, self.syncs.total_s
        yield Histogram("rocketstore_flush_seconds", text, counts, [*limits, "+Inf"], total_s)

    def runtime_info(self) -> dict[str, object]:
        """Return what StoreStatsService.getRuntimeInfo tells, by its keys; 0 messages are 1."""
        totals = self.total_put()
        times = max(totals.messages, 1)
        found, missed = self.rates("get_found"), self.rates("get_miss")
        minutes, seconds = divmod((self._monotonic() - self._started_ms) // 1000, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        printed, counts = self._printed, self.put_time_histogram()  # in this order: never below 0
        distribution = " ".join(f"{name}:{n - printed[name]}" for name, n in counts.items())
        return {
            "bootTimestamp": self._boot_ms,
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "putMessageEntireTimeMax": self.put_time_max_ms,
            "putMessageTimesTotal": times,
            "putMessageFailedTimes": self.failed_puts,
            "putMessageSizeTotal": totals.bytes,
            "putMessageDistributeTime": distribution,
            "putMessageAverageSize": totals.bytes / times,
            "dispatchMaxBuffer": self.dispatch_max_buffer,
            "getMessageEntireTimeMax": self.gets.longest_ms,
            "putTps": self.rates("put"),
            "getFoundTps": found,
            "getMissTps": missed,
            "getTotalTps": Rates(map(sum, zip(found, missed, strict=True))),
            "getTransferedTps": self.rates("transferred"),
        }
