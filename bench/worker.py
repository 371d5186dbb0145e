"""rocketstore's side of the scenarios: the counterpart of ``Bench.java``, command by command.

Each command times inside this process, on a store directory of its own, and counts afterwards what
the store holds; a wrong count is an error, not a figure. Kernels are compiled before any clock.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import re
import shutil
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.kill_loss import lost_by_a_kill
from bench.latency import busy_disk, timed_puts
from bench.messages import HOST, POOL_SIZE, TOPIC, BenchMessages, key
from rocketstore import GetMessageStatus, Message, MessageStore, PutMessageStatus
from rocketstore.config.sources import from_properties
from rocketstore.scan.scanner import scan_window

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 32
PUT_OK = PutMessageStatus.PUT_OK
NANOS = 1e9


_PREPARED: list[tuple[MessageStore, Callable[[], None]]] = []
"""The store that is open for the next put, and what puts."""


def bench_prepare_put(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Open a store and make what is to be put."""
    messages = BenchMessages(spec)
    store = _open(spec, path)
    _PREPARED.append((store, _put_all(store, messages, spec)))
    gc.collect()
    return {}


def bench_put(spec: dict[str, Any], _path: Path) -> dict[str, Any]:
    """Put all messages; the clock stops after the last put, and again after its dispatch."""
    store, put_all = _PREPARED.pop()
    with store:
        begin = time.perf_counter_ns()
        put_all()
        stored = time.perf_counter_ns()
        store.wait_dispatched()
        dispatched = time.perf_counter_ns()
        _check_count(store, spec)
        if spec.get("openBeforeSeconds") and store.min_physical_offset == 0:
            raise AssertionError("retention has removed nothing")
    return {
        "seconds": (stored - begin) / NANOS,
        "dispatchedSeconds": (dispatched - begin) / NANOS,
    }


def bench_get(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Read pages of 32 from every queue in turn, each copied into one buffer as for a pull."""
    with _filled(spec, path) as store:
        queues = spec["queues"]
        pages_per_queue = spec["messages"] // queues // PAGE
        _read_pages(store, queues, pages_per_queue, spec["warmUpPages"])
        gc.collect()
        begin = time.perf_counter_ns()
        read = _read_pages(store, queues, pages_per_queue, spec["pages"])
        end = time.perf_counter_ns()
        if read != spec["pages"] * PAGE:
            raise AssertionError(f"read {read} messages")
    return {"seconds": (end - begin) / NANOS}


def _read_pages(store: MessageStore, queues: int, pages_per_queue: int, pages: int) -> int:
    get_raw = store.get_raw
    found = GetMessageStatus.FOUND
    read = 0
    for i in range(pages):
        offset = i // queues % pages_per_queue * PAGE
        page = get_raw(TOPIC, i % queues, offset, PAGE)
        if page.status is not found:
            raise AssertionError(f"get gave {page.status}")
        read += page.message_count
    return read


def bench_query(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Query one key at a time, at random; every key has at least one message."""
    with _filled(spec, path) as store:
        _query_keys(store, spec, spec["warmUpQueries"], seed=1)
        gc.collect()
        nanos = sorted(_query_keys(store, spec, spec["queries"], seed=2))
    return {
        "p50Microseconds": nanos[len(nanos) // 2] / 1e3,
        "p99Microseconds": nanos[len(nanos) * 99 // 100] / 1e3,
    }


def _query_keys(store: MessageStore, spec: dict[str, Any], queries: int, *, seed: int) -> list[int]:
    chosen = random.Random(seed)
    nanos = []
    for _ in range(queries):
        wanted = key(chosen.randrange(min(POOL_SIZE, spec["messages"])))
        begin = time.perf_counter_ns()
        found = store.find(TOPIC, key=wanted, max_messages=PAGE)
        nanos.append(time.perf_counter_ns() - begin)
        if not found:
            raise AssertionError(f"nothing found for {wanted}")
    return nanos


def bench_fill(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Fill a store for a restart: closed in order, or left as it is for a kill."""
    store = _filled(spec, path)
    if spec["clean"]:
        store.close()
    else:
        _LEFT_OPEN.append(store)
    return {}


_LEFT_OPEN: list[MessageStore] = []
"""Keeps a store that waits for its kill from being collected, and so closed."""


def bench_restart(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Open what ``bench_fill`` left; the clock stops when every message can be read."""
    gc.collect()
    begin = time.perf_counter_ns()
    store = _open(spec, path)
    store.wait_dispatched()
    end = time.perf_counter_ns()
    _check_count(store, spec)
    store.close()
    return {"seconds": (end - begin) / NANOS}


def bench_scan(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Scan a CommitLog with CRC into columns, from the page cache."""
    with _filled(spec, path) as store:
        size = store.max_physical_offset
    size_read = 0
    records = 0
    files = [(int(f.name), np.fromfile(f, np.uint8)) for f in sorted(path.glob("commitlog/*"))]
    begin = time.perf_counter_ns()
    for base, content in files:
        stop = min(len(content), size - base)
        if stop <= 0:
            continue
        for batch in scan_window(content, base=base, stop=stop):
            records += len(batch.columns)
        size_read += stop
    seconds = (time.perf_counter_ns() - begin) / NANOS
    if records != spec["messages"]:
        raise AssertionError(f"scanned {records} records of {spec['messages']}")
    return {"seconds": seconds, "bytesPerSecondGb": size_read / seconds / 1e9}


def bench_open(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Open a store of many files and queues after a clean stop, in a process of its own."""
    _filled(spec, path).close()
    files = len(list(path.glob("commitlog/*")))
    if files < spec["expectedFiles"]:
        raise AssertionError(f"made {files} CommitLog files of {spec['expectedFiles']}")
    # A child forked now would share this process's memory: the figure needs a fresh one.
    from support.line_process import LineProcess  # noqa: PLC0415 - only here

    with LineProcess([sys.executable, "-m", "bench.worker"]) as fresh:
        answer = fresh.ask("bench_open_only", spec=spec, path=str(path))
        fresh.exit()
    return answer


def bench_open_only(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Open, and say how long it took and how much anonymous memory the process has."""
    begin = time.perf_counter_ns()
    store = _open(spec, path)
    store.wait_dispatched()
    seconds = (time.perf_counter_ns() - begin) / NANOS
    _check_count(store, spec)
    anonymous_mb = _anonymous_memory_mb()
    store.close()
    return {"seconds": seconds, "anonymousMb": anonymous_mb}


def bench_delay(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Put delayed messages at a rate, wait, and see how late each is delivered.

    All of them wait before the first is due; between the last put and the first delivery the
    processor time of the whole process is taken.
    """
    count, idle_s = spec["messages"], spec["idleSeconds"]
    with _open(spec, path) as store:
        bodies = BenchMessages(spec).bodies
        begin = time.perf_counter()
        for i in range(count):
            message = Message(
                topic=TOPIC, body=bodies[i % len(bodies)], keys=key(i), properties={"DELAY": "1"}
            )
            if store.put(message, i % spec["queues"]).status is not PUT_OK:
                raise AssertionError(f"put {i} was refused")
            if i % 100 == 0:
                time.sleep(max(0.0, begin + i / spec["rate"] - time.perf_counter()))
        store.wait_dispatched()
        time.sleep(1.0)  # dispatched is not yet flushed
        if store.max_offset(TOPIC, 0):
            raise AssertionError("a message was due before all were put")
        cpu_before = time.process_time()
        time.sleep(idle_s)
        idle_ms = (time.process_time() - cpu_before) * 1000 / idle_s
        for queue_id in range(spec["queues"]):
            if not store.wait_for(TOPIC, queue_id, count // spec["queues"] - 1, timeout_s=60):
                raise AssertionError("not all messages were delivered")
        late_ms = np.array(_lateness_ms(store, spec["queues"]))
    if len(late_ms) != count:
        raise AssertionError(f"{len(late_ms)} deliveries of {count} messages")
    return {
        "p50Milliseconds": float(np.percentile(late_ms, 50)),
        "p99Milliseconds": float(np.percentile(late_ms, 99)),
        "idleMilliseconds": idle_ms,
    }


def bench_put_latency(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Put at a rate, each put timed, while another process writes to the same disk and syncs."""
    count, rate = spec["messages"], spec["rate"]
    path.mkdir(parents=True, exist_ok=True)
    with _open(spec, path / "store") as store:
        with busy_disk(path / "busy", spec["busyBytes"]):
            nanos = timed_puts(store, BenchMessages(spec), count, rate)
        store.wait_dispatched()
        _check_count(store, spec)
    late = np.percentile(nanos, (50, 99, 99.9, 100)) / 1e3
    names = ("p50Microseconds", "p99Microseconds", "p999Microseconds", "mostMicroseconds")
    return dict(zip(names, map(float, late), strict=True))


def bench_kill_loss(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Kill a writer, and count what is gone."""
    return {"lost": lost_by_a_kill(spec, partial(_open, spec, path))}


def bench_fill_pair(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Make a master's store, and one that has its first messages only.

    An empty slave of 4.9 would get the last file, not the whole log (K-H4).
    """
    first = {**spec, "messages": spec["queues"]}
    _filled(first, path / "begun").close()
    shutil.copytree(path / "begun", path / "master")
    rest = {**spec, "messages": spec["messages"] - spec["queues"]}
    with _open(spec, path / "master") as store:
        _put_all(store, BenchMessages(rest), rest)()
        store.wait_dispatched()
        _check_count(store, spec)
    return {}


def bench_serve(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Open a store for a slave, until ``bench_serve_end``; say where its log ends."""
    _SERVED.append(_open(spec, path))
    return {"end": _SERVED[0].max_physical_offset}


def bench_serve_end(_spec: dict[str, Any], _path: Path) -> dict[str, Any]:
    """Close what is served."""
    _SERVED.pop().close()
    return {}


def bench_follow(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Follow a master; the clock runs from the first bytes until every message can be read.

    How long a slave waits before it connects, up to 5 s for one of 4.9, is another matter.
    """
    with _open(spec, path) as store:
        first = start = store.max_physical_offset
        while start == first:
            time.sleep(_POLL_S)
            start = store.max_physical_offset
        begin = time.perf_counter_ns()
        while store.max_physical_offset < spec["end"]:
            time.sleep(_POLL_S)
        store.wait_dispatched()
        seconds = (time.perf_counter_ns() - begin) / NANOS
        _check_count(store, spec)
    return {"megabytesPerSecond": (spec["end"] - start) / seconds / 1e6}


_SERVED: list[MessageStore] = []
_POLL_S = 0.002


def _lateness_ms(store: MessageStore, queues: int) -> list[int]:
    """Return how long after it was due each message was stored again."""
    due = {}
    for _, entry in store.queue_entries("SCHEDULE_TOPIC_XXXX", 0):
        waiting = store.at_physical_offset(entry.physical_offset)
        assert waiting is not None
        due[waiting.keys] = entry.tags_code
    late = []
    for queue_id in range(queues):
        for _, entry in store.queue_entries(TOPIC, queue_id):
            copy = store.at_physical_offset(entry.physical_offset)
            assert copy is not None
            late.append(copy.store_timestamp_ms - due[copy.keys])
    return late


def _anonymous_memory_mb() -> float:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    match = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
    assert match is not None
    return int(match.group(1)) / 1024


def _open(spec: dict[str, Any], path: Path) -> MessageStore:
    settings = {name: str(value) for name, value in spec["config"].items()}
    if "fileReservedTime" in settings:
        settings["retention"] = "true"  # a store that a program opens has none unless it asks
    return MessageStore.open(path, from_properties(settings))


def _filled(spec: dict[str, Any], path: Path) -> MessageStore:
    messages = BenchMessages(spec)
    store = _open(spec, path)
    _put_all(store, messages, spec)()
    store.wait_dispatched()
    _check_count(store, spec)
    return store


def _put_all(
    store: MessageStore, messages: BenchMessages, spec: dict[str, Any]
) -> Callable[[], None]:
    """Return the function to time; what is encoded once is encoded here."""
    count, encoded, threads = spec["messages"], spec.get("encoded"), spec.get("threads", 1)
    if messages.batch > 1:
        return (_client_batches if encoded else _batches)(store, messages, count)
    if encoded:
        return _prepared(store, messages, count)
    if threads > 1:
        return lambda: _from_threads(store, messages, count, threads)
    return lambda: _put_singles(store, messages, range(count))


def _put_singles(store: MessageStore, messages: BenchMessages, numbers: range) -> None:
    """Put the messages of some numbers; the loop is inlined, as a program's own would be."""
    put = store.put
    parts = itertools.islice(messages.parts(), numbers.start, numbers.stop, numbers.step)
    for body, tag, key_text, unique_key, queue_id in parts:
        message = Message(
            topic=TOPIC,
            body=body,
            tags=tag,
            keys=key_text,
            unique_key=unique_key,
            born_host=HOST,
        )
        status = put(message, queue_id).status
        if status is not PUT_OK:
            raise AssertionError(f"put gave {status}")


def _prepared(store: MessageStore, messages: BenchMessages, count: int) -> Callable[[], None]:
    prepared, put = messages.prepared(store), store.put_prepared

    def put_prepared() -> None:
        pool, bodies = itertools.cycle(prepared), itertools.cycle(messages.bodies)
        queues = itertools.cycle(range(messages.queues))
        for _, message, body, queue_id in zip(range(count), pool, bodies, queues, strict=False):
            status = put(message, body, queue_id).status
            if status is not PUT_OK:
                raise AssertionError(f"put gave {status}")

    return put_prepared


def _batches(store: MessageStore, messages: BenchMessages, count: int) -> Callable[[], None]:
    size, queues = messages.batch, messages.queues

    def put_batches() -> None:
        singles = messages.singles()
        _check_all(
            store.put_batch(list(itertools.islice(singles, size)), number % queues).status
            for number in range(count // size)
        )

    return put_batches


def _client_batches(store: MessageStore, messages: BenchMessages, count: int) -> Callable[[], None]:
    batches = messages.encoded_batches()
    size, queues = messages.batch, messages.queues
    return lambda: _check_all(
        store.put_client_batch(
            TOPIC, number % queues, batches[number % len(batches)], born_host=HOST
        ).status
        for number in range(count // size)
    )


def _from_threads(store: MessageStore, messages: BenchMessages, count: int, threads: int) -> None:
    failures: list[BaseException] = []

    def put_every(first: int) -> None:
        try:
            _put_singles(store, messages, range(first, count, threads))
        except BaseException as failure:  # noqa: BLE001 - handed to the caller's thread
            failures.append(failure)

    workers = [threading.Thread(target=put_every, args=(first,)) for first in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def _check_all(statuses: Any) -> None:
    for status in statuses:
        if status is not PUT_OK:
            raise AssertionError(f"put gave {status}")


def _check_count(store: MessageStore, spec: dict[str, Any]) -> None:
    count = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(spec["queues"]))
    if count != spec["messages"]:
        raise AssertionError(f"the store holds {count} messages, expected {spec['messages']}")


COMMANDS = {
    command.__name__: command
    for command in (
        bench_prepare_put,
        bench_put,
        bench_get,
        bench_query,
        bench_fill,
        bench_restart,
        bench_scan,
        bench_open,
        bench_open_only,
        bench_delay,
        bench_put_latency,
        bench_kill_loss,
        bench_fill_pair,
        bench_serve,
        bench_serve_end,
        bench_follow,
    )
}


def main() -> None:
    """Answer JSON lines until ``exit``."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints may mix with the answers
    for line in sys.stdin:
        command = json.loads(line)
        if command["cmd"] == "exit":
            answers.write(json.dumps({"ok": True}) + "\n")
            return
        try:
            answer = COMMANDS[command["cmd"]](command["spec"], Path(command["path"]))
            answers.write(json.dumps({"ok": True, **answer}) + "\n")
        except Exception as failure:  # noqa: BLE001 - the other side reports it
            traceback.print_exc()
            answers.write(json.dumps({"ok": False, "error": repr(failure)}) + "\n")


if __name__ == "__main__":
    main()
