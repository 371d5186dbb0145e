"""Send with the PyPI client `rocketmq` 0.4.4 and consume what was sent; a line of JSON each.

Usage: client.py NAME_SERVER DIRECTORY, where it keeps its logs. The body "fail" is consumed at its
second try.
"""

import json
import os
import sys
import time

NAME_SERVER, DIRECTORY = sys.argv[1:]
os.environ["HOME"] = DIRECTORY

from rocketmq.client import Message, Producer, PushConsumer  # noqa: E402 - it looks for HOME

SENT = ["one", "two", "fail"]
RECEIVED = []


def consumed(message):
    RECEIVED.append([bytes(message).decode(), message.reconsume_times, message.tags.decode()])
    if RECEIVED[-1][:2] == ["fail", 0]:
        raise ValueError("tried again")


def say(value):
    sys.stdout.write(f"{json.dumps(value)}\n")


def main():
    producer = Producer("python-producers")
    producer.set_namesrv_addr(NAME_SERVER)
    producer.start()
    results = []
    for body in SENT:
        message = Message("python")
        message.set_tags("a")
        message.set_keys("k")
        message.set_body(body)
        results.append(int(producer.send_sync(message).status))
    say(results)
    consumer = PushConsumer("python-consumers")
    consumer.set_namesrv_addr(NAME_SERVER)
    consumer.subscribe("python", consumed, "a || b")
    consumer.start()
    until = time.monotonic() + 120
    while len(RECEIVED) < len(SENT) + 1 and time.monotonic() < until:
        time.sleep(0.05)
    say(sorted(RECEIVED))
    consumer.shutdown()
    producer.shutdown()


main()
