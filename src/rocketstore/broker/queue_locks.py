"""Locks of queues, by which orderly consumers keep others away (codes 41 and 42).

Law: a queue is one client's at a time, until it says so or was silent for `LOCK_LIFE_MS`. Neither a
pull nor an offset asks for the lock: clients keep to it. Locks whose life is over are let go of,
and there are never more than `MOST_LOCKS`, whatever groups a client makes up; in 4.9 they stay.

How derived: RebalanceLockManager and AdminBrokerProcessor.lockBatchMQ of 4.9.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.parts import Part, Parts
from rocketstore.format.metadata_json import decode_body, encode_body
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header
from rocketstore.remoting.requests import Call, Row

LOCK_LIFE_MS: Final = 60_000
"""rocketmq.broker.rebalance.lockMaxLiveTime; clients lock again every 20 s."""

MOST_LOCKS: Final = 100_000
"""Of all groups; beyond it no queue is given that nobody has."""


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """A queue of a broker, as bodies name it."""

    broker_name: str
    queue_id: int
    topic: str


class _LockBody(msgspec.Struct, rename="camel"):
    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class _Lock(NamedTuple):
    client_id: str
    since_ms: int


class QueueLocks(Part):
    """The locks, by group and queue; those that were renewed last come last."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._locks: OrderedDict[tuple[str, MessageQueue], _Lock] = OrderedDict()

    def rows(self) -> list[Row]:
        """Return what is served."""
        return [
            Row(BrokerRequest.LOCK_BATCH_MQ, Header, None, self.lock),
            Row(BrokerRequest.UNLOCK_BATCH_MQ, Header, None, self.unlock),
        ]

    def lock(self, _header: Header, call: Call) -> Command:
        """Give a client those of the queues that are free, or its own already."""
        wanted = decode_body(call.command.body, _LockBody)
        now_ms = self._monotonic()
        while self._locks and now_ms - next(iter(self._locks.values())).since_ms > LOCK_LIFE_MS:
            self._locks.popitem(last=False)
        given = []
        for queue in dict.fromkeys(wanted.mq_set):
            key = wanted.consumer_group, queue
            held = self._locks.get(key)
            is_free = held is None and len(self._locks) < MOST_LOCKS
            if is_free or (held is not None and held.client_id == wanted.client_id):
                self._locks[key] = _Lock(wanted.client_id, now_ms)
                self._locks.move_to_end(key)
                given.append(queue)
        return reply(body=encode_body({"lockOKMQSet": given}))

    def unlock(self, _header: Header, call: Call) -> Command:
        """Take back a client's locks."""
        wanted = decode_body(call.command.body, _LockBody)
        for queue in wanted.mq_set:
            key = wanted.consumer_group, queue
            held = self._locks.get(key)
            if held is not None and held.client_id == wanted.client_id:
                del self._locks[key]
        return reply()
