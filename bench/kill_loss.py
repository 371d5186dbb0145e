"""What a kill takes of the messages that were acknowledged."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

from bench.messages import TOPIC, BenchMessages
from rocketstore import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from rocketstore import MessageStore

    Open = Callable[[], AbstractContextManager[MessageStore]]

_COUNT = struct.Struct("=q")


def lost_by_a_kill(spec: dict[str, Any], open_store: Open) -> int:
    """Return how many acknowledged messages are gone after `kill -9` of their writer."""
    acknowledged = mmap.mmap(-1, _COUNT.size)  # which both processes see
    writer = os.fork()
    if not writer:
        try:
            with open_store() as store:
                _put_for_ever(store, spec, acknowledged)
        finally:
            os._exit(1)
    while not _COUNT.unpack_from(acknowledged)[0]:
        if os.waitpid(writer, os.WNOHANG)[0]:
            raise AssertionError("the writer ended by itself")
        time.sleep(0.01)
    time.sleep(spec["killAfterSeconds"])
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    with open_store() as store:
        store.wait_dispatched()
        found = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(spec["queues"]))
    return max(int(_COUNT.unpack_from(acknowledged)[0]) - found, 0)


def _put_for_ever(store: MessageStore, spec: dict[str, Any], acknowledged: mmap.mmap) -> None:
    rate, queues = spec["rate"], spec["queues"]
    start = time.perf_counter()
    for number, message in enumerate(BenchMessages(spec).singles()):
        status = store.put(message, number % queues).status
        if status is not PutMessageStatus.PUT_OK:
            raise AssertionError(f"put {number} gave {status}")
        _COUNT.pack_into(acknowledged, 0, number + 1)
        if rate and number % max(rate // 400, 1) == 0:
            time.sleep(max(0.0, start + number / rate - time.perf_counter()))
