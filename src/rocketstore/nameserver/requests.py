"""The requests of a name server: who answers which.

Law: a request changes a table or reads it, and is answered in the turn in which it came. A code
that is not here gets no reply at all, as with 4.9, and is logged.
How derived: DefaultRequestProcessor of rocketmq-namesrv 4.9.7.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.format.metadata_json import DataVersion, TopicTable, decode_body, encode_body
from rocketstore.format.registration import RegisterBrokerBody, unpack_registration
from rocketstore.nameserver import bodies, headers
from rocketstore.nameserver.key_values import ORDER_TOPICS, KeyValues
from rocketstore.nameserver.routes import READ, SUB, UNIT, WRITE, RouteTable
from rocketstore.remoting.codes import RequestCode, ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header
from rocketstore.remoting.requests import Call, RequestTable, Row, answered
from rocketstore.units import awake_ms

if TYPE_CHECKING:
    from collections.abc import Callable


WITH_FILTERS_VERSION: Final = 37
"""Brokers from V3_0_11 on send a `RegisterBrokerBody`, older ones their topics alone."""

STRICT_VERSION: Final = 401
"""Clients from V4_9_4 on get strict JSON; older ones, in Go say, cannot read ids in quotes."""

_ORDER_MESSAGES: Final = "orderMessageEnable"
_NO_ROUTE: Final = (
    "No topic route info in name server for the topic: {}\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)


class NameServer:
    """Routes and values, and the table of requests that answers from them.

    With `order_messages` routes say how the queues of order topics are spread. `settings` are what
    GET_NAMESRV_CONFIG says besides, by 4.9's names.
    """

    def __init__(
        self,
        values: KeyValues | None = None,
        settings: dict[str, str] | None = None,
        *,
        order_messages: bool = False,
        clock: Callable[[], int] = awake_ms,
    ) -> None:
        self.routes = RouteTable()
        self.values = KeyValues() if values is None else values
        self.order_messages = order_messages
        self._settings = settings or {}
        self._clock = clock
        self.requests = RequestTable(
            self._rows(), unknown=lambda _call: None, disconnected=[self.routes.disconnected]
        )

    def _rows(self) -> list[Row]:
        code, h, none = RequestCode, headers, None
        routes, values = self.routes, self.values
        return [
            Row(code.PUT_KV_CONFIG, h.KeyValueHeader, none, _done(values.put)),
            Row(code.GET_KV_CONFIG, h.KeyHeader, h.ValueReply, self._get_value),
            Row(code.DELETE_KV_CONFIG, h.KeyHeader, none, _done(values.delete)),
            Row(
                code.REGISTER_BROKER, h.RegisterBrokerHeader, h.RegisterBrokerReply, self._register
            ),
            Row(code.UNREGISTER_BROKER, h.BrokerHeader, none, _done(routes.unregister)),
            Row(code.GET_ROUTEINFO_BY_TOPIC, h.RouteHeader, none, self._route),
            Row(code.GET_BROKER_CLUSTER_INFO, Header, none, self._clusters),
            Row(code.WIPE_WRITE_PERM_OF_BROKER, h.BrokerNameHeader, h.WipedReply, self._wipe_write),
            Row(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Header, none, self._topics()),
            Row(
                code.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicHeader, none, _done(routes.delete_topic)
            ),
            Row(code.GET_KVLIST_BY_NAMESPACE, h.NamespaceHeader, none, self._namespace),
            Row(code.GET_TOPICS_BY_CLUSTER, h.ClusterHeader, none, self._topics_of_cluster),
            Row(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Header, none, self._system_topics),
            Row(code.GET_UNIT_TOPIC_LIST, Header, none, self._topics(UNIT)),
            Row(code.GET_HAS_UNIT_SUB_TOPIC_LIST, Header, none, self._topics(SUB)),
            Row(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Header, none, self._topics(SUB, UNIT)),
            Row(code.UPDATE_NAMESRV_CONFIG, Header, none, self._update_config),
            Row(code.GET_NAMESRV_CONFIG, Header, none, self._config),
            Row(code.QUERY_DATA_VERSION, h.BrokerHeader, h.DataVersionReply, self._query_version),
            Row(code.ADD_WRITE_PERM_OF_BROKER, h.BrokerNameHeader, h.AddedReply, self._add_write),
        ]

    # --- brokers --------------------------------------------------------------------------------

    def _register(self, header: headers.RegisterBrokerHeader, call: Call) -> Command:
        body = call.command.body
        if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
            return reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        registration = _body_of(header, call.command)
        found = self.routes.register(header, registration, call.peer, self._clock())
        ordered = self.values.namespace(ORDER_TOPICS)
        return answered(found, b"" if ordered is None else encode_body(bodies.ValueTable(ordered)))

    def _query_version(self, header: headers.BrokerHeader, call: Call) -> Command:
        version = decode_body(call.command.body, DataVersion)
        known = self.routes.version_of(header.broker_addr)
        if known == version:
            self.routes.touch(header.broker_addr, call.peer, self._clock())
        body = b"" if known is None else encode_body(known)
        return answered(headers.DataVersionReply(known != version), body)

    def _wipe_write(self, header: headers.BrokerNameHeader, _call: Call) -> Command:
        count = self.routes.change_permission(header.broker_name, lambda perm: perm & ~WRITE)
        return answered(headers.WipedReply(count))

    def _add_write(self, header: headers.BrokerNameHeader, _call: Call) -> Command:
        # Compatible: other bits than these two are lost.
        count = self.routes.change_permission(header.broker_name, lambda _perm: READ | WRITE)
        return answered(headers.AddedReply(count))

    # --- topics ---------------------------------------------------------------------------------

    def _route(self, header: headers.RouteHeader, call: Call) -> Command:
        route = self.routes.route(header.topic)
        if route is None:
            return reply(ResponseCode.TOPIC_NOT_EXIST, _NO_ROUTE.format(header.topic))
        if self.order_messages:
            route.order_topic_conf = (self.values.namespace(ORDER_TOPICS) or {}).get(header.topic)
        is_strict = header.accept_standard_json_only or call.command.version >= STRICT_VERSION
        return answered(body=encode_body(msgspec.to_builtins(route, str_keys=is_strict)))

    def _clusters(self, _header: Header, _call: Call) -> Command:
        return answered(body=encode_body(self.routes.clusters()))

    def _topics(self, has: int = 0, has_not: int = 0) -> Callable[[Header, Call], Command]:
        return lambda _header, _call: _listed(self.routes.topics(has, has_not))

    def _topics_of_cluster(self, header: headers.ClusterHeader, _call: Call) -> Command:
        return _listed(self.routes.topics_of_cluster(header.cluster))

    def _system_topics(self, _header: Header, _call: Call) -> Command:
        """Answer with the names of clusters and brokers, which are topics too, and one address."""
        found = self.routes.clusters()
        brokers = found.broker_addr_table
        addresses = (at for one in brokers.values() for at in one.broker_addrs.values())
        return _listed([*found.cluster_addr_table, *brokers], next(addresses, None))

    # --- values and settings --------------------------------------------------------------------

    def _get_value(self, header: headers.KeyHeader, _call: Call) -> Command:
        if (value := (self.values.namespace(header.namespace) or {}).get(header.key)) is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return reply(ResponseCode.QUERY_NOT_FOUND, remark, fields={})
        return answered(headers.ValueReply(value))

    def _namespace(self, header: headers.NamespaceHeader, _call: Call) -> Command:
        values = self.values.namespace(header.namespace)
        if values is not None:
            return answered(body=encode_body(bodies.ValueTable(values)))
        return reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")

    def _update_config(self, _header: Header, call: Call) -> Command:
        import javaproperties  # noqa: PLC0415 - see config.sources: few need it

        wanted = javaproperties.loads(call.command.body.decode("utf-8", "replace"))
        if fixed := ", ".join(sorted(wanted.keys() - {_ORDER_MESSAGES})):
            remark = f"Can not update config in black list: {fixed}"
            return reply(ResponseCode.NO_PERMISSION, remark)
        if _ORDER_MESSAGES in wanted:
            self.order_messages = wanted[_ORDER_MESSAGES].strip().lower() == "true"
        return answered()

    def _config(self, _header: Header, _call: Call) -> Command:
        settings = {**self._settings, _ORDER_MESSAGES: str(self.order_messages).lower()}
        lines = [f"{name}={value}\n" for name, value in sorted(settings.items())]
        return answered(body="".join(lines).encode())


def _done(act: Callable[[Any], Header | None]) -> Callable[[Any, Call], Command]:
    return lambda header, _call: answered(act(header))


def _body_of(header: headers.RegisterBrokerHeader, command: Command) -> RegisterBrokerBody:
    if not command.body:
        return RegisterBrokerBody()
    if command.version < WITH_FILTERS_VERSION:
        return RegisterBrokerBody(None, decode_body(command.body, TopicTable))
    if header.compressed:
        return unpack_registration(command.body)
    return decode_body(command.body, RegisterBrokerBody)


def _listed(topics: list[str], address: str | None = None) -> Command:
    return answered(body=encode_body(bodies.TopicList(address, topics)))
