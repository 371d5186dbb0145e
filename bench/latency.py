"""Puts that are timed one by one, beside a process that keeps the disk busy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.messages import BenchMessages
    from rocketstore import MessageStore

PUT_OK = PutMessageStatus.PUT_OK

BUSY_DISK = """
import os, sys
path, size = sys.argv[1], int(sys.argv[2])
file, piece = os.open(path, os.O_RDWR | os.O_CREAT), os.urandom(8 << 20)
while True:
    for at in range(0, size, len(piece)):
        os.pwrite(file, piece, at)
    os.fsync(file)
"""
"""What another program on the same disk does: it fills the page cache, and has it written out."""


@contextlib.contextmanager
def busy_disk(path: Path, size: int) -> Iterator[None]:
    """Have another process write so many bytes to a file over and over, as long as a block runs."""
    command = [sys.executable, "-c", BUSY_DISK, str(path), str(size)]
    with subprocess.Popen(command) as writer:
        try:
            yield
        finally:
            writer.kill()


def timed_puts(
    store: MessageStore, messages: BenchMessages, count: int, rate: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the nanoseconds of each put; a late one does not put the next ones off."""
    nanos = np.zeros(count, np.int64)
    clock, put = time.perf_counter_ns, store.put
    start = time.perf_counter()
    for number, message in zip(range(count), messages.singles(), strict=False):
        began = clock()
        status = put(message, number % messages.queues).status
        nanos[number] = clock() - began
        if status is not PUT_OK:
            raise AssertionError(f"put {number} gave {status}")
        if number % 50 == 0:
            time.sleep(max(0.0, start + number / rate - time.perf_counter()))
    return nanos
