"""Topics that an administrator, or a client, makes by name (code 17).

How derived: AdminBrokerProcessor.updateAndCreateTopic of 4.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.refused import Refused
from rocketstore.format.metadata_json import TopicConfig
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32
from rocketstore.remoting.requests import LATER, Call, Later, Row

if TYPE_CHECKING:
    from rocketstore.broker.registration import Registration
    from rocketstore.broker.topics import Topics

NOT_SET: Final = "not set any response code"
"""The remark of a reply that 4.9 has not filled in, of which this request is one."""

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


class TopicAdmin:
    """Makes topics."""

    def __init__(self, topics: Topics, registration: Registration) -> None:
        self._topics = topics
        self._registration = registration

    def rows(self) -> list[Row]:
        """Return what is served."""
        return [Row(BrokerRequest.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, None, self.settle)]

    def settle(self, header: CreateTopicHeader, call: Call) -> Command | Later:
        """Make a topic or change it, and tell the name servers."""
        counts = header.read_queue_nums, header.write_queue_nums
        fault = self._topics.fault(header.topic, *counts)
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
