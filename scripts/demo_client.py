"""The demo's client: the package `rocketmq` of PyPI, which wraps RocketMQ's client in C++.

Usage: demo_client.py NAME_SERVER. It sends, receives what it sent, and sends a little more.
"""

import sys
import time

from rocketmq.client import Message, Producer, PushConsumer
from rocketmq.exceptions import ProducerSendSyncFailed

NAME_SERVER = sys.argv[1]
TOPIC, GROUP = "boarding", "gate"
COUNT, MORE = 1_000, 200
PATIENCE_S = 60


def send(first: int, count: int) -> float:
    """Send so many messages; return how long that took."""
    producer = Producer("boarding-pass-scanners")
    producer.set_namesrv_addr(NAME_SERVER)
    producer.start()
    began = time.monotonic()
    for number in range(first, first + count):
        message = Message(TOPIC)
        message.set_keys(f"seat-{number}")
        message.set_body(f"passenger {number} is on board")
        _send_one(producer, message, began + PATIENCE_S)
    took_s = time.monotonic() - began
    producer.shutdown()  # before a consumer's: that ends what they share
    return took_s


def _send_one(producer: Producer, message: Message, until: float) -> None:
    """Send a message, again where a thread of the client's own is just connecting to the broker."""
    while True:
        try:
            producer.send_sync(message)
        except ProducerSendSyncFailed as failure:
            if "No route info" not in str(failure) or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def receive(count: int) -> tuple[int, float]:
    """Consume so many messages; return how many different ones came, and how long that took."""
    keys: set[bytes] = set()
    consumer = PushConsumer(GROUP)
    consumer.set_namesrv_addr(NAME_SERVER)
    consumer.subscribe(TOPIC, lambda message: keys.add(message.keys))
    began = time.monotonic()
    consumer.start()
    while len(keys) < count and time.monotonic() - began < PATIENCE_S:
        time.sleep(0.01)
    took_s = time.monotonic() - began
    time.sleep(6)  # the client notes what was taken after the call above, and tells it each 5 s
    consumer.shutdown()  # its offsets go to the broker
    return len(keys), took_s


took_s = send(0, COUNT)
print(f"sent       {COUNT:,} messages to topic {TOPIC} in {took_s:.1f} s")
received, took_s = receive(COUNT)
print(f"received   {received:,} of them as group {GROUP} in {took_s:.1f} s")
send(COUNT, MORE)
print(f"sent       {MORE} more, which nobody has received yet")
sys.exit(received != COUNT)
