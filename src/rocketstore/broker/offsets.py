"""Offsets: where a group goes on, how long a queue is, what stands there at a time.

How derived: ConsumerManageProcessor and AdminBrokerProcessor of 4.9 (codes 14, 15 and 29 to 32;
spec B24.4).
"""

from __future__ import annotations

from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.parts import Part
from rocketstore.consuming.group import is_consumed_from_the_beginning
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32, Int64
from rocketstore.remoting.requests import Call, Row, answered


class QueueHeader(Header):
    """A queue."""

    topic: str
    queue_id: Int32


class TimeHeader(QueueHeader):
    """A moment in a queue."""

    timestamp: Int64


class GroupQueueHeader(QueueHeader):
    """A group's place in a queue."""

    consumer_group: str


class CommitHeader(GroupQueueHeader):
    """Where a group goes on."""

    commit_offset: Int64


class OffsetReply(Header):
    """An offset in a queue."""

    offset: Int64


class TimestampReply(Header):
    """A store time."""

    timestamp: Int64


class Offsets(Part):
    """Answers what is asked about offsets."""

    def rows(self) -> list[Row]:
        """Return what is served."""
        code = BrokerRequest
        return [
            Row(code.QUERY_CONSUMER_OFFSET, GroupQueueHeader, OffsetReply, self.query),
            Row(code.UPDATE_CONSUMER_OFFSET, CommitHeader, None, self.commit),
            Row(code.GET_MAX_OFFSET, QueueHeader, OffsetReply, self.maximum),
            Row(code.GET_MIN_OFFSET, QueueHeader, OffsetReply, self.minimum),
            Row(code.SEARCH_OFFSET_BY_TIMESTAMP, TimeHeader, OffsetReply, self.search),
            Row(code.GET_EARLIEST_MSG_STORETIME, QueueHeader, TimestampReply, self.earliest),
        ]

    def query(self, header: GroupQueueHeader, _call: Call) -> Command:
        """Say where a group goes on; one that is new in a young queue begins at its beginning."""
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        known = self._store.consumer_offsets.get(topic, group, queue_id)
        if known is not None:
            return answered(OffsetReply(offset=known))
        if is_consumed_from_the_beginning(self._store, topic, queue_id):
            return answered(OffsetReply(offset=0))
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return reply(ResponseCode.QUERY_NOT_FOUND, remark, fields={})

    def commit(self, header: CommitHeader, _call: Call) -> Command:
        """Let a group go on at an offset, whatever it was before."""
        self._store.consumer_offsets.set(
            header.topic, header.consumer_group, header.queue_id, header.commit_offset
        )
        return answered(Header())

    def maximum(self, header: QueueHeader, _call: Call) -> Command:
        """Say where a queue ends; 0 for one that is not there."""
        return answered(OffsetReply(offset=self._store.max_offset(header.topic, header.queue_id)))

    def minimum(self, header: QueueHeader, _call: Call) -> Command:
        """Say where a queue begins."""
        return answered(OffsetReply(offset=self._store.min_offset(header.topic, header.queue_id)))

    def search(self, header: TimeHeader, _call: Call) -> Command:
        """Say what stands in a queue at a time."""
        queue = header.topic, header.queue_id
        found = self._store.offset_at(*queue, header.timestamp)
        # Compatible: later than all is the last message, and not the end.
        last = self._store.max_offset(*queue) - 1
        return answered(OffsetReply(offset=max(min(found, last), 0)))

    def earliest(self, header: QueueHeader, _call: Call) -> Command:
        """Say when the first message of a queue was stored; -1 where there is none."""
        found = self._store.earliest_timestamp(header.topic, header.queue_id)
        return answered(TimestampReply(timestamp=-1 if found is None else found))
