"""The PyPI client `rocketmq` 0.4.4 behind a line protocol: one JSON object in, one out.

Usage: client.py NAME_SERVER. It keeps its logs in HOME. The body "fail" is consumed at its second
try. See tests/support/other_clients.py for the commands.
"""

import json
import queue
import sys
import time

from rocketmq.client import Message, Producer, PushConsumer
from rocketmq.exceptions import ProducerSendSyncFailed


class Client:
    def __init__(self, name_server):
        self.name_server = name_server
        self.producer = None
        self.consumers = {}
        self.got = queue.Queue()

    def send(self, topic, bodies):
        if self.producer is None:
            self.producer = Producer("python-producers", timeout=60_000)
            self.producer.set_namesrv_addr(self.name_server)
            self.producer.start()
        statuses = []
        for body in bodies:
            message = Message(topic)
            message.set_tags("a")
            message.set_keys("k")
            message.set_body(body)
            statuses.append(int(self.sent(message).status))
        return {"statuses": statuses}

    def sent(self, message):
        """Send again where a thread of the client is just connecting, so that it finds no route."""
        for _ in range(1000):
            try:
                return self.producer.send_sync(message)
            except ProducerSendSyncFailed as failure:
                if "No route info" not in str(failure):
                    raise
                time.sleep(0.02)
        raise TimeoutError("it never found a route")

    def consume(self, topic, name):
        def consumed(message):
            body = bytes(message).decode()
            place = [message.tags.decode(), message.queue_id, name]
            self.got.put([body, message.reconsume_times, *place])
            if body == "fail" and message.reconsume_times == 0:
                raise ValueError("tried again")

        consumer = self.consumers[name] = PushConsumer("python-consumers")
        consumer.set_instance_name(name)
        consumer.set_namesrv_addr(self.name_server)
        consumer.subscribe(topic, consumed, "a || b")
        consumer.start()
        return {}

    def received(self, count, seconds):
        found, until = [], time.monotonic() + seconds
        while len(found) < count and (left := until - time.monotonic()) > 0:
            try:
                found.append(self.got.get(timeout=left))
            except queue.Empty:
                break
        return {"messages": found}

    def close(self, name):
        self.consumers.pop(name).shutdown()
        return {}

    def exit(self):
        for one in self.consumers.values():
            one.shutdown()
        if self.producer is not None:
            self.producer.shutdown()
        return {}


def main():
    client = Client(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked.pop("cmd")
        try:
            result = {"ok": True, **getattr(client, name)(**asked)}
        except Exception as failure:  # noqa: BLE001 - the answer says it
            result = {"ok": False, "error": repr(failure)}
        sys.stdout.write(f"{json.dumps(result)}\n")
        sys.stdout.flush()
        if name == "exit":
            break


main()
