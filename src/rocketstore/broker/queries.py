"""Messages by key and by offset (codes 12 and 33); a thread looks for them, not the loop.

How derived: QueryMessageProcessor of 4.9 (spec B24.3). Better than there:
keys are compared, so a message of another key that hashes alike is not in the answer.
"""

from __future__ import annotations

from typing import Final

from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.parts import Part
from rocketstore.format.record import encode_stored
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32, Int64
from rocketstore.remoting.requests import Call, Row

_UNIQUE: Final = "_UNIQUE_KEY_QUERY"
"""A field of the request, beside its header: the key is a unique one."""

UNIQUE_LIMIT: Final = 32
"""Messages that are looked for by a unique key (defaultQueryMaxNum)."""


class QueryHeader(Header):
    """A key, and between which times."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryReply(Header):
    """How far the index is."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewHeader(Header):
    """A physical offset."""

    offset: Int64


class Queries(Part):
    """Looks for messages."""

    def rows(self) -> list[Row]:
        """Return what is served."""
        code, aside = BrokerRequest, self._loop.served_aside
        return [
            Row(code.QUERY_MESSAGE, QueryHeader, QueryReply, aside(self.query)),
            Row(code.VIEW_MESSAGE_BY_ID, ViewHeader, None, aside(self.view)),
        ]

    def query(self, header: QueryHeader, call: Call) -> Command:
        """Return the messages of a key."""
        is_unique = (call.command.fields or {}).get(_UNIQUE) == "true"
        wanted = UNIQUE_LIMIT if is_unique else header.max_num
        most = min(wanted, self._store.config.max_msgs_num_batch)
        begin_ms, end_ms = header.begin_timestamp, header.end_timestamp
        found = self._store.find(
            header.topic, header.key, begin_ms=begin_ms, end_ms=end_ms, max_messages=most
        )
        found.sort(key=lambda one: one.physical_offset)
        last = found[-1] if found else None
        fields = {
            "indexLastUpdateTimestamp": str(last.store_timestamp_ms if last else 0),
            "indexLastUpdatePhyoffset": str(last.physical_offset if last else 0),
        }
        if not found:
            remark = "can not find message, maybe time range not correct"
            return reply(ResponseCode.QUERY_NOT_FOUND, remark, fields=fields)
        return reply(fields=fields, body=b"".join(map(encode_stored, found)))

    def view(self, header: ViewHeader, _call: Call) -> Command:
        """Return the message at an offset."""
        if (found := self._store.at_physical_offset(header.offset)) is None:
            remark = f"can not find message by the offset, {header.offset}"
            return reply(ResponseCode.SYSTEM_ERROR, remark)
        return reply(body=encode_stored(found))
