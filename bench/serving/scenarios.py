"""What both brokers are asked to do, and what is to be reached."""

from __future__ import annotations

from typing import Any, Final

from bench.scenario import Measure, Scenario, Verdict

RATE: Final = Verdict.RATE
LATENCY: Final = Verdict.LATENCY

_COSTS: Final = (
    Measure("broker's processor", "brokerMicroseconds", "us each", LATENCY),
    Measure("client's processor", "clientMicroseconds", "us each", LATENCY),
)


def _send_measures(rate: float, unit: str = "messages/s") -> tuple[Measure, ...]:
    return (
        Measure("rate", "messagesPerSecond", unit, RATE, rate),
        Measure("reply p50", "p50Microseconds", "us", LATENCY),
        Measure("reply p99", "p99Microseconds", "us", LATENCY, 1.0),
        *_COSTS,
    )


def _send(name: str, threads: int, body_size: int, rate: float) -> Scenario:
    return Scenario(
        f"send_{name}_{threads}",
        f"{threads} threads send messages of {body_size} B, each waits for its reply",
        "send",
        {"threads": threads, "bodySize": body_size, "batch": 1},
        _send_measures(rate),
    )


SCENARIOS: Final = (
    *(
        _send(name, threads, size, 1.5 if threads == 1 else 1.3)
        for name, size in (("128b", 128), ("1k", 1024))
        for threads in (1, 16, 64)
    ),
    Scenario(
        "batch_16",
        "8 threads send batches of 16 messages of 128 B; a request is a batch",
        "send",
        {"threads": 8, "bodySize": 128, "batch": 16},
        _send_measures(1.8),
    ),
    Scenario(
        "consume",
        "a new consumer reads 2,400,000 messages of 128 B that are there",
        "consume",
        {"messages": 2_400_000, "bodySize": 128},
        (Measure("rate", "messagesPerSecond", "messages/s", RATE, 1.5), *_COSTS),
        smoke={"messages": 2000},
    ),
    Scenario(
        "both",
        "16 threads send messages of 128 B while a consumer takes them",
        "both",
        {"threads": 16, "bodySize": 128, "batch": 1},
        (
            *_send_measures(1.3),
            Measure("delivered p50", "deliveredP50Milliseconds", "ms", LATENCY),
            Measure("delivered p99", "deliveredP99Milliseconds", "ms", LATENCY, 1.0),
        ),
    ),
)

START: Final = Scenario(
    "start",
    "an empty store, until the broker says that it is ready",
    "start",
    {},
    (Measure("ready", "seconds", "s", Verdict.SPEED_UP, 5.0),),
)
MEMORY: Final = Scenario(
    "memory",
    "resident after each of the scenarios",
    "memory",
    {},
    (
        Measure("resident", "VmRSS", "MB", LATENCY, 0.2),
        Measure("without pages of files", "RssAnon", "MB", LATENCY),
    ),
)
IDLE: Final = Scenario(
    "idle",
    "nothing is sent, and the client's producers are connected",
    "idle",
    {},
    (Measure("broker's processor", "idle", "ms/s", LATENCY),),
)
HELD: Final = Scenario(
    "held",
    "10,000 connections hold 100,000 pulls, ten of each queue; 100 messages a second wake ten each",
    "held",
    {"connections": 10_000, "pulls": 100_000, "queues": 10_000, "woken": 500, "wakes": 1500},
    (
        Measure("resident", "VmRSS", "MB", Verdict.MOST, 1000),
        Measure("woken p50", "p50Milliseconds", "ms", Verdict.MOST),
        Measure("woken p99", "p99Milliseconds", "ms", Verdict.MOST, 10),
        Measure("woken at last", "mostMilliseconds", "ms", Verdict.MOST),
        Measure("until all are held", "seconds", "s", Verdict.MOST),
        Measure("processor while all wait", "idle", "ms/s", Verdict.MOST),
    ),
    smoke={"connections": 100, "pulls": 1000, "queues": 100, "woken": 20, "wakes": 50},
    against_java=False,
)

ALL: Final = (START, *SCENARIOS, MEMORY, IDLE, HELD)

SHORT: Final = ("send_128b_16", "batch_16", "consume", "both", "memory", "held")
"""One of each kind."""


def specification(scenario: Scenario, *, smoke: bool, millis: int) -> dict[str, Any]:
    """Return what the client is asked."""
    return {"millis": millis, **scenario.specification(smoke=smoke)}
