"""``rocketstore bench``: how fast this machine and disk are, in a store made for the purpose."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter, validators

from rocketstore.cli.options import (
    DEFAULTS,
    PATH,
    CommandOptions,
    StoreArgument,
    StoreSettings,
    must_exist,
)
from rocketstore.cli.output import print_object
from rocketstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.storage.store import BaseStore

app = App(name="bench")

QUEUES: Final = 8
PAGE_MESSAGES: Final = 32
_MOST_BYTES: Final = (1 << 31) - 1


@Parameter(name="*")
@dataclass(frozen=True)
class Workload:
    """What is put, and where.

    Parameters
    ----------
    messages
        How many.
    body_size
        Bytes of each body.
    directory
        Disk to measure; a temporary store is made below it and removed.
    """

    messages: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 200_000
    body_size: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=_MOST_BYTES))] = 1024
    directory: Annotated[Path | None, PATH, Parameter(name="--dir")] = None


@app.command
def put(*, workload: Workload | None = None, options: CommandOptions = DEFAULTS) -> None:
    """Put messages one by one, from one thread."""
    work = workload or Workload()
    with _temporary_store(work.directory, options) as store:
        took, latencies = _fill(store, work)
    latencies.sort()
    count = work.messages
    print_object(
        {
            "messages": count,
            "bodySize": work.body_size,
            "messagesPerSecond": round(count / took),
            "p50Micros": round(latencies[count // 2] / 1000, 1),
            "p99Micros": round(latencies[count * 99 // 100] / 1000, 1),
            "maxMicros": round(latencies[-1] / 1000, 1),
        },
        options.output,
    )


@app.command
def get(*, workload: Workload | None = None, options: CommandOptions = DEFAULTS) -> None:
    """Read pages of 32 raw records from a store just written."""
    work = workload or Workload()
    with _temporary_store(work.directory, options) as store:
        _fill(store, work)
        store.wait_dispatched()
        started = time.perf_counter()
        count = size = 0
        for queue_id in range(QUEUES):
            offset = 0
            while (page := store.get_raw("bench", queue_id, offset, PAGE_MESSAGES)).message_count:
                count += page.message_count
                size += len(page.records)
                offset = page.next_offset
        took = time.perf_counter() - started
    if count != work.messages:
        raise StoreError(f"read {count} of {work.messages} messages")
    print_object(
        {
            "messages": count,
            "bodySize": work.body_size,
            "messagesPerSecond": round(count / took),
            "megabytesPerSecond": round(size / took / 1e6),
        },
        options.output,
    )


@app.command
def scan(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> None:
    """Scan a store's CommitLog with checksums, twice: the second time its files are in memory."""
    from rocketstore.cli.log_scan import LogScan

    rates = []
    for _ in range(2):
        log = LogScan(store, options.load(store), None, None)
        started = time.perf_counter()
        records, size = log.count()
        rates.append(size / (time.perf_counter() - started) / 1e9)
    print_object(
        {
            "records": records,
            "bytes": size,
            "damagedBytes": log.damaged_bytes,
            "firstGigabytesPerSecond": round(rates[0], 2),
            "secondGigabytesPerSecond": round(rates[1], 2),
        },
        options.output,
    )


@contextmanager
def _temporary_store(directory: Path | None, settings: StoreSettings) -> Iterator[BaseStore]:
    if directory is not None:
        must_exist(directory)
    root = Path(tempfile.mkdtemp(prefix="rocketstore-bench-", dir=directory))
    try:
        with settings.open_for_writing(root) as store:
            yield store
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _fill(store: BaseStore, work: Workload) -> tuple[float, list[int]]:
    """Put the messages; return the seconds it took and each put's nanoseconds."""
    from rocketstore.message import Message

    body = b"x" * work.body_size
    latencies = []
    clock = time.perf_counter_ns
    started = clock()
    for number in range(work.messages):
        message = Message(topic="bench", body=body, tags="TagA", keys=f"key{number}")
        before = clock()
        result = store.put(message, number % QUEUES)
        latencies.append(clock() - before)
        result.raise_for_status()
    return (clock() - started) / 1e9, latencies
