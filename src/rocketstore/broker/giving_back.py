"""A message that a consumer could not consume: it comes again later, or is a dead letter (code 36).

How derived: SendMessageProcessor.asyncConsumerSendMsgBack of 4.9 (spec B4); what is put is that of
`consuming.giving_back`, which says what is better than there.
"""

from __future__ import annotations

import random

from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.parts import Part
from rocketstore.broker.refused import Refused, forbidden
from rocketstore.broker.sending import retry_limit
from rocketstore.consuming.giving_back import given_back
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32, Int64
from rocketstore.remoting.requests import LATER, Call, Later, Row
from rocketstore.rules.topics import RETRY_PREFIX
from rocketstore.storage.results import PutMessageStatus
from rocketstore.tables.topic_settings import PERM_WRITE


class GiveBackHeader(Header):
    """Which message a group gives back, and when it wants it again."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class GivingBack(Part):
    """Puts copies of messages that consumers give back."""

    def rows(self) -> list[Row]:
        """Return what is served."""
        return [Row(BrokerRequest.CONSUMER_SEND_MSG_BACK, GiveBackHeader, None, self.give_back)]

    def give_back(self, header: GiveBackHeader, call: Call) -> Later:
        """Put a copy; answered once the name servers know a topic that is new."""
        answer = self._answered(header, call)
        self._registration.then(lambda: call.answer(answer), is_new=self._topics.is_made)
        return LATER

    def _answered(self, header: GiveBackHeader, call: Call) -> Command:
        group = self._topics.group(header.group, f"subscription group not exist, {header.group}")
        if not self._settings.broker_permission & PERM_WRITE:
            raise forbidden(f"the broker[{self._settings.broker_ip1}] sending message")
        if group.retry_queue_nums <= 0:
            return reply()
        name = RETRY_PREFIX + header.group
        topic = self._topics.for_group(name, group.retry_queue_nums, is_unit=header.unit_mode)
        if not topic.perm & PERM_WRITE:
            raise forbidden(f"the topic[{name}] sending message")
        message = self._store.at_physical_offset(header.offset)
        if message is None:
            remark = f"look message by offset failed, {header.offset}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        limit = retry_limit(group, header.max_reconsume_times, call)
        copy = given_back(message, header.group, header.delay_level, limit)
        # As many queues as are read, and as the group wants; dead letters go to the first.
        count = min(group.retry_queue_nums, topic.read_queue_nums) if copy.topic == name else 1
        self._topics.for_group(copy.topic)
        result = self._store.put(copy, random.randrange(max(count, 1)))  # noqa: S311
        if result.status is PutMessageStatus.PUT_OK:
            return reply()
        raise Refused(ResponseCode.SYSTEM_ERROR, result.status.name, result.detail)
