"""Consumers are killed: no offset passes what was not acknowledged, and the rest comes again."""

import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from rocketstore import MessageStore
from rocketstore.rules.extra_queues import offset_in
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables.consumer_offsets import read_offsets
from rocketstore.units import system_clock_ms
from support import killed_consumer
from support.killed_consumer import CONFIG, GROUP, LIGHT, TOPIC
from support.reading import all_messages

CYCLES = 4
MOST_CYCLES = 12
"""On a busy machine no process may live until each group's offset is saved: more follow, of which
each lives twice as long."""
HOUR_MS = 3_600_000


def run_until_killed(root: Path, first: int, done_count: int) -> list[list[str]]:
    """Let a process work until it has ended so many messages; return all that it said."""
    command = [sys.executable, "-W", "ignore", killed_consumer.__file__, str(root), str(first)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while done_count and (line := process.stdout.readline()):
            lines.append(line)
            done_count -= not line.startswith(b"put")
        process.kill()
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [line.decode().split() for line in lines]


def test_killed_consumers_skip_nothing_and_get_the_rest_again(tmp_path):
    root, chance = tmp_path / "store", random.Random(7)
    put: set[int] = set()
    first = 0
    finished: dict[str, set[int]] = defaultdict(set)
    offsets: dict[str, int] = {}
    for cycle in range(MOST_CYCLES):
        if cycle >= CYCLES and offsets.get(f"{LIGHT}/0"):
            break
        done_count = chance.randrange(50, 600) << max(0, cycle - CYCLES)
        for line in run_until_killed(root, first, done_count):
            if line[0] == "put":
                put.add(int(line[1]))
            else:
                finished[line[1]].add(int(line[2]))
        first = max(put) + 2  # the next one may be in the log, and nobody heard of it
        offsets = {
            str(key): offset
            for group, key, offset in read_offsets(StoreLayout.of(root)).rows()
            if group in (GROUP, LIGHT)
        }
        for queue, offset in offsets.items():
            assert set(range(offset)) <= finished[queue], queue
    assert offsets.pop(f"{LIGHT}/0")
    assert any(offsets.values())
    # In an hour everything that was given back is due.
    clock = lambda: system_clock_ms() + HOUR_MS  # noqa: E731 - one line says more
    with MessageStore.open(root, CONFIG, threads=False, clock=clock) as store:
        store.wait_dispatched()
        assert store.delays is not None
        for _ in range(3):  # it finds its place, then delivers
            store.delays.turn()
            store.wait_dispatched()
        stored = {
            (str(key), offset_in(message, key)): int(message.body)
            for key in store.queues()
            for message in all_messages(store, *key)
        }
        light = {stored[f"{LIGHT}/0", offset] for offset in finished.pop(f"{LIGHT}/0")}
        with store.consume(LIGHT, LIGHT, max_unacknowledged=len(stored)) as consumer:
            assert put <= light | {int(message.body) for message in consumer}
        done = {stored[queue, offset] for queue, offsets in finished.items() for offset in offsets}
        copies = {number for (queue, _), number in stored.items() if queue.startswith("%RETRY%")}
        with store.consume(TOPIC, GROUP, max_unacknowledged=len(stored)) as consumer:
            rest = {int(message.body) for message in consumer}
        assert put <= done | rest
        # What was given back has a copy, unless the kill came before: then it comes again itself.
        assert {number for number in done if number % 7 == 0} <= copies | rest
        assert copies
