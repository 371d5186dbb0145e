"""Custom headers of the requests of a name server, and of their replies.

How derived: org.apache.rocketmq.common.protocol.header.namesrv of 4.9.8.
"""

from rocketstore.remoting.fields import Header, Int32, Int64


class BrokerHeader(Header, kw_only=True):
    """Which broker: UNREGISTER_BROKER and QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBrokerHeader(BrokerHeader, kw_only=True):
    """REGISTER_BROKER; `body_crc32` 0 is not compared."""

    ha_server_addr: str | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerReply(Header):
    """For a slave, where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class DataVersionReply(Header):
    """Whether the broker should register."""

    changed: bool


class TopicHeader(Header):
    """Which topic."""

    topic: str


class RouteHeader(TopicHeader):
    """Which topic, and whether the client reads strict JSON only."""

    accept_standard_json_only: bool = False


class DeleteTopicHeader(TopicHeader):
    """Which topic, and of the brokers of which cluster; unset, of all."""

    cluster_name: str | None = None


class ClusterHeader(Header):
    """Which cluster."""

    cluster: str


class BrokerNameHeader(Header):
    """Which brokers: all of a name."""

    broker_name: str


class WipedReply(Header):
    """Of how many topics the write permission was taken."""

    wipe_topic_count: Int32


class AddedReply(Header):
    """To how many topics the write permission was given."""

    add_topic_count: Int32


class NamespaceHeader(Header):
    """Which table of values."""

    namespace: str


class KeyHeader(NamespaceHeader):
    """Which value."""

    key: str


class KeyValueHeader(KeyHeader):
    """A value."""

    value: str


class ValueReply(Header):
    """A value that was asked for."""

    value: str | None = None
