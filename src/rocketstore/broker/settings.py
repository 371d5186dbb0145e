"""What can be set about a broker: the keys of 4.9's ``broker.conf`` that mean something here.

The store takes its own keys from the same file (`rocketstore.config`). Field names are the snake
case of the keys.

Source: BrokerConfig, NettyServerConfig and MixAll of 4.9.8.
"""

import socket
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

import msgspec

from rocketstore.addresses import listening_host
from rocketstore.config import BrokerRole
from rocketstore.config.grammars import parse_address
from rocketstore.config.option import Option, broker_conf_key, check_value, field_specs
from rocketstore.config.sources import parse_value, store_host
from rocketstore.errors import ConfigError, InvalidNameError
from rocketstore.format.host import address_text
from rocketstore.format.refusals import check_topic

_Port = Annotated[int, Option(low=0, high=65_535)]
_Time = Annotated[int, Option("ms", 1)]


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, rename=broker_conf_key):
    """Settings of a broker, with 4.9's defaults unless a line says otherwise.

    Attributes
    ----------
    broker_name, broker_cluster_name, broker_id
        Under which name servers know it; unset, its name is this machine's. A master's id is 0,
        whatever is set, a slave's above it.
    broker_ip1, listen_port
        What clients are told, and where it listens: everywhere if the address is another machine's.
        The loopback unless set; 4.9 finds an address. A port of 0 takes a free one.
    namesrv_addr, namesrv_port
        Name servers, ``host:port;host:port``; unset, one runs inside the broker, at the port.
    broker_permission
        Bits of a topic's permission that the broker grants: 4 reading, 2 writing.
    default_topic_queue_nums
        Queues of the template ``TBW102``: most that a new topic gets.
    auto_create_topic_enable, auto_create_subscription_group
        Whether a topic is made by its first message, and a group by its first consumer.
    trace_topic_enable, msg_trace_topic_name
        Whether there is a topic for traces from the start, and what it is called.
    long_polling_enable, short_polling_time_mills
        Whether a pull that finds nothing is held for as long as it asks, or for this time.
    reject_transaction_message
        Refuse half messages.
    broker_fast_failure_enable, wait_time_mills_in_…_queue
        Whether and after which time sends, pulls, heartbeats and ends of transactions that wait
        are refused: the broker is busy.
    region_id, trace_on
        What replies to sends say.
    register_name_server_period, register_broker_timeout_mills, compressed_register
        How often it registers, how long it waits for a name server, and whether it packs the body.
    """

    broker_name: str = ""
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    broker_ip1: str = "127.0.0.1"
    listen_port: _Port = 10911
    namesrv_addr: str = ""
    namesrv_port: _Port = 9876
    broker_permission: int = 6
    default_topic_queue_nums: Annotated[int, Option("count", 1, 65_536)] = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    reject_transaction_message: bool = False
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: int = 200
    wait_time_mills_in_pull_queue: int = 5000
    wait_time_mills_in_heartbeat_queue: int = 31_000
    wait_time_mills_in_transaction_queue: int = 3000
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    register_name_server_period: _Time = 30_000
    register_broker_timeout_mills: _Time = 6000
    compressed_register: bool = False
    start_accept_send_request_time_stamp: Annotated[int, Option("ms", 0, 2**63 - 1)] = 0

    def __post_init__(self) -> None:
        for field, spec in _SPECS.items():
            if (value := getattr(self, field)) is not spec.default:
                check_value(field, value, spec)
        msgspec.structs.force_setattr(self, "broker_ip1", self.broker_ip1.strip("[]"))
        if not self.listen_port:
            msgspec.structs.force_setattr(self, "listen_port", free_port())
        if not self.broker_name:
            name = "".join(one if one.isalnum() else "-" for one in socket.gethostname())
            msgspec.structs.force_setattr(self, "broker_name", name or "DEFAULT_BROKER")
        for field in ("broker_name", "broker_cluster_name", "msg_trace_topic_name"):
            try:
                check_topic(getattr(self, field))
            except InvalidNameError as error:
                what = f"{_SPECS[field].key} is the name of a topic too: {error}"
                raise ConfigError(what, key=_SPECS[field].key) from error
        for one in self.name_servers:
            parse_address("namesrvAddr", one, "write 10.0.0.1:9876, and ; between several")

    @property
    def address(self) -> str:
        """What clients are told: ``brokerIP1:listenPort``."""
        return address_text(self.broker_ip1, self.listen_port)

    @property
    def store_host(self) -> str:
        """What records say of where they were stored: the address, of a name its number."""
        return store_host(self.broker_ip1, self.listen_port)

    def in_role(self, role: BrokerRole) -> Self:
        """Return the settings of a master, whose id is 0, or of a slave; as BrokerStartup has it.

        Raises `ConfigError` where a slave's id is not above 0.
        """
        if role is not BrokerRole.SLAVE:
            return msgspec.structs.replace(self, broker_id=0)
        if self.broker_id <= 0:
            raise ConfigError("a slave has a brokerId above 0: set brokerId=1", key="brokerId")
        return self

    @property
    def name_servers(self) -> list[str]:
        """The name servers outside of this process."""
        return [one.strip() for one in self.namesrv_addr.split(";") if one.strip()]

    @property
    def ports(self) -> list[tuple[str, int, str]]:
        """Where it listens, and the key of each port: its name server first, if it has one."""
        host = listening_host(self.broker_ip1)
        own = [] if self.name_servers else [(host, self.namesrv_port, "namesrvPort")]
        return [*own, (host, self.listen_port, "listenPort")]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """Return the settings of a ``broker.conf``; keys of others are not looked at.

        Raises
        ------
        ConfigError
            A text is no value of its key.
        """
        own: dict[str, Any] = {}
        for field, spec in _SPECS.items():
            if spec.key in properties:
                own[field] = parse_value(properties[spec.key].strip(), spec)
        return cls(**own)


def free_port() -> int:
    """Return a free port: clients, records and name servers are told of it."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


_SPECS: Final = field_specs(BrokerSettings)

BROKER_KEYS: Final = frozenset(BrokerSettings.__struct_encode_fields__)
"""The keys of a ``broker.conf`` that a broker takes."""
