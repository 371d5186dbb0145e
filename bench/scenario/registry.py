"""All scenarios. A round stays below 1.5 GB of records, but for the sustained puts of 30 GB.

Counts are chosen so that the clock runs for one to five seconds on the machine in
``bench/results``; file sizes are RocketMQ's defaults (a CommitLog file of 1 GiB).
"""

from __future__ import annotations

from typing import Any

from bench.scenario.definition import Measure, Scenario, Verdict

WITHIN = 0.9
"""Until dispatched, the same ratios hold within 10 %."""

QUEUES = 8
RECORD_OVERHEAD_BYTES = 200
"""What a record has beside its body, about."""

SUSTAINED_BYTES = 30_000_000_000
FREE_MB = 4096
"""Left for the page cache and both processes of a sustained put: a seventh of what is written."""
OPEN_BEFORE_S = 65
"""How long a store of a sustained put is open before: retention's first round comes after 60 s."""

CATCH_UP_BYTES = 4_000_000_000

POOL = {"transientStorePoolEnable": "true"}
POOLED_FILE_BYTES = 128 * 1024 * 1024
"""Five buffers are less than a JVM may have outside its heap."""

SYNC = {"flushDiskType": "SYNC_FLUSH"}
SMALL_FILES = {
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 600_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
}


def _put(  # noqa: PLR0913 - the axes of the put scenarios
    name: str,
    claim: str,
    *,
    body_size: int,
    messages: int,
    target: float | None,
    encoded: bool = False,
    batch: int = 1,
    threads: int = 1,
    config: dict[str, Any] | None = None,
) -> Scenario:
    """Return a put scenario; an asynchronous one also stops the clock at the last dispatch."""
    measures = [Measure("put", "seconds", "msg/s", Verdict.RATE, target)]
    if config is None:
        # A batch may outrun its dispatch; a single put must not.
        until = None if target is None or batch > 1 else round(target * WITHIN, 3)
        measures.append(
            Measure("put until dispatched", "dispatchedSeconds", "msg/s", Verdict.RATE, until)
        )
    smoke_messages = 320 if config else 6_400
    return Scenario(
        name=name,
        claim=claim,
        command="put",
        spec={
            "bodySize": body_size,
            "messages": messages,
            "queues": QUEUES,
            "encoded": encoded,
            "batch": batch,
            "threads": threads,
            "config": config or {},
        },
        smoke={"messages": smoke_messages, "config": {**SMALL_FILES, **(config or {})}},
        measures=tuple(measures),
    )


def _sustained(label: str, body_size: int) -> Scenario:
    """Return a put of 30 GB that meets the disk: few free pages, and retention takes its turns."""
    config = {
        "fileReservedTime": 0,
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    }
    return Scenario(
        name=f"put_sustained_{label}",
        claim=f"put 30 GB of {body_size} B, 1 thread, with {FREE_MB:,} MB for the page cache",
        command="put",
        spec={
            "bodySize": body_size,
            "messages": SUSTAINED_BYTES // (body_size + RECORD_OVERHEAD_BYTES),
            "queues": QUEUES,
            "batch": 1,
            "config": config,
            "freeMemoryMb": FREE_MB,
            "openBeforeSeconds": OPEN_BEFORE_S,
        },
        smoke={
            "messages": 6_400,
            "config": {**SMALL_FILES, **config},
            "freeMemoryMb": None,
            "openBeforeSeconds": 0,
        },
        measures=(
            Measure("put", "seconds", "msg/s", Verdict.RATE, 1.0),
            Measure("put until dispatched", "dispatchedSeconds", "msg/s", Verdict.RATE),
        ),
        warm_up_part=0.02,
    )


def _put_latency(name: str, what: str, **settings: Any) -> Scenario:
    """Return paced puts on a disk that another process keeps busy, each of them timed."""
    config = {"mappedFileSizeCommitLog": POOLED_FILE_BYTES, **settings}
    return Scenario(
        name=name,
        claim=f"put 1 KiB at 20,000/s while another process fills the same disk, {what}",
        command="put_latency",
        spec={
            "bodySize": 1024,
            "messages": 600_000,
            "queues": QUEUES,
            "batch": 1,
            "rate": 20_000,
            "busyBytes": 1024 * 1024 * 1024,
            "config": config,
        },
        smoke={
            "messages": 6_400,
            "busyBytes": 8 * 1024 * 1024,
            "config": {**SMALL_FILES, **settings},
        },
        measures=(
            Measure("put p50", "p50Microseconds", "us", Verdict.MOST),
            Measure("put p99", "p99Microseconds", "us", Verdict.MOST),
            Measure("put p99.9", "p999Microseconds", "us", Verdict.MOST),
            Measure("put most", "mostMicroseconds", "us", Verdict.MOST),
        ),
        against_java=False,
    )


def _kill_loss(label: str, rate: int) -> Scenario:
    pool = {"mappedFileSizeCommitLog": POOLED_FILE_BYTES, **POOL}
    return Scenario(
        name=f"kill_loss_pool_{label}",
        claim=f"kill -9 of puts of 1 KiB into a transient store pool, {label.replace('_', ' ')}",
        command="kill_loss",
        spec={
            "bodySize": 1024,
            "messages": 100_000,
            "queues": QUEUES,
            "rate": rate,
            "killAfterSeconds": 2.0,
            "config": pool,
        },
        smoke={"killAfterSeconds": 0.1, "config": {**SMALL_FILES, **POOL}},
        measures=(Measure("lost", "lost", "messages", Verdict.MOST),),
        against_java=False,
    )


def _get(name: str, *, body_size: int, messages: int) -> Scenario:
    return Scenario(
        name=name,
        claim=f"get 32 messages of {body_size} B at a time, copied into one buffer",
        command="get",
        spec={
            "bodySize": body_size,
            "messages": messages,
            "queues": QUEUES,
            "pages": 60_000,
            "warmUpPages": 60_000,
            "config": {},
        },
        smoke={"messages": 6_400, "pages": 400, "warmUpPages": 100, "config": SMALL_FILES},
        measures=(Measure("get", "seconds", "msg/s", Verdict.RATE, 1.0),),
    )


def _restart(name: str, *, body_size: int, messages: int, clean: bool) -> Scenario:
    how = "a clean stop" if clean else "a crash"
    return Scenario(
        name=name,
        claim=f"restart after {how}, {messages:,} messages of {body_size} B, until all are read",
        command="restart",
        spec={
            "bodySize": body_size,
            "messages": messages,
            "queues": QUEUES,
            "clean": clean,
            "config": {},
        },
        smoke={"messages": 6_400, "config": SMALL_FILES},
        measures=(
            Measure("restart", "seconds", "s", Verdict.SPEED_UP, 2.0 if clean else 5.0),
        ),
    )  # fmt: skip


_PUT_SIZES = (("100b", 100, 3_000_000, 1.0), ("1k", 1024, 750_000, 1.5), ("4k", 4096, 220_000, 2.0))

_ALL = (
    *(
        _put(
            f"put_{label}_async",
            f"put single Messages of {size} B, 1 thread, ASYNC_FLUSH",
            body_size=size,
            messages=messages,
            target=target,
        )
        for label, size, messages, target in _PUT_SIZES
    ),
    *(
        _put(
            f"put_prepared_{label}_async",
            f"the same with topic and properties encoded once ({size} B)",
            body_size=size,
            messages=messages,
            target=max(1.0, target),
            encoded=True,
        )
        for label, size, messages, target in _PUT_SIZES
    ),
    *(
        _put(
            f"put_{'client_' if encoded else ''}batch_32_{label}",
            f"put batches of 32 {'client-encoded messages' if encoded else 'Messages'}, {size} B",
            body_size=size,
            messages=messages,
            target=2.5 if encoded else 1.0,
            encoded=encoded,
            batch=32,
        )
        for encoded in (False, True)
        for label, size, messages in (("100b", 100, 1_600_000), ("1k", 1024, 640_000))
    ),
    _put(
        "put_sync_1_thread",
        "put Messages of 1 KiB with SYNC_FLUSH from 1 thread",
        body_size=1024,
        messages=6_000,
        target=1.0,
        config=SYNC,
    ),
    _put(
        "put_sync_16_threads",
        "put Messages of 1 KiB with SYNC_FLUSH from 16 threads",
        body_size=1024,
        messages=48_000,
        target=1.1,
        threads=16,
        config=SYNC,
    ),
    _get("get_32_copied_100b", body_size=100, messages=512_000),
    _get("get_32_copied_1k", body_size=1024, messages=256_000),
    _get("get_32_copied_4k", body_size=4096, messages=128_000),
    _put(
        "put_pool_1k_async",
        "put single Messages of 1 KiB, 1 thread, into a transient store pool",
        body_size=1024,
        messages=750_000,
        target=None,
        config={"mappedFileSizeCommitLog": POOLED_FILE_BYTES, **POOL},
    ),
    _put_latency("put_latency_busy_disk", "without a pool"),
    _put_latency("put_latency_busy_disk_pool", "with a transient store pool", **POOL),
    _kill_loss("100_a_second", 100),
    _kill_loss("20000_a_second", 20_000),
    _kill_loss("as_fast_as_it_goes", 0),
    _sustained("1k", 1024),
    _sustained("4k", 4096),
    Scenario(
        name="query_key",
        claim="query one message by its key, among 256,000 of 1 KiB",
        command="query",
        spec={
            "bodySize": 1024,
            "messages": 256_000,
            "queues": QUEUES,
            "queries": 20_000,
            "warmUpQueries": 10_000,
            "config": {},
        },
        smoke={"messages": 6_400, "queries": 500, "warmUpQueries": 100, "config": SMALL_FILES},
        measures=(
            Measure("query p50", "p50Microseconds", "us", Verdict.LATENCY, 1.3),
            Measure("query p99", "p99Microseconds", "us", Verdict.LATENCY),
        ),
    ),
    _restart("restart_crash_100b", body_size=100, messages=1_500_000, clean=False),
    _restart("restart_crash_1k", body_size=1024, messages=700_000, clean=False),
    _restart("restart_clean_100b", body_size=100, messages=1_500_000, clean=True),
    _restart("restart_clean_1k", body_size=1024, messages=700_000, clean=True),
    Scenario(
        name="scan_crc_1k",
        claim="scan a CommitLog file of 1 KiB messages with CRC, one core",
        command="scan",
        spec={"bodySize": 1024, "messages": 800_000, "queues": QUEUES, "config": {}},
        smoke={"messages": 6_400, "config": SMALL_FILES},
        measures=(Measure("scan", "bytesPerSecondGb", "GB/s", Verdict.LEAST, 2.0),),
        against_java=False,
    ),
    Scenario(
        name="open_100_files_1000_queues",
        claim="open a store of 100 CommitLog files of 64 MiB and 1,000 queues",
        command="open",
        spec={
            "bodySize": 65_536,
            "messages": 101_500,
            "queues": 1_000,
            "config": {"mappedFileSizeCommitLog": 64 * 1024 * 1024},
            "expectedFiles": 100,
        },
        smoke={
            "messages": 1_000,
            "queues": 100,
            "config": {**SMALL_FILES, "mappedFileSizeCommitLog": 8 * 1024 * 1024},
            "expectedFiles": 8,
        },
        measures=(
            Measure("open", "seconds", "s", Verdict.MOST, 2.0),
            Measure("anonymous memory", "anonymousMb", "MB", Verdict.MOST, 300.0),
        ),
        against_java=False,
    ),
    Scenario(
        name="catch_up_1k",
        claim="a slave that has 8 messages follows a log of 4 GB of 1 KiB, until it can be read",
        command="catch_up",
        spec={
            "bodySize": 1024,
            "messages": CATCH_UP_BYTES // (1024 + RECORD_OVERHEAD_BYTES),
            "queues": QUEUES,
            "batch": 1,
            "config": {},
        },
        # A slave of 4.9 first says where it is when a heartbeat is due.
        smoke={"messages": 6_400, "config": {**SMALL_FILES, "haSendHeartbeatInterval": 200}},
        measures=(Measure("catch up", "megabytesPerSecond", "MB/s", Verdict.RATE, 1.0),),
    ),
    Scenario(
        name="delay_100000_waiting",
        claim="deliver 100,000 delayed messages of 1 KiB, put at 10,000/s, all waiting at once",
        command="delay",
        spec={
            "bodySize": 1024,
            "messages": 100_000,
            "queues": QUEUES,
            "rate": 10_000,
            "idleSeconds": 5,
            "config": {"messageDelayLevel": "20s"},
        },
        smoke={
            "messages": 800,
            "idleSeconds": 0.2,
            "config": {**SMALL_FILES, "messageDelayLevel": "2s"},
        },
        measures=(
            Measure("late p50", "p50Milliseconds", "ms", Verdict.LATENCY, 1.0),
            Measure("late p99", "p99Milliseconds", "ms", Verdict.MOST, 200.0),
            Measure("idle", "idleMilliseconds", "ms/s", Verdict.MOST, 10.0),
        ),
    ),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def select(names: list[str]) -> list[Scenario]:
    """Return the scenarios whose name is, or begins with, one of `names`; all for none.

    Raises
    ------
    KeyError
        A name that fits no scenario.
    """
    if not names:
        return list(SCENARIOS.values())
    chosen: dict[str, Scenario] = {}
    for name in names:
        fitting = [SCENARIOS[name]] if name in SCENARIOS else [
            scenario for known, scenario in SCENARIOS.items() if known.startswith(name)
        ]  # fmt: skip
        if not fitting:
            raise KeyError(name)
        chosen.update((scenario.name, scenario) for scenario in fitting)
    return list(chosen.values())
