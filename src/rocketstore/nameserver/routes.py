"""Brokers, their topics and queues: what registrations said, as long as they count.

Law: this file knows no clock and no connection; a channel is an object by which a registration is
found again when it ends. A broker that was not heard of for `SILENCE_MS` has no routes; only a
master says which queues there are.
How derived: RouteInfoManager of 4.9.7 (specification of requests, sections 1.2 and 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.format.metadata_json import DataVersion, TopicTable
from rocketstore.nameserver.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.nameserver.bodies import Registration
    from rocketstore.nameserver.headers import BrokerHeader, RegisterBrokerHeader

SILENCE_MS: Final = 120_000
"""A broker that is silent for longer is gone (BROKER_CHANNEL_EXPIRED_TIME)."""

MASTER_ID: Final = 0

READ, WRITE = 4, 2
"""Bits of a permission (PermName)."""

UNIT, UNIT_SUB = 1, 2
"""Bits of a topic's flags (TopicSysFlag)."""


class _Live(NamedTuple):
    """What is known of one broker, by its address."""

    heard_ms: int
    version: DataVersion
    channel: object
    ha_address: str | None
    filter_servers: list[str]


class RouteTable:
    """Which broker has which topic."""

    def __init__(self) -> None:
        self._brokers: dict[str, BrokerData] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._live: dict[str, _Live] = {}

    # --- what brokers say -----------------------------------------------------------------------

    def register(
        self, header: RegisterBrokerHeader, body: Registration, channel: object, now_ms: int
    ) -> BrokerData:
        """Take in a registration; return the brokers of its name."""
        name, address = header.broker_name, header.broker_addr
        broker = self._brokers.setdefault(name, BrokerData({}, name, header.cluster_name))
        broker.cluster = header.cluster_name
        for broker_id in [i for i, at in broker.broker_addrs.items() if at == address]:
            if broker_id != header.broker_id:  # a slave that became master, say
                del broker.broker_addrs[broker_id]
        table = body.topic_config_serialize_wrapper or TopicTable()
        version = table.data_version or DataVersion()
        is_first = header.broker_id not in broker.broker_addrs
        if header.broker_id == MASTER_ID and (is_first or self.has_changed(address, version)):
            self._take_queues(name, table)
        broker.broker_addrs[header.broker_id] = address
        filters = body.filter_server_list or []
        self._live[address] = _Live(now_ms, version, channel, header.ha_server_addr, filters)
        return broker

    def _take_queues(self, name: str, table: TopicTable) -> None:
        # Compatible: a topic that the broker has no more stays until it is deleted here.
        for topic, config in table.topic_config_table.items():
            self._topics.setdefault(topic, {})[name] = QueueData(
                name, config.perm, config.read_queue_nums, config.topic_sys_flag,
                config.write_queue_nums,
            )  # fmt: skip

    def ha_address(self, address: str) -> str | None:
        """Return where slaves of a broker connect to."""
        live = self._live.get(address)
        return None if live is None else live.ha_address

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered with last."""
        live = self._live.get(address)
        return None if live is None else live.version

    def has_changed(self, address: str, version: DataVersion) -> bool:
        """Return whether a broker's topics are not those that it registered with."""
        return self.version_of(address) != version

    def touch(self, address: str, now_ms: int) -> None:
        """Take note that a broker is there, which has nothing new."""
        live = self._live.get(address)
        if live is not None:
            self._live[address] = live._replace(heard_ms=now_ms)

    def unregister(self, header: BrokerHeader) -> None:
        """Forget a broker that ends."""
        self._live.pop(header.broker_addr, None)
        broker = self._brokers.get(header.broker_name)
        if broker is not None:
            broker.broker_addrs.pop(header.broker_id, None)
            self._settle(broker)

    def disconnected(self, channel: object) -> None:
        """Forget the brokers that registered over a connection that ended."""
        self._forget(lambda live: live.channel is channel)

    def expire(self, now_ms: int) -> list[str]:
        """Forget the brokers that were silent for too long; return their addresses."""
        return self._forget(lambda live: now_ms - live.heard_ms > SILENCE_MS)

    def _forget(self, is_gone: Callable[[_Live], bool]) -> list[str]:
        gone = [address for address, live in self._live.items() if is_gone(live)]
        for address in gone:
            del self._live[address]
            for broker in list(self._brokers.values()):
                ids = [i for i, at in broker.broker_addrs.items() if at == address]
                for broker_id in ids:
                    del broker.broker_addrs[broker_id]
                self._settle(broker)
        return gone

    def _settle(self, broker: BrokerData) -> None:
        """Where a name has no broker any more, forget it with its queues."""
        if broker.broker_addrs:
            return
        del self._brokers[broker.broker_name]
        for topic, queues in list(self._topics.items()):
            queues.pop(broker.broker_name, None)
            if not queues:
                del self._topics[topic]

    # --- what clients and administrators ask ----------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic is, None if that is not known."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues]
        filters = {
            address: self._live[address].filter_servers
            for broker in brokers
            for address in broker.broker_addrs.values()
            if address in self._live and self._live[address].filter_servers
        }
        return TopicRoute(brokers, filters, None, list(queues.values()))

    def clusters(self) -> ClusterInfo:
        """Return all brokers, and which cluster has which."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.broker_name)
        return ClusterInfo(self._brokers, clusters)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that some broker of a cluster has."""
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return [topic for topic, queues in self._topics.items() if names & queues.keys()]

    def topics_by_flags(self, has: int, has_not: int = 0) -> list[str]:
        """Return the topics that have one flag and not the other."""
        first = ((topic, next(iter(queues.values()))) for topic, queues in self._topics.items())
        return [
            topic
            for topic, queue in first
            if queue.topic_sys_flag & has and not queue.topic_sys_flag & has_not
        ]

    def change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Change what may be done with all queues of the brokers of a name; return how many topics.

        It counts until the broker registers with other topics.
        """
        changed = [queues[broker_name] for queues in self._topics.values() if broker_name in queues]
        for queue in changed:
            queue.perm = change(queue.perm)
        return len(changed)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic, until a broker registers with it again."""
        self._topics.pop(topic, None)
