"""Sends: messages, batches, half messages, replies of consumers (codes 10, 310, 320, 324, 325).

A message goes to the store as its bytes came: only what its properties ask of a broker is looked
for. What a put waits for (a sync, a slave) the event loop does not: the call is kept, and answered
when `AsyncPuts` says what became of the message; one sync serves all puts of a turn.

Law: the checks stand in 4.9's order, and the first that fails answers.

How derived: SendMessageProcessor, AbstractSendMessageProcessor (spec B24.1) and
ReplyMessageProcessor of 4.9.
"""

from __future__ import annotations

import contextlib
import random
import re
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.broker.codes import BrokerAnswer, BrokerRequest
from rocketstore.broker.parts import Part, Parts
from rocketstore.broker.refused import Refused, failure, forbidden, refusal
from rocketstore.broker.send_headers import AnySend, PushHeader, SendHeader, SendHeaderV2, SendReply
from rocketstore.broker.topics import not_there, topic_text
from rocketstore.errors import FormatError, RefusedMessageError, RocketStoreError
from rocketstore.format.properties import DELAY, decode_properties, encode_properties
from rocketstore.message import TRANSACTION_MASK, Message
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.requests import LATER, Call, Later, Row, request
from rocketstore.rules.half_messages import PRODUCER_GROUP
from rocketstore.rules.topics import DEAD_LETTER_PREFIX, NOT_SENT_TO, RETRY_PREFIX, name_fault
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.tables.topic_settings import PERM_WRITE

if TYPE_CHECKING:
    from rocketstore.format.metadata_json import SubscriptionGroup, TopicConfig
    from rocketstore.message_store import MessageStore
    from rocketstore.transaction.transactions import Transactions

# What stands before a name is looked at after it, which is twice as fast.
_TAKEN_OUT: Final = re.compile(
    rb"(?:WAIT|CLUSTER)\x01(?<![^\x02]WAIT\x01)(?<![^\x02]CLUSTER\x01)[^\x02]*(?:\x02|$)"
)
_UNIQUE: Final = re.compile(rb"(?<![^\x02])UNIQ_KEY\x01[^\x02]*(?:\x02|$)")
_WAITS_NOT: Final = re.compile(rb"(?:\x02|^)WAIT\x01(?!(?i:true)(?:\x02|$))")
_DELAYED: Final = re.compile(rb"(?:\x02|^)DELAY\x01\+?0*[1-9]")
_HALF: Final = re.compile(rb"(?:\x02|^)TRAN_MSG\x01(?i:true)(?:\x02|$)")

HONOURS_LIMIT_FROM: Final = 121
"""Version of a client from which its maxReconsumeTimes counts (MQVersion.V3_4_9)."""

_REPLIES: Final = (BrokerRequest.SEND_REPLY_MESSAGE, BrokerRequest.SEND_REPLY_MESSAGE_V2)

PUSH_MS: Final = 10_000
"""How long a client may take to answer that it has the reply (Broker2Client.callClient)."""

MULTI_TAGS: Final = {"MULTI_TAG": 0x2}
"""Bit of sysFlag by the filter type of a message's topic (MessageSysFlag.MULTI_TAGS_FLAG)."""

_ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit {}B, msg properties length limit 32KB."
)
_UNAVAILABLE: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's "
    "disk is full, messages are put to the slave, message store has been shut down, etc."
)
_TOO_MANY_QUEUES: Final = (
    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq "
    "consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
)
FAILURES: Final = {
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: (
        ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.",
    ),
    PutMessageStatus.MESSAGE_ILLEGAL: (BrokerAnswer.MESSAGE_ILLEGAL, _ILLEGAL),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: (BrokerAnswer.MESSAGE_ILLEGAL, _ILLEGAL),
    PutMessageStatus.SERVICE_NOT_AVAILABLE: (BrokerAnswer.SERVICE_NOT_AVAILABLE, _UNAVAILABLE),
    PutMessageStatus.OS_PAGECACHE_BUSY: (
        ResponseCode.SYSTEM_ERROR, "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (
        ResponseCode.SYSTEM_ERROR, _TOO_MANY_QUEUES,
    ),
    PutMessageStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"),
}  # fmt: skip
"""Code and remark of what was not stored (SendMessageProcessor.handlePutMessageResult)."""

STORED: Final = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: BrokerAnswer.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: BrokerAnswer.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: BrokerAnswer.SLAVE_NOT_AVAILABLE,
}
"""Code of what is in the log."""

# CPython 3.11 finds a member of an enumeration by a call of a function.
_PUT_OK: Final = PutMessageStatus.PUT_OK
_SUCCESS: Final = ResponseCode.SUCCESS


def retry_limit(group: SubscriptionGroup, wanted: int | None, call: Call) -> int:
    """Return after how many tries a message is a dead letter: the client says, or its group."""
    honours = call.command.version >= HONOURS_LIMIT_FROM
    return wanted if honours and wanted is not None else group.retry_max_times


def not_stored(result: PutResult, store: MessageStore) -> Refused:
    """Return the refusal of what a store did not take; it may name the longest body."""
    code, remark = FAILURES[result.status]
    return Refused(code, remark.format(store.config.max_message_size), result.detail)


def _own_properties(text: bytes) -> tuple[bytes, bool]:
    """Return properties without those that are the broker's, and whether the message waits."""
    if b"CLUSTER\1" not in text and text.count(b"WAIT\1") == 1:
        before, usual, after = text.partition(b"\2WAIT\1true\2")
        if usual:  # at a quarter of what the expressions cost
            return before + b"\2" + after, True
    return _TAKEN_OUT.sub(b"", text), not _WAITS_NOT.search(text)


class Sending(Part):
    """Puts what clients send."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        settings = self._settings
        self._waits = self._store.attached["async_puts"].waits
        self._transactions: Transactions = self._store.attached["transactions"]
        self._cluster = f"CLUSTER\1{settings.broker_cluster_name}".encode()
        self._next_cluster = b"\2" + self._cluster
        traced = str(settings.trace_on).lower()
        self._always = {"MSG_REGION": settings.region_id, "TRACE_ON": traced}

    def rows(self) -> list[Row]:
        """Return what is served."""
        return [
            Row(BrokerRequest.SEND_MESSAGE, SendHeader, SendReply, self.send),
            Row(BrokerRequest.SEND_MESSAGE_V2, SendHeaderV2, SendReply, self.send),
            Row(BrokerRequest.SEND_BATCH_MESSAGE, SendHeaderV2, SendReply, self.send),
            Row(BrokerRequest.SEND_REPLY_MESSAGE, SendHeader, SendReply, self.send),
            Row(BrokerRequest.SEND_REPLY_MESSAGE_V2, SendHeaderV2, SendReply, self.send),
        ]

    def send(self, header: AnySend, call: Call) -> Command | Later | None:
        """Put a message or a batch, and answer when it is as safe as it is meant to be."""
        try:
            answer = self._answered(header, call)
        except RefusedMessageError as error:
            # Compatible: a batch that is cut off is an exception in 4.9.
            is_cut = header.batch and isinstance(error.__cause__, FormatError)
            code = ResponseCode.SYSTEM_ERROR if is_cut else BrokerAnswer.MESSAGE_ILLEGAL
            answer = failure(Refused(code, str(error)), call)
        except (Refused, RocketStoreError) as error:
            answer = failure(error, call)
        if isinstance(answer, Later):
            return answer
        if self._topics.is_made:
            return self._answer_late(call, answer, is_new=True)
        answer.fields = answer.fields or self._always
        return answer

    def _answered(self, header: AnySend, call: Call) -> Command | Later:
        topic = self._topic_of(header, call)
        name, queue_id = header.topic, header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(topic.write_queue_nums)  # noqa: S311 - any queue
        told_queue_id = queue_id  # Compatible: that of the request, also of a dead letter
        sys_flag = header.sys_flag | MULTI_TAGS.get(topic.topic_filter_type, 0)
        text = (header.properties or "").encode()
        if call.command.code in _REPLIES:
            return self._push(header, call, queue_id, sys_flag, text)
        block, waits = _own_properties(text)
        if header.batch:
            result = self._put_batch(header, call, queue_id, sys_flag, text)
            return self._settled(call, queue_id, result, waits=self._waits and waits)
        is_delayed = b"DELAY\1" in text and _DELAYED.search(text) is not None
        if is_delayed:  # Compatible: these keep WAIT, as half messages do
            block = text
        block += self._cluster if not block or block.endswith(b"\2") else self._next_cluster
        if name.startswith(RETRY_PREFIX):
            topic, queue_id, block = self._given_back(header, call, topic, queue_id, block)
            name = topic.topic_name
            sys_flag = header.sys_flag | MULTI_TAGS.get(topic.topic_filter_type, 0)
        is_retried = is_delayed and (header.reconsume_times or 0) > 0
        if b"TRAN_MSG" in text and _HALF.search(text) and not is_retried:
            if self._settings.reject_transaction_message:
                what = f"the broker[{self._settings.broker_ip1}] sending transaction message"
                raise forbidden(what)
            result = self._put_half(header, call, name, queue_id, sys_flag)
        else:
            result = self._put_single(header, call, name, queue_id, sys_flag, block)
        return self._settled(call, told_queue_id, result, waits=self._waits and waits)

    def _push(
        self, header: AnySend, call: Call, queue_id: int, sys_flag: int, text: bytes
    ) -> Later:
        """Push a consumer's reply to the client that waits for it, and store it then.

        Compatible: it is stored with the properties that came, be it taken or not. The answer says
        nothing of that, so it waits for no sync. Source: ReplyMessageProcessor.
        """
        name, is_new = decode_properties(text).get("REPLY_TO_CLIENT", ""), self._topics.is_made
        asker, now_ms = self._clients.named.get(name), self._store.clock()
        said = msgspec.structs.asdict(header) | {
            "properties": f"PUSH_REPLY_TIME\1{now_ms}\2{header.properties}",
            "born_host": call.peer.address, "store_host": self._store.config.store_host,
            "store_timestamp": now_ms,
        }  # fmt: skip
        pushed = PushHeader(**{field: said[field] for field in PushHeader.__struct_fields__})
        code, body = BrokerRequest.PUSH_REPLY_MESSAGE_TO_CLIENT, call.command.body

        async def push() -> str | None:
            if not name:
                return "reply message properties[REPLY_TO_CLIENT] is null"
            if asker is None:
                return f"push reply message fail, channel of <{name}> not found."
            with contextlib.suppress(RocketStoreError):  # it is gone, or silent
                told = await asker.peer.ask(request(code, pushed, body), PUSH_MS)
                if told.code == _SUCCESS:
                    return None
            return f"push reply message to {name}fail."

        def store(fault: str | None) -> Later:
            result = self._put_single(header, call, header.topic, queue_id, sys_flag, text)
            nowhere = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0", **self._always}
            fields = self._stored(queue_id, result, call).fields or nowhere
            failed = fault and refusal(Refused(ResponseCode.SYSTEM_ERROR, fault), call, fields)
            return self._answer_late(call, failed or reply(fields=fields), is_new=is_new)

        return self._loop.once_asked(call, push(), store)

    # --- what may not be sent -------------------------------------------------------------------

    def _topic_of(self, header: AnySend, call: Call) -> TopicConfig:
        """Return the topic of a send; raises where it may not be sent to (msgCheck)."""
        name, settings = header.topic, self._settings
        until = settings.start_accept_send_request_time_stamp
        if until and self._store.clock() < until:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}")
        known = self._topics.get(name)
        if not settings.broker_permission & PERM_WRITE and known is not None and known.order:
            raise forbidden(f"the broker[{settings.broker_ip1}] sending message")
        if known is None and (fault := name_fault(name)) is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, fault)
        if name in NOT_SENT_TO:
            remark = f"Sending message to topic[{name}] is forbidden."
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        topic = known or self._topics.for_send(
            name, header.default_topic, header.default_topic_queue_nums, is_unit=header.unit_mode
        )
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, not_there(name))
        written, read = topic.write_queue_nums, topic.read_queue_nums
        if header.queue_id >= max(written, read) or (header.queue_id < 0 and written <= 0):
            what = f"request queueId[{header.queue_id}] is illegal, {topic_text(topic)}"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} Producer: {call.peer.address}")
        return topic

    def _given_back(
        self, header: AnySend, call: Call, topic: TopicConfig, queue_id: int, block: bytes
    ) -> tuple[TopicConfig, int, bytes]:
        """Return where a message goes that a consumer sends to its group's retry topic itself.

        After the last try it is for the dead letters; with its properties. Source:
        SendMessageProcessor.handleRetryAndDLQ.
        """
        name = header.topic[len(RETRY_PREFIX) :]
        group = self._topics.group(name, f"subscription group not exist, {name}")
        limit = retry_limit(group, header.max_reconsume_times, call)
        if (header.reconsume_times or 0) < limit:
            return topic, queue_id, block
        kept = decode_properties(block)
        kept.pop(DELAY, None)  # it comes at once
        return self._topics.for_group(DEAD_LETTER_PREFIX + name), 0, encode_properties(kept)

    # --- what is put ----------------------------------------------------------------------------

    def _settled(
        self, call: Call, queue_id: int, result: PutResult, *, waits: bool
    ) -> Command | Later:
        """Return the reply to a put, now or when it is safe."""
        if not (waits and result.is_stored):
            return self._stored(queue_id, result, call)
        is_new = self._topics.is_made
        self._loop.when_safe(
            call,
            result,
            lambda safe: self._stored(queue_id, safe, call),
            lambda answer: self._answer_late(call, answer, is_new=is_new),
        )
        return LATER

    def _answer_late(self, call: Call, answer: Command, *, is_new: bool) -> Later:
        answer.fields = answer.fields or self._always
        self._registration.then(lambda: call.answer(answer), is_new=is_new)  # clients ask for it
        return LATER

    def _stored(self, queue_id: int, result: PutResult, call: Call) -> Command:
        code = _SUCCESS if result.status is _PUT_OK else STORED.get(result.status)
        if code is None:
            return refusal(not_stored(result, self._store), call)
        # Compatible: the queue of a delayed message is its own, the offset that in its level's.
        place = {"queueId": str(queue_id), "queueOffset": str(result.queue_offset)}
        return reply(code, fields={"msgId": result.message_id, **place, **self._always})

    def _put_single(
        self, header: AnySend, call: Call, topic: str, queue_id: int, sys_flag: int, block: bytes
    ) -> PutResult:
        return self._store.put_encoded(
            topic, queue_id, call.command.body, block, flag=header.flag, sys_flag=sys_flag,
            born_timestamp_ms=header.born_timestamp, born_host=call.peer.address,
            reconsume_times=header.reconsume_times or 0, wait_flush=not self._waits,
        )  # fmt: skip

    def _put_batch(
        self, header: AnySend, call: Call, queue_id: int, sys_flag: int, text: bytes
    ) -> PutResult:
        # Compatible: the properties of the request are those of every message, WAIT among them.
        if b"UNIQ_KEY\1" in call.command.body:
            text = _UNIQUE.sub(b"", text)  # each has its own, which its sender was told
        is_ended = not text or text.endswith(b"\2")
        return self._store.put_client_batch(
            header.topic, queue_id, call.command.body,
            properties=text + (self._cluster if is_ended else self._next_cluster),
            sys_flag=sys_flag, born_timestamp_ms=header.born_timestamp,
            born_host=call.peer.address, reconsume_times=header.reconsume_times or 0,
            wait_flush=not self._waits,
        )  # fmt: skip

    def _put_half(
        self, header: AnySend, call: Call, topic: str, queue_id: int, sys_flag: int
    ) -> PutResult:
        # Compatible: WAIT, which other messages lose, stays.
        properties = decode_properties((header.properties or "").encode() + self._next_cluster)
        message = Message(
            topic=topic, body=call.command.body, properties=properties, flag=header.flag,
            sys_flag=sys_flag & ~TRANSACTION_MASK, born_timestamp_ms=header.born_timestamp,
            born_host=call.peer.address, reconsume_times=header.reconsume_times or 0,
        )  # fmt: skip
        group = properties.get(PRODUCER_GROUP) or header.producer_group  # 4.9 looks at no other
        return self._transactions.begin(message, queue_id, group, wait_flush=not self._waits).put
