"""Bodies of requests and replies: fastjson's JSON, with fields in alphabetical order as there.

How derived: RemotingSerializable of 4.9.8.
"""

import msgspec


class Body(msgspec.Struct, rename="camel"):
    """A body that is JSON."""


class QueueData(Body):
    """How many queues a topic has on the brokers of a name, and what may be done with them."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Body):
    """The brokers of a name: their addresses by id, 0 is the master."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class TopicRoute(Body):
    """Where a topic is (TopicRouteData)."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []


class ClusterInfo(Body):
    """All brokers, and which cluster has which."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(Body):
    """Names of topics."""

    broker_addr: str | None = None
    topic_list: list[str] = []


class ValueTable(Body):
    """The values of a namespace."""

    table: dict[str, str]


class SavedValues(Body):
    """``kvConfig.json``: values by namespace and key."""

    config_table: dict[str, dict[str, str]]
