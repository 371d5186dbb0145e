"""How fast dispatch is, and what it costs the writer.

``python bench/micro/dispatch.py [--messages 400000] [--directory DIR]`` prints

- the rate of the dispatching thread alone, per body size: queue entries and two index items for
  each message, into new files and again into files that are in memory (process CPU time and wall),
- one writer in a loop with and without the dispatching thread, alternately (wall, medians).

Kernels are compiled before. The files lie in a temporary directory that is removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.format.index_file import IndexLayout
from rocketstore.scan import kernels
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.queues.queue_table import ConsumeQueueTable

if TYPE_CHECKING:
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue

TOPICS, QUEUES = 20, 8
BODY_SIZES = (100, 1024, 4096)
LARGEST_LOG_BYTES = 1 << 30
ROUNDS = 5


def settings() -> StoreConfig:
    return StoreConfig(mapped_file_size_commit_log=1 << 28, retention=False)


def messages(count: int, body_size: int) -> list[Message]:
    bodies = [os.urandom(body_size) for _ in range(16)]
    return [
        Message(
            topic=f"BenchTopic{number % TOPICS:02d}",
            body=bodies[number % 16],
            tags=f"Tag{number % 5}",
            keys=(f"order-{number:08d}",),
            unique_key=f"7F00000100002A9F{number:016X}",
        )
        for number in range(count)
    ]


def put_all(store: MessageStore, batch: list[Message]) -> float:
    put = store.put
    began = time.perf_counter()
    for number, message in enumerate(batch):
        put(message, number // TOPICS % QUEUES)
    return time.perf_counter() - began


def dispatch_alone(root: Path, count: int, body_size: int) -> None:
    """Put first, then dispatch everything with one dispatcher of its own, twice."""
    count = min(count, LARGEST_LOG_BYTES // (body_size + 200))
    with MessageStore.open(root / "store", settings(), threads=False) as store:
        put_all(store, messages(count, body_size))
        log_files, end = store._parts.log.files, store.max_physical_offset  # noqa: SLF001
        derived = root / "derived"
        disk = Disk()
        table = ConsumeQueueTable(
            derived / "consumequeue", 6_000_000, disk=disk, log_min_offset=lambda: 0
        )
        index = IndexService(
            derived / "index", IndexLayout(5_000_000, 20_000_000), disk=disk, clock=lambda: 0
        )
        dispatcher = Dispatcher(log_files, table, index, readable_limit=lambda: end, delays_ms={})
        first_part = end // 5
        dispatcher.dispatch_range(0, _boundary(log_files, first_part))
        _report(f"{body_size} B, steady state", dispatcher, dispatcher.dispatched_offset, end)
        _report(f"{body_size} B, again by force", dispatcher, 0, end)


def _boundary(log_files: MappedFileQueue, offset: int) -> int:
    file = log_files.find(offset)
    at = kernels.resync(file.array, offset - file.base, file.size, file.base, file.size)
    return file.base + int(at)


def _report(case: str, dispatcher: Dispatcher, start: int, stop: int) -> None:
    began, began_cpu = time.perf_counter(), time.process_time()
    counts = dispatcher.dispatch_range(start, stop)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    millions = counts.records / 1e6
    print(
        f"{case:<28}{millions / cpu_s:8.2f} M msg/s CPU{millions / wall_s:8.2f} M msg/s wall"
        f"{(stop - start) / wall_s / 1e9:8.2f} GB/s",
        flush=True,
    )


def beside_a_writer(root: Path, count: int, body_size: int) -> None:
    """One writer that never pauses, with the dispatching thread and without it."""
    batch = messages(count, body_size)
    writer = {True: [], False: []}
    until_dispatched, cpu = [], {True: [], False: []}
    for number in range(2 * ROUNDS):
        with_dispatch = number % 2 == 1
        store = MessageStore.open(root / f"beside{number}", settings())
        # Queues and index file are made before the clock runs.
        put_all(store, batch[: TOPICS * QUEUES])
        store.wait_dispatched()
        if not with_dispatch:
            store._services.dispatch.stop()  # noqa: SLF001 - the one thing that differs
        began, began_cpu = time.perf_counter(), time.thread_time()
        took_s = put_all(store, batch)
        cpu[with_dispatch].append(time.thread_time() - began_cpu)
        writer[with_dispatch].append(took_s)
        if with_dispatch:
            store.wait_dispatched()
            until_dispatched.append(time.perf_counter() - began)
        store.close()
        shutil.rmtree(root / f"beside{number}")
    for with_dispatch, label in ((False, "writer alone"), (True, "writer beside dispatch")):
        times = writer[with_dispatch]
        print(
            f"{body_size} B, {label:<24}{count / statistics.median(times) / 1e3:8.0f} k msg/s wall"
            f" (best {count / min(times) / 1e3:.0f}),"
            f"{count / statistics.median(cpu[with_dispatch]) / 1e3:8.0f} k msg/s of its own CPU",
            flush=True,
        )
    print(
        f"{body_size} B, until dispatched{'':<12}"
        f"{count / statistics.median(until_dispatched) / 1e3:8.0f} k msg/s wall",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--directory", type=Path, default=None, help="default: a temporary one")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        for body_size in BODY_SIZES:
            dispatch_alone(root / str(body_size), arguments.messages, body_size)
            shutil.rmtree(root / str(body_size))
        for body_size in BODY_SIZES[:2]:
            beside_a_writer(root, arguments.messages, body_size)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
