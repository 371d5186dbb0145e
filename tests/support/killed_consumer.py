"""A process that puts and consumes, says on its output what it does, and is killed meanwhile.

Each message is in a light queue, too, which another group consumes.

Each line is written before the next step is taken: ``put N`` when a put was acknowledged, ``ack Q
O`` or ``back Q O`` before the message at an offset of a queue is acknowledged or given back.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocketstore import Message, MessageStore
from rocketstore.format.properties import INNER_MULTI_DISPATCH as NAMES
from support.configured_store import small_config

TOPIC: Final = "orders"
GROUP: Final = "billing"
LIGHT: Final = "%LMQ%all"
"""A light queue, and the group that consumes it."""

QUEUES: Final = 3
SAVE_INTERVAL_MS: Final = 10
"""Offsets are saved so often that kills come in the middle of it."""

CONFIG: Final = small_config(
    enable_multi_dispatch=True, enable_lmq=True, flush_consumer_offset_interval=SAVE_INTERVAL_MS
)

AHEAD: Final = 100
"""Messages that may wait for the consumers."""


def say(*words: object) -> None:
    """Write a line by one system call."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(root: str, first: int) -> None:
    """Put numbers from `first` on, and consume with two threads, for ever."""
    store = MessageStore.open(root, CONFIG)
    room = threading.Semaphore(AHEAD)

    def consume() -> None:
        with store.consume(TOPIC, GROUP) as consumer:
            held = []
            for number, message in enumerate(consumer):
                held.append(message)
                if len(held) < 4:
                    continue
                # Not in the order in which they came; by turns, so that no message stays for ever.
                done = held.pop(number % 4)
                if int(done.body) % 7 == 0:
                    say("back", done.queue, done.queue_offset)
                    done.give_back(1)
                else:
                    say("ack", done.queue, done.queue_offset)
                    done.ack()
                room.release()

    def consume_light() -> None:
        with store.consume(LIGHT, LIGHT) as consumer:
            for message in consumer:
                say("ack", message.queue, message.queue_offset)
                message.ack()

    for work in (consume, consume, consume_light):
        threading.Thread(target=work, daemon=True).start()
    number = first
    while True:
        room.acquire()
        message = Message(topic=TOPIC, body=b"%d" % number, properties={NAMES: LIGHT})
        store.put(message, number % QUEUES).raise_for_status()
        say("put", number)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
