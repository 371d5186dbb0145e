"""Heartbeats, who is in a group, and the notice that makes its members share the queues again.

Law: a notice goes to all members of a group, before the heartbeat that caused it is answered; one
notice for all who came or went in a turn, be they thousands.

How derived: ClientManageProcessor, ConsumerManageProcessor and DefaultConsumerIdsChangeListener of
4.9 (codes 34, 35, 38, 40 and 46), and what AdminBrokerProcessor says of a group (code 203).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.broker.clients import NO_FILTER, Client, ConsumerGroup, Subscription
from rocketstore.broker.codes import BrokerAnswer, BrokerRequest
from rocketstore.broker.parts import Part, Parts
from rocketstore.broker.refused import Refused, failure
from rocketstore.consuming import others
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import decode_body, encode_body
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header
from rocketstore.remoting.requests import LATER, Call, Later, Peer, Row, answered, request

if TYPE_CHECKING:
    from rocketstore.consuming.service import ConsumingService

_log: Final = get_logger(__name__)

SCAN_S: Final = 10.0
"""How often silent clients are looked for (ClientHousekeepingService)."""

MANY: Final = 50
SHARE_S: Final = 0.1
"""Least time between two notices to so many members of a group: 5,000 clients that join are that
many times that many, of 10 us each."""

MOST_NAMED: Final = 20  # members in a line of the log

_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_PLACES: Final = (
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)  # fmt: skip
"""Enumerations of heartbeats: clients say names, or their numbers."""


class _ProducerData(msgspec.Struct, rename="camel"):
    group_name: str


class _ConsumerData(_ProducerData):
    consume_type: str | int = 1
    message_model: str | int = 1
    consume_from_where: str | int = 0
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False


class _Heartbeat(msgspec.Struct, rename={"client_id": "clientID", "producers": "producerDataSet",
                                         "consumers": "consumerDataSet"}):  # fmt: skip
    client_id: str
    producers: list[_ProducerData] = []
    consumers: list[_ConsumerData] = []


class _CheckBody(msgspec.Struct, rename="camel"):
    subscription_data: Subscription | None = None


class UnregisterHeader(Header):
    """Which groups a client leaves."""

    client_id: str | None = msgspec.field(name="clientID", default=None)
    producer_group: str | None = None
    consumer_group: str | None = None


class GroupHeader(Header):
    """A consumer group."""

    consumer_group: str


def _name(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return value.upper()
    return names[value] if 0 <= value < len(names) else str(value)


class ClientManage(Part):
    """Takes heartbeats, and tells groups of changes."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        loop = parts.loop
        self._consuming: ConsumingService = parts.store.attached["consuming"]
        self._changed: dict[str, bool] = {}
        self._share_soon = loop.paced(SHARE_S, self._share_again)
        loop.every(SCAN_S, self.scan)
        self._consuming.members.watch(lambda group: loop.post(lambda: self.notify(group)))

    def rows(self) -> list[Row]:
        """Return what is served."""
        return [
            Row(BrokerRequest.HEART_BEAT, Header, None, self.heartbeat),
            Row(BrokerRequest.UNREGISTER_CLIENT, UnregisterHeader, None, self.unregister),
            Row(BrokerRequest.GET_CONSUMER_LIST_BY_GROUP, GroupHeader, None, self.members),
            Row(BrokerRequest.CHECK_CLIENT_CONFIG, Header, None, self.check),
            Row(BrokerRequest.GET_CONSUMER_CONNECTION_LIST, GroupHeader, None, self.connections),
        ]

    def heartbeat(self, _header: Header, call: Call) -> Later:
        """Take note of a client's producers and consumers."""
        command, now_ms = call.command, self._monotonic()
        said = decode_body(command.body, _Heartbeat)
        client = Client(said.client_id, call.peer, command.language, command.version, now_ms)
        for consumer in said.consumers:
            self._take_consumer(consumer, client)
        for producer in said.producers:
            self._clients.add_producer(producer.group_name, client)
        unmade = self._topics.unmade({one.group_name: one.unit_mode for one in said.consumers})
        self._topics.wait(unmade, partial(self._answer, call, is_new=bool(unmade.args)))
        return LATER

    def _answer(self, call: Call, *, is_new: bool) -> None:
        trouble = self._topics.trouble if is_new else None
        answer = reply() if trouble is None else failure(trouble, call)
        told = partial(self._registration.then, partial(call.answer, answer), is_new=is_new)
        self._loop.post(told)  # after the notices of this turn

    def _take_consumer(self, said: _ConsumerData, client: Client) -> None:
        name = said.group_name
        group, is_new = self._clients.add_consumer(name, client)
        group.consume_type = _name(said.consume_type, _TYPES)
        group.message_model = _name(said.message_model, _MODELS)
        group.consume_from = _name(said.consume_from_where, _PLACES)
        if group.subscribe(said.subscription_data_set, client.peer) or is_new:
            self.notify(name)
        elif self._consuming.members.own(name):
            self._meet(name)

    def notify(self, group: str, *, is_lost: bool = False) -> None:
        """Have all members of a group share its queues again, those in this process too."""
        is_first = not self._changed
        self._changed[group] = is_lost or self._changed.get(group, False)
        known = self._clients.consumers.get(group)
        if is_first and known is not None and len(known.clients) > MANY:
            self._share_soon()
        elif is_first:
            self._loop.post(self._share_again)

    def _share_again(self) -> None:
        self._topics.make()
        changed, self._changed = self._changed, {}
        for group, is_lost in changed.items():
            ids = self._clients.consumers.get(group, ConsumerGroup()).client_ids
            named = ",".join(ids[:MOST_NAMED])
            _log.info("group.shared_again", group=group, count=len(ids), members=named)
            self._meet(group)
            self._tell(group, is_lost=is_lost)

    def _meet(self, name: str) -> None:
        """Let the consumers of this process know the clients, and the queues that these know."""
        group = self._clients.consumers.get(name)
        if group is None or group.is_broadcast:
            self._consuming.note_clients(name, others.NO_CLIENTS)
            return
        topics = (self._topics.get(topic) for topic in group.subscriptions)
        counts = {one.topic_name: one.read_queue_nums for one in topics if one is not None}
        ids = tuple(sorted(group.client_ids))
        self._consuming.note_clients(name, others.GroupClients(ids, counts))

    def _tell(self, group: str, *, is_lost: bool) -> None:
        settled = self._topics.known_group(group)
        if is_lost or settled is None or settled.notify_consumer_ids_changed_enable:
            header = GroupHeader(consumer_group=group)
            for peer in [*self._clients.consumers.get(group, ConsumerGroup()).clients]:
                peer.tell(request(BrokerRequest.NOTIFY_CONSUMER_IDS_CHANGED, header))

    def unregister(self, header: UnregisterHeader, call: Call) -> Command:
        """Let a client leave its groups."""
        if header.producer_group is not None:
            self._clients.remove_producer(header.producer_group, call.peer)
        group = header.consumer_group
        if group is not None and self._clients.remove_consumer(group, call.peer):
            self.notify(group)
        return answered(Header())

    def members(self, header: GroupHeader, _call: Call) -> Command:
        """Say which clients a group has."""
        group = self._clients.consumers.get(header.consumer_group)
        own = self._consuming.members.own(header.consumer_group)
        if group is not None and (group.is_broadcast or not own):
            group.told_ids = group.told_ids or encode_body({"consumerIdList": group.client_ids})
            return answered(Header(), group.told_ids)
        ids = [*(() if group is None else group.client_ids), *own]
        if not ids:
            remark = f"no consumer for this group, {header.consumer_group}"
            return reply(ResponseCode.SYSTEM_ERROR, remark, fields={})
        return answered(Header(), encode_body({"consumerIdList": ids}))

    def check(self, _header: Header, call: Call) -> Command:
        """Say whether a subscription can be served: one by tags can."""
        wanted = decode_body(call.command.body, _CheckBody).subscription_data
        if wanted is None or wanted.is_by_tags:
            return reply()
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{NO_FILTER} {wanted.expression_type}")

    def connections(self, header: GroupHeader, _call: Call) -> Command:
        """Say which clients a group has, and what it subscribes to."""
        group = self._clients.consumers.get(header.consumer_group)
        if group is None:
            remark = f"the consumer group[{header.consumer_group}] not online"
            return reply(BrokerAnswer.CONSUMER_NOT_ONLINE, remark)
        connections = [
            {
                "clientAddr": client.peer.address, "clientId": client.client_id,
                "language": None if client.language is None else client.language.name,
                "version": client.version,
            }
            for client in group.clients.values()
        ]  # fmt: skip
        body = {
            "connectionSet": connections,
            "consumeFromWhere": group.consume_from, "consumeType": group.consume_type,
            "messageModel": group.message_model, "subscriptionTable": group.subscriptions,
        }  # fmt: skip
        return reply(body=encode_body(body))

    def scan(self) -> None:
        """Let go of clients that were silent for too long."""
        for group in self._clients.expire(self._monotonic()):
            self.notify(group)

    def disconnected(self, peer: Peer) -> None:
        """Let go of the clients of a connection; members are told whatever their group wants."""
        for group in self._clients.disconnect(peer):
            self.notify(group, is_lost=True)
