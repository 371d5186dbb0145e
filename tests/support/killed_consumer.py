"""A process that puts and consumes, says on its output what it does, and is killed meanwhile.

Each line is written before the next step is taken: ``put N`` when a put was acknowledged, ``ack Q
O`` or ``back Q O`` before the message at an offset of a queue is acknowledged or given back.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocketstore import Message, MessageStore
from support.configured_store import small_config

TOPIC: Final = "orders"
GROUP: Final = "billing"
QUEUES: Final = 3
SAVE_INTERVAL_MS: Final = 10
"""Offsets are saved so often that kills come in the middle of it."""

AHEAD: Final = 100
"""Messages that may wait for the consumers."""


def say(*words: object) -> None:
    """Write a line by one system call."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(root: str, first: int) -> None:
    """Put numbers from `first` on, and consume with two threads, for ever."""
    config = small_config(flush_consumer_offset_interval=SAVE_INTERVAL_MS)
    store = MessageStore.open(root, config)
    room = threading.Semaphore(AHEAD)

    def consume() -> None:
        with store.consume(TOPIC, GROUP) as consumer:
            held = []
            for message in consumer:
                held.append(message)
                if len(held) < 4:
                    continue
                # Not in the order in which they came.
                done = held.pop(int(message.body) % 4)
                if int(done.body) % 7 == 0:
                    say("back", done.queue, done.queue_offset)
                    done.give_back(1)
                else:
                    say("ack", done.queue, done.queue_offset)
                    done.ack()
                room.release()

    for _ in range(2):
        threading.Thread(target=consume, daemon=True).start()
    number = first
    while True:
        room.acquire()
        store.put(Message(topic=TOPIC, body=b"%d" % number), number % QUEUES).raise_for_status()
        say("put", number)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
