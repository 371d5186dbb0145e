"""Brokers, their topics and queues: what registrations said, as long as they count.

Law: this file knows no clock and no connection; a channel is an object by which a registration is
found again when it ends. A broker that was not heard of for `SILENCE_MS` has no routes; only a
master says which queues there are.
How derived: RouteInfoManager of 4.9.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.events import get_logger
from rocketstore.format.metadata_json import DataVersion, TopicTable
from rocketstore.nameserver.bodies import BrokerData, ClusterInfo, QueueData, TopicRoute
from rocketstore.nameserver.headers import RegisterBrokerReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.format.registration import RegisterBrokerBody
    from rocketstore.nameserver.headers import BrokerHeader, DeleteTopicHeader, RegisterBrokerHeader

_log: Final = get_logger(__name__)

SILENCE_MS: Final = 120_000
"""A broker that is silent for longer is gone (BROKER_CHANNEL_EXPIRED_TIME)."""

MASTER_ID: Final = 0

READ, WRITE, UNIT, SUB = 4, 2, 1, 2
"""Bits of a permission (PermName) and of a topic's flags (TopicSysFlag)."""


class Live(NamedTuple):
    """What one broker said last, and when."""

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
        self._live: dict[str, Live] = {}

    def register(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, channel: object, now_ms: int
    ) -> RegisterBrokerReply:
        """Take in a registration; return to a slave where its master is."""
        name, address = header.broker_name, header.broker_addr
        broker = self._brokers.setdefault(name, BrokerData({}, name, header.cluster_name))
        broker.cluster = header.cluster_name
        table = body.topic_config_serialize_wrapper or TopicTable()
        version = table.data_version or DataVersion()
        is_new = header.broker_id not in broker.broker_addrs or self.version_of(address) != version
        # Compatible: a topic that the broker has no more stays until it is deleted here. One that
        # is not known is taken: a broker that makes a topic tells of that alone, by a new version.
        for one in table.topic_config_table.values() if header.broker_id == MASTER_ID else ():
            if is_new or name not in self._topics.get(one.topic_name, ()):
                self._topics.setdefault(one.topic_name, {})[name] = QueueData(
                    name, one.perm, one.read_queue_nums, one.topic_sys_flag, one.write_queue_nums
                )
        former = broker.broker_addrs.get(header.broker_id, address)
        if former != address and former in self._live:
            _log.warning("broker.replaced", name=name, former=former, address=address)
        broker.broker_addrs[header.broker_id] = address
        self._let_go(address, but=(name, header.broker_id))  # a slave became master, say
        filters = body.filter_server_list or []
        self._live[address] = Live(now_ms, version, channel, header.ha_server_addr, filters)
        master = None if header.broker_id == MASTER_ID else broker.broker_addrs.get(MASTER_ID)
        live = self._live.get(master or "")
        return RegisterBrokerReply(live and live.ha_address, master)

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered with last."""
        live = self._live.get(address)
        return None if live is None else live.version

    def touch(self, address: str, channel: object, now_ms: int) -> None:
        """Take note that a broker is there, which has nothing new, be it by another connection."""
        self._live[address] = self._live[address]._replace(heard_ms=now_ms, channel=channel)

    def unregister(self, header: BrokerHeader) -> None:
        """Forget a broker that ends; one that has taken its place, at another address, stays."""
        broker = self._brokers.get(header.broker_name)
        if broker is not None:
            for broker_id in _ids(broker, header.broker_addr) & {header.broker_id}:
                del broker.broker_addrs[broker_id]
                self._live.pop(header.broker_addr, None)
            self._settle(broker)

    def disconnected(self, channel: object) -> None:
        """Forget the brokers that registered over a connection that ended."""
        self._forget(lambda live: live.channel is channel)

    def expire(self, now_ms: int) -> list[str]:
        """Forget the brokers that were silent for too long; return their addresses."""
        return self._forget(lambda live: now_ms - live.heard_ms > SILENCE_MS)

    def _forget(self, is_gone: Callable[[Live], bool]) -> list[str]:
        gone = [address for address, live in self._live.items() if is_gone(live)]
        for address in gone:
            del self._live[address]
            self._let_go(address)
        return gone

    def _let_go(self, address: str, but: tuple[str, int] | None = None) -> None:
        """Take an address from whatever broker has it, except from that of a name and an id."""
        for broker in list(self._brokers.values()):
            for broker_id in _ids(broker, address):
                if (broker.broker_name, broker_id) != but:
                    del broker.broker_addrs[broker_id]
                    if but is not None and (former := broker.broker_name) != but[0]:
                        _log.warning("broker.renamed", name=but[0], former=former, address=address)
            self._settle(broker)

    def _settle(self, broker: BrokerData) -> None:
        """Where a name has no broker any more, forget it with its queues."""
        if broker.broker_addrs:
            return
        del self._brokers[broker.broker_name]
        for topic, queues in list(self._topics.items()):
            queues.pop(broker.broker_name, None)
            if not queues:
                del self._topics[topic]

    def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic is, None if that is not known."""
        if not (queues := self._topics.get(topic)):
            return None
        brokers = [self._brokers[name] for name in queues]
        addresses = [at for broker in brokers for at in broker.broker_addrs.values()]
        lives = {address: self._live[address] for address in addresses if address in self._live}
        filters = {at: live.filter_servers for at, live in lives.items() if live.filter_servers}
        return TopicRoute(brokers, filters, None, list(queues.values()))

    def clusters(self) -> ClusterInfo:
        """Return all brokers, and which cluster has which."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.broker_name)
        return ClusterInfo(self._brokers, clusters)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that some broker of a cluster has."""
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return [topic for topic, queues in self._topics.items() if names & queues.keys()]

    def topics(self, has: int = 0, has_not: int = 0) -> list[str]:
        """Return the names of all topics, or of those that have one flag and not the other."""
        queues = {topic: next(iter(queues.values())) for topic, queues in self._topics.items()}
        flags = ((topic, queue.topic_sys_flag) for topic, queue in queues.items())
        return [topic for topic, one in flags if one & has == has and not one & has_not]

    def change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Change what may be done with all queues of the brokers of a name; return how many topics.

        It counts until the broker registers with other topics.
        """
        changed = [queues[broker_name] for queues in self._topics.values() if broker_name in queues]
        for queue in changed:
            queue.perm = change(queue.perm)
        return len(changed)

    def delete_topic(self, header: DeleteTopicHeader) -> None:
        """Forget a topic, or its queues of one cluster, until a broker registers with it again."""
        cluster, queues = header.cluster_name, self._topics.pop(header.topic, {}).items()
        left = {name: one for name, one in queues if self._brokers[name].cluster != cluster}
        if cluster and left:
            self._topics[header.topic] = left


def _ids(broker: BrokerData, address: str) -> set[int]:
    return {broker_id for broker_id, at in broker.broker_addrs.items() if at == address}
