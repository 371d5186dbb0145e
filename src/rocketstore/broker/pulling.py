"""Pulls: a page of a queue, or a wait for one (code 11).

A pull that finds nothing new and may wait is held (`held_pulls`); a message that dispatch has
entered into its queue wakes it. While any is held the loop dispatches itself, at most every two
milliseconds: to wake a thread for it costs more. While none is held, dispatch calls nothing here.

Law: the checks stand in 4.9's order. A pull is held once: woken, it is answered with whatever there
is.

How derived: PullMessageProcessor and NotifyMessageArrivingListener of 4.9 (spec B24.2).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, cast

from rocketstore.broker.clients import NO_FILTER, Subscription
from rocketstore.broker.codes import BrokerAnswer, BrokerRequest
from rocketstore.broker.counts import SAMPLE_MS, GivenCounts
from rocketstore.broker.held_pulls import LOOK_MS, HeldPull, HeldPulls, PullHeader
from rocketstore.broker.parts import Part, Parts
from rocketstore.broker.queue_locks import MessageQueue
from rocketstore.broker.refused import SEE, Refused, failure, forbidden, refusal
from rocketstore.broker.topics import not_there
from rocketstore.config import BrokerRole
from rocketstore.errors import InvalidFilterError, RocketStoreError
from rocketstore.events import get_logger
from rocketstore.format.java_hash import string_hash
from rocketstore.format.metadata_json import encode_body
from rocketstore.format.properties import DELAY
from rocketstore.message import Message
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int64
from rocketstore.remoting.requests import LATER, Call, Later, Row
from rocketstore.rules.topics import OFFSET_MOVED_TOPIC
from rocketstore.storage.reading.pages import parse_tags
from rocketstore.storage.results import GetMessageStatus, GetRawResult
from rocketstore.tables.topic_settings import PERM_READ

if TYPE_CHECKING:
    from rocketstore.storage.dispatch.dispatcher import Arrival

_ANSWERS: Final = {status: (code, status.value) for status, code in {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: BrokerAnswer.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: BrokerAnswer.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: BrokerAnswer.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: BrokerAnswer.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: BrokerAnswer.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: BrokerAnswer.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: BrokerAnswer.PULL_OFFSET_MOVED,
}.items()}  # fmt: skip
# Compatible: 4.9 makes a queue of a topic when it is asked for, and finds it empty.
_ANSWERS[GetMessageStatus.NO_MATCHED_LOGIC_QUEUE] = _ANSWERS[GetMessageStatus.NO_MESSAGE_IN_QUEUE]
_log: Final = get_logger(__name__)

SWEEP_S: Final = 0.05  # between looks at the held pulls whose turn it is
DISPATCH_S: Final = 0.002  # between rounds of dispatch while any is held; a pull wakes within 3 ms

COMMITS: Final = 1
WAITS: Final = 2
SUBSCRIBES: Final = 4
"""Bits of `PullHeader.sys_flag`: it commits an offset, may be held, says what it wants itself."""


class PullReply(Header):
    """Where to go on, and how long the queue is."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class Pulling(Part):
    """Answers pulls, at once or later."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        store, loop, settings = parts.store, parts.loop, parts.settings
        self._offsets = store.consumer_offsets
        self._keeps_offsets = store.config.broker_role is not BrokerRole.SLAVE
        self._is_listening = self._ends = False
        self._due = loop.paced(DISPATCH_S, store.dispatching.turn)
        self._is_long = settings.long_polling_enable
        self.held = HeldPulls(LOOK_MS if self._is_long else settings.short_polling_time_mills)
        self.given = GivenCounts(parts.monotonic)
        loop.every(SWEEP_S, self.sweep)
        loop.every(LOOK_MS / 1000, self.listen_no_more)
        loop.every(SAMPLE_MS / 1000, self.given.sample)

    def rows(self) -> list[Row]:
        """Return what is served."""
        codes = (BrokerRequest.PULL_MESSAGE, BrokerRequest.LITE_PULL_MESSAGE)
        return [Row(code, PullHeader, PullReply, self.pull) for code in codes]

    def pull(self, header: PullHeader, call: Call) -> Command | Later:
        """Answer a pull, at once or when a thread has read what is not in memory, or hold it."""
        try:
            wanted = self._checked(header, call)
        except Refused as refused:
            return refusal(refused, call, {})
        place, offset = _place(header, wanted), header.commit_offset
        # Before a read that may wait: what the client commits meanwhile is newer.
        if offset is not None and header.sys_flag & COMMITS and self._keeps_offsets:
            self._offsets.set(header.topic, header.consumer_group, header.queue_id, offset)
        if self._store.is_in_memory(*place):
            return self._found(header, call, wanted)
        return self._loop.once_read(
            call,
            lambda: self._flow.refusal(call, 0) or self._store.is_in_memory(*place, waits=True),
            lambda late: late if isinstance(late, Command) else self._found(header, call, wanted),
        )

    def _found(self, header: PullHeader, call: Call, wanted: str) -> Command | Later:
        if self._ends:
            return _refused_at_the_end()
        answer = self._page(header, wanted)
        if answer.code == BrokerAnswer.PULL_NOT_FOUND and header.sys_flag & WAITS:
            return self._hold(header, call, wanted)
        return answer

    def _page(self, header: PullHeader, tags: str) -> Command:
        page: GetRawResult = self._store.get_raw(*_place(header, tags))
        code, remark = _ANSWERS[page.status]
        if page.message_count:
            self.given.note(header.topic, header.consumer_group, page.message_count)
        elif code == BrokerAnswer.PULL_OFFSET_MOVED and page.next_offset == header.queue_offset:
            # Nowhere else to go: an empty queue, or a slave that is not as far as its master.
            code = BrokerAnswer.PULL_NOT_FOUND
        elif code == BrokerAnswer.PULL_OFFSET_MOVED and self._keeps_offsets:
            self._note_moved(header, page.next_offset)
        bounds = {"minOffset": str(page.min_offset), "maxOffset": str(page.max_offset)}
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(page.next_offset), **bounds}
        return reply(code, remark, fields=fields, body=cast("bytes", page.records))

    def _note_moved(self, header: PullHeader, offset: int) -> None:
        """Put a message that says that a group is sent elsewhere in a queue.

        Source: PullMessageProcessor.generateOffsetMovedEvent.
        """
        queue = MessageQueue(self._settings.broker_name, header.queue_id, header.topic)
        group = header.consumer_group
        event = {
            "consumerGroup": group,
            "messageQueue": queue,
            "offsetNew": offset,
            "offsetRequest": header.queue_offset,
        }
        message = Message(
            topic=OFFSET_MOVED_TOPIC, body=encode_body(event), tags=group, keys=group,
            properties={DELAY: "0"}, born_host=self._store.config.store_host, wait_flush=False,
        )  # fmt: skip
        try:
            result = self._store.put(message)
            reason = "" if result.is_stored else result.detail or result.status.name
        except RocketStoreError as error:  # the group is sent there all the same
            reason = str(error)
        if reason:
            _log.warning("broker.event_not_stored", topic=OFFSET_MOVED_TOPIC, reason=reason)

    # --- what may not be pulled -----------------------------------------------------------------

    def _checked(self, header: PullHeader, call: Call) -> str:
        """Return the tags that a pull wants; raises where it may not pull."""
        name, group_name = header.topic, header.consumer_group
        if not self._settings.broker_permission & PERM_READ:
            raise forbidden(f"the broker[{self._settings.broker_ip1}] pulling message")
        group = self._topics.group(group_name, f"subscription group [{group_name}] does not exist,")
        if not group.consume_enable:
            remark = f"subscription group no permission, {group_name}"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, not_there(name, blank=" "))
        if not topic.perm & PERM_READ:
            raise forbidden(f"the topic[{name}] pulling message")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{header.queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[/{call.peer.address}]"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        wanted = self._subscription(header, broadcasts=group.consume_broadcast_enable)
        if not wanted.is_by_tags:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{NO_FILTER} {wanted.expression_type}")
        try:
            parse_tags(wanted.sub_string)
        except InvalidFilterError as error:
            remark = "parse the consumer's subscription failed"
            raise Refused(BrokerAnswer.SUBSCRIPTION_PARSE_FAILED, remark) from error
        return wanted.sub_string

    def _subscription(self, header: PullHeader, *, broadcasts: bool) -> Subscription:
        """Return what a pull wants: it says so itself, or its group's heartbeats did."""
        if header.sys_flag & SUBSCRIBES:
            tags = header.subscription or "*"
            return Subscription(header.topic, tags, header.sub_version, header.expression_type)
        group = self._clients.consumers.get(header.consumer_group)
        if group is None:
            remark = f"the consumer's group info not exist{SEE}"
            raise Refused(BrokerAnswer.SUBSCRIPTION_NOT_EXIST, remark)
        if not broadcasts and group.is_broadcast:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise Refused(ResponseCode.NO_PERMISSION, remark)
        known = group.subscriptions.get(header.topic)
        if known is None:
            remark = f"the consumer's subscription not exist{SEE}"
            raise Refused(BrokerAnswer.SUBSCRIPTION_NOT_EXIST, remark)
        if known.sub_version < header.sub_version:
            remark = "the consumer's subscription not latest"
            raise Refused(BrokerAnswer.SUBSCRIPTION_NOT_LATEST, remark)
        return known

    # --- held -----------------------------------------------------------------------------------

    def _hold(self, header: PullHeader, call: Call, wanted: str) -> Later:
        wait_ms = header.suspend_timeout_millis if self._is_long else self.held.interval_ms
        tags = array("I", (string_hash(tag) & 0xFFFFFFFF for tag in parse_tags(wanted))) or None
        now_ms = self._monotonic()
        pull = HeldPull(header, call, now_ms + wait_ms, now_ms + self.held.interval_ms, tags)
        self.held.add(pull)
        if not self._is_listening:
            self._is_listening = True
            self._store.add_listener(self._note_arrival, self.held)
            self._store.dispatching.lead(self._due)
        # A message that came after the page was read has woken no pull.
        if self._store.max_offset(header.topic, header.queue_id) > header.queue_offset:
            self.held.remove(pull)
            self._answer(pull)
        return LATER

    def _answer(self, pull: HeldPull) -> None:
        """Answer a pull that was held with whatever there is."""
        try:
            answer = self._page(pull.header, self._checked(pull.header, pull.call))
        except (Refused, RocketStoreError) as error:  # it takes no reader now, say
            answer = failure(error, pull.call)
            answer.fields = {}
        pull.call.answer(answer)

    def _note_arrival(self, arrival: Arrival) -> None:
        """Take note, on whatever thread dispatches, of a message that can be read."""
        self._loop.run(lambda: self._wake(arrival))

    def _wake(self, arrival: Arrival) -> None:
        for pull in self.held.woken_by(arrival):
            self._answer(pull)

    def sweep(self) -> None:
        """Answer the pulls whose time is over, and those that waited for other tags."""
        for pull in self.held.due(self._monotonic(), self._store.max_offset):
            self._answer(pull)

    def listen_no_more(self) -> None:
        """Let dispatch go on without a listener while nothing is held."""
        if self._is_listening and not self.held:
            self._is_listening = False
            self._store.dispatching.lead(None)
            self._store.remove_listener(self._note_arrival)

    def close(self) -> None:
        """Refuse all that are held, and those that still come, as the broker ends.

        4.9 leaves them: its client then waits half a minute for a reply of a connection that is
        gone. One that is refused asks again after three seconds, and not into the ending.
        """
        self._ends = True
        for pull in self.held.take_all():
            pull.call.answer(_refused_at_the_end())
        self.listen_no_more()


def _place(header: PullHeader, tags: str) -> tuple[str, int, int, int, str]:
    return header.topic, header.queue_id, header.queue_offset, max(header.max_msg_nums, 1), tags


def _refused_at_the_end() -> Command:
    return reply(BrokerAnswer.SERVICE_NOT_AVAILABLE, "the broker ends", fields={})
