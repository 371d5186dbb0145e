"""SIGKILL while batches are put: each is there as a whole or not at all, at its numbers."""

import os
import signal
import subprocess
import sys

from support.batch_stores import BATCHES, mark, open_batches
from support.reading import pages_of
from support.repository import ROOT

WRITER = """
import sys
from rocketstore import Message, MessageStore, StoreConfig
config = StoreConfig.small(mapped_file_size_batch_queue=46 * 20, flush_interval_consume_queue=5,
                           flush_consume_queue_thorough_interval=10)
with MessageStore.open(sys.argv[1], config) as store:
    run, number = int(sys.argv[2]), 0
    while True:
        number += 1
        names = [f"{run}.{number}.{part}" for part in range(1 + number % 5)]
        result = store.put_batch([Message(topic="batches", body=name.encode()) for name in names])
        if number % 7 == 0:
            store.put(Message(topic="plain", body=b"p"))
        print(run, number, result.queue_offset, flush=True)
"""
KILLS = 4
LINES = 60


def test_killed_writers_leave_every_acknowledged_batch_whole(tmp_path):
    root = tmp_path / "store"
    mark(root, BATCHES)
    acknowledged: dict[int, list[str]] = {}
    for run in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(root), str(run)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for _ in range(LINES):
                _, number, offset = map(int, writer.stdout.readline().split())
                acknowledged[offset] = [f"{run}.{number}.{p}" for p in range(1 + number % 5)]
            os.kill(writer.pid, signal.SIGKILL)
            for line in writer.stdout:  # what it said before it died
                if line.endswith("\n") and len(line.split()) == 3:
                    _, number, offset = map(int, line.split())
                    acknowledged[offset] = [f"{run}.{number}.{p}" for p in range(1 + number % 5)]
    with open_batches(root) as store:
        pages = [*pages_of(store, BATCHES)]
    assert not any(page.skipped_entries for page in pages)
    found = [message.body.decode() for page in pages for message in page.messages]
    for offset, names in acknowledged.items():
        assert found[offset : offset + len(names)] == names
    assert len(found) == len(set(found))
    for name in found:  # a batch is there with all its messages
        head, _, _ = name.rpartition(".")
        assert f"{head}.{int(head.partition('.')[2]) % 5}" in found
