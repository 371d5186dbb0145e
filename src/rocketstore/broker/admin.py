"""What administrators ask of a broker: settings, tables, and how far groups are.

Every answer is found out by a thread, not the loop, which makes topics and groups.

How derived: AdminBrokerProcessor of 4.9 (codes 17, 21, 26, 28, 200 to 202, 208,
300 and 305).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.broker.client_manage import GroupHeader
from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.counts import DayTotals, GivenCounts
from rocketstore.broker.parts import Part, Parts
from rocketstore.broker.queue_locks import MessageQueue
from rocketstore.broker.refused import Refused
from rocketstore.format.metadata_json import (
    SubscriptionGroup,
    TopicConfig,
    decode_body,
    encode_body,
)
from rocketstore.nameserver.headers import TopicHeader
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32
from rocketstore.remoting.requests import LATER, Call, Later, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_NO_QUEUES: Final = {
    f"{pool}ThreadPoolQueue{what}": value
    for pool, capacity in (("send", 10_000), ("pull", 100_000), ("query", 20_000))
    for what, value in (("Size", "0"), ("HeadWaitTimeMills", "0"), ("Capacity", str(capacity)))
} | {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
"""Of the queues in which requests wait in 4.9: here none does. mqadmin shows some of them."""

NOT_SET: Final = "not set any response code"
"""The remark of a reply that 4.9 has not filled in: to 17, and to the rollback of a transaction."""

_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""Of TopicFilterType; a broker of 4.9 would not start with a table that has another."""


class CreateTopicHeader(Header):
    """A topic as it shall be."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str | None = None
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False


class ConsumeStatsHeader(GroupHeader):
    """A group, and one of its topics, or all."""

    topic: str | None = None


class VersionReply(Header):
    """Of which version settings are."""

    version: str


class Admin(Part):
    """Answers administrators; `given` is what groups were given of late."""

    def __init__(self, parts: Parts, given: GivenCounts) -> None:
        super().__init__(parts)
        self._given = given
        self._started_ms = parts.store.clock()
        self._totals = DayTotals(parts.store)
        parts.loop.every(1.0, self._totals.note_midnight)

    def rows(self) -> list[Row]:
        """Return what is served."""
        code, aside = BrokerRequest, self._loop.served_aside
        return [
            Row(code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, None, self.settle_topic),
            Row(code.GET_ALL_TOPIC_CONFIG, Header, None, aside(self.all_topics)),
            Row(code.GET_BROKER_CONFIG, Header, VersionReply, aside(self.config)),
            Row(code.GET_BROKER_RUNTIME_INFO, Header, None, aside(self.runtime)),
            Row(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Header, None, self.settle_group),
            Row(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Header, None, aside(self.all_groups)),
            Row(code.GET_TOPIC_STATS_INFO, TopicHeader, None, aside(self.topic_stats)),
            Row(code.GET_CONSUME_STATS, ConsumeStatsHeader, None, aside(self.consume_stats)),
            Row(code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader, None, aside(self.groups_of)),
            Row(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Header, None, aside(self.system_topics)),
        ]

    def all_topics(self, _header: Header, _call: Call) -> Command:
        """Return every topic."""
        return reply(fields={}, body=encode_body(self._topics.table.content))

    def all_groups(self, _header: Header, _call: Call) -> Command:
        """Return every consumer group."""
        return reply(body=encode_body(self._topics.group_table))

    def system_topics(self, _header: Header, _call: Call) -> Command:
        """Return the topics that are not for programs to make."""
        return reply(body=encode_body({"topicList": self._topics.reserved}))

    def groups_of(self, header: TopicHeader, _call: Call) -> Command:
        """Return the groups that consume a topic, or have offsets of it."""
        online = [*self._clients.consumers.items()]
        groups = {name for name, group in online if header.topic in group.subscriptions}
        groups.update(self._store.consumer_offsets.groups_of(header.topic))
        return reply(body=encode_body({"groupList": groups}))

    def settle_topic(self, header: CreateTopicHeader, call: Call) -> Command | Later:
        """Make a topic or change it, and tell the name servers."""
        fault = self._topics.fault(header.topic, header.read_queue_nums, header.write_queue_nums)
        if fault is None and self._topics.is_reserved(header.topic):
            fault = f"The topic[{header.topic}] is conflict with system topic."
        if header.topic_filter_type not in _FILTER_TYPES:
            fault = fault or f"No such topicFilterType: {header.topic_filter_type}"
        if fault is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, fault)
        self._topics.settle(
            TopicConfig(
                topic_name=header.topic, read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums, perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0, order=header.order,
            )
        )  # fmt: skip
        # Compatible: 4.9 forgets to take the remark out of its reply.
        self._registration.then(lambda: call.answer(reply(remark=NOT_SET)))
        return LATER

    def settle_group(self, _header: Header, call: Call) -> Command:
        """Make a consumer group, or change it."""
        group = decode_body(call.command.body, SubscriptionGroup)
        fault = self._topics.fault(group.group_name, group.retry_queue_nums, what="group")
        if fault is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, fault)
        self._topics.settle(group)
        return reply()

    def config(self, _header: Header, _call: Call) -> Command:
        """Return the settings of broker and store as a ``broker.conf`` has them."""
        own = msgspec.to_builtins(self._settings) | msgspec.to_builtins(self._store.config)
        lines = [f"{key}={_setting(one)}\n" for key, one in own.items() if one is not None]
        version = f'{{"counter":0,"timestamp":{self._started_ms}}}'
        return reply(fields={"version": version}, body="".join(lines).encode())

    def runtime(self, _header: Header, _call: Call) -> Command:
        """Return what broker and store tell of themselves."""
        accepts_from = str(self._settings.start_accept_send_request_time_stamp)
        own = self._totals.told() | {**_NO_QUEUES, "startAcceptSendRequestTimeStamp": accepts_from}
        return reply(body=encode_body({"table": self._store.runtime_info() | own}))

    # --- how far everything is ------------------------------------------------------------------

    def topic_stats(self, header: TopicHeader, _call: Call) -> Command:
        """Return how long each queue of a topic is, and when it got its last message."""
        if (topic := self._topics.get(header.topic)) is None:
            return reply(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        store, broker, rows = self._store, self._settings.broker_name, []
        for queue_id in range(topic.write_queue_nums):
            end = store.max_offset(topic.topic_name, queue_id)
            row = {
                "lastUpdateTimestamp": self._stored_ms(topic.topic_name, queue_id, end - 1),
                "maxOffset": end,
                "minOffset": max(store.min_offset(topic.topic_name, queue_id), 0),
            }
            rows.append((MessageQueue(broker, queue_id, topic.topic_name), row))
        return reply(body=_queues(rows, ""))

    def consume_stats(self, header: ConsumeStatsHeader, _call: Call) -> Command:
        """Return how far a group is in each queue of its topics."""
        broker, rows, per_second = self._settings.broker_name, [], 0.0
        for topic in self._topics_of(header):
            per_second += self._given.per_second(topic.topic_name, header.consumer_group)
            for queue_id in range(topic.read_queue_nums):
                name = topic.topic_name
                offset = self._store.consumer_offsets.get(name, header.consumer_group, queue_id)
                row = {
                    "brokerOffset": self._store.max_offset(name, queue_id),
                    "consumerOffset": offset or 0,
                    "lastTimestamp": self._stored_ms(name, queue_id, (offset or 0) - 1),
                }
                rows.append((MessageQueue(broker, queue_id, name), row))
        return reply(body=_queues(rows, f'"consumeTps":{per_second},'))

    def _topics_of(self, header: ConsumeStatsHeader) -> Iterator[TopicConfig]:
        consumed = self._store.consumer_offsets.topics_of(header.consumer_group)
        names = [header.topic] if header.topic else consumed
        group = self._clients.consumers.get(header.consumer_group)
        wanted = {} if group is None else group.subscriptions  # none where it pulls by queue only
        # What the group consumed once, and does not any more, is left out.
        names = [name for name in names if not wanted or name in wanted]
        return filter(None, map(self._topics.get, names))

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        found = self._store.store_timestamp(topic, queue_id, offset) if offset >= 0 else None
        return 0 if found is None else found


def _queues(rows: Iterable[tuple[MessageQueue, dict[str, Any]]], more: str) -> bytes:
    """Return a table of queues, each of which is a key; `more` are members before it.

    The keys are bare, as 4.9 has them: no strict JSON, but every client's own reader takes it.
    """
    pairs = b",".join(b":".join(map(encode_body, row)) for row in rows)
    return b'{%b"offsetTable":{%b}}' % (more.encode(), pairs)


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
