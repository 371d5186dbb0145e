"""A broker that runs: its thread, its ports, its end."""

import contextlib
import errno
import socket
import time

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.broker.flow_control import FlowControl
from rocketstore.broker.registration import LONGEST_WAIT_S
from rocketstore.broker.service import BrokerService
from rocketstore.broker.settings import BrokerSettings
from rocketstore.broker.testing import Broker
from rocketstore.config import BrokerRole, FlushDiskType
from rocketstore.errors import ConfigError, FormatError, RemotingError, SystemRefusedError
from support.broker_desk import SEND, place_of
from support.broker_wire import Wire
from support.patience import wait_until
from support.ports import free_port
from unit.broker.test_pulling import PULL

HELD = (11, {**PULL, "queueOffset": 1, "suspendTimeoutMillis": 600_000}, b"")


def test_client_that_asks_the_name_server_inside_finds_the_broker():
    with Broker() as broker, Wire(broker.address) as wire, Wire(broker.name_server) as names:
        assert names.ask(105, {"topic": "orders"}).code == 17
        assert wire.ask(310, SEND, b"x").code == 0
        route = names.ask(105, {"topic": "orders"}).body.decode()  # known before the reply
        assert f'0:"{broker.address}"' in route


def test_held_pull_is_woken_by_a_put_of_the_program():
    with Broker() as broker, Wire(broker.address) as wire:
        wire.ask(310, SEND, b"first")
        broker.store.wait_dispatched()
        found = wire.ask_while(
            HELD, lambda: broker.store.put(Message(topic="orders", body=b"second"))
        )
        assert found.code == 0
        assert b"second" in found.body


def test_clients_of_the_vip_channel_are_served_two_ports_below():
    with Broker() as broker:
        host, _, port = broker.address.rpartition(":")
        vip = f"{host}:{int(port) - 2}"
        with Wire(vip) as wire, Wire(broker.address) as other:
            assert wire.ask(310, SEND, b"first").code == 0
            broker.store.wait_dispatched()
            found = wire.ask_while(HELD, lambda: other.ask(310, SEND, b"second"))
            assert b"second" in found.body
            assert (
                wire.ask_while((11, {**HELD[1], "queueOffset": 2}, b""), broker.store.close).code
                == 14
            )


def test_broker_starts_where_the_port_of_the_vip_channel_is_in_use():
    with socket.socket() as taken:
        while taken.getsockname()[1] == 0:
            with contextlib.suppress(OSError):  # the one below is not free
                port = free_port()
                taken.bind(("127.0.0.1", port - 2))
        taken.listen()
        with Broker(listen_port=port) as broker, Wire(broker.address) as wire:
            assert wire.ask(310, SEND, b"x").code == 0


@pytest.mark.parametrize(
    ("settings", "code"), [({}, 0), ({"wait_time_mills_in_send_queue": 200}, 2)]
)
def test_sends_to_a_broker_of_a_test_may_wait_for_a_busy_machine(monkeypatch, settings, code):
    refusal = FlowControl.refusal

    def refusal_of_late(self, call, waiting):
        call.received_ms -= 300
        return refusal(self, call, waiting)

    monkeypatch.setattr(FlowControl, "refusal", refusal_of_late)
    with Broker(**settings) as broker, Wire(broker.address) as wire:
        assert wire.ask(310, SEND, b"x").code == code


def test_held_pull_is_refused_as_the_store_closes():
    with Broker() as broker, Wire(broker.address) as wire:
        wire.ask(310, SEND, b"first")
        broker.store.wait_dispatched()
        began = time.monotonic()
        assert wire.ask_while(HELD, broker.store.close).code == 14
        assert time.monotonic() - began < 60  # of 600 s
        with pytest.raises(RemotingError, match="broker broker-a is not running"):
            broker.make_topic("orders")


def test_one_sync_serves_many_messages_and_each_is_on_the_disk():
    config = StoreConfig.small(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with Broker(config=config) as broker, Wire(broker.address) as wire:
        wire.ask(310, SEND, b"first")
        before = sum(broker.store.statistics.syncs.counts)
        replies = wire.ask_all(*[(310, {**SEND, "e": number % 4}, b"x") for number in range(64)])
        assert {reply.code for reply in replies} == {0}
        assert broker.store.flushed_physical_offset == broker.store.max_physical_offset
        assert 0 < sum(broker.store.statistics.syncs.counts) - before < 32


def test_replies_of_slow_requests_come_when_they_come():
    with Broker() as broker, Wire(broker.address) as wire:
        offset = place_of(wire.ask(310, {**SEND, "i": "KEYS\1k"}, b"x"))
        broker.store.wait_dispatched()
        view, sent, query = wire.ask_all(
            (33, {"offset": offset}, b""),
            (310, SEND, b"y"),
            (12, {"topic": "orders", "key": "k", "maxNum": 9, "beginTimestamp": 0,
                  "endTimestamp": 2**62}, b""),
        )  # fmt: skip
        assert (view.code, sent.code, query.code) == (0, 0, 0)
        assert view.body == query.body == broker.store.get_raw("orders", 0, 0, 1).records


@pytest.mark.parametrize(
    ("field", "key"), [("listen_port", "listenPort"), ("namesrv_port", "namesrvPort")]
)
def test_port_that_is_in_use_fails_the_opening_and_the_store_is_closed(tmp_path, field, key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"listen_port": 0, "namesrv_port": 0, field: taken.getsockname()[1]}
        make = BrokerService.with_settings(BrokerSettings(broker_name="b", **ports))
        with pytest.raises(RemotingError, match=f"Address already in use; set {key} to another"):
            MessageStore.open(tmp_path, StoreConfig.small(), services=[make])
    with MessageStore.open(tmp_path, StoreConfig.small(), services=[make]) as store:
        assert store.put(Message(topic="orders")).is_stored
    assert not store.layout.abort.exists()


@pytest.mark.parametrize("table", ["topics", "subscriptionGroup", "consumerOffset"])
def test_broken_table_that_requests_need_fails_the_opening(tmp_path, table):
    path = tmp_path / "config" / f"{table}.json"
    path.parent.mkdir()
    path.write_bytes(b"{")
    broker = Broker(tmp_path)
    with pytest.raises(FormatError, match=f"{table}.json: .*bring the table back"):
        broker.__enter__()
    path.unlink()
    with broker:
        assert not path.exists()


@pytest.mark.parametrize(
    "refused",
    [
        "broker.service.new_event_loop",
        "broker.service.first_topics",
        "broker.registration.Registration.first",
    ],
)
def test_what_the_system_refuses_a_broker_fails_the_opening_by_an_error_with_a_hint(
    tmp_path, monkeypatch, refused
):
    settings = BrokerSettings(listen_port=free_port(), namesrv_addr="127.0.0.1:1", broker_name="b")
    make = BrokerService.with_settings(settings)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as failing:
        failing.setattr(f"rocketstore.{refused}", fail)
        with pytest.raises(SystemRefusedError, match=r"broker b cannot start: .*ulimit -n"):
            MessageStore.open(tmp_path, StoreConfig.small(), services=[make])
    MessageStore.open(tmp_path, StoreConfig.small(), services=[make]).close()


def test_closed_broker_listens_no_more_and_is_gone_from_the_name_server():
    names = Broker()
    with names, Wire(names.name_server) as wire:
        with Broker(namesrv_addr=names.name_server, broker_name="other") as other:
            wait_until(lambda: b"other" in wire.ask(106).body)
        assert b"other" not in wire.ask(106).body
        host, port = other.address.split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def test_topics_and_offsets_are_there_after_a_restart(tmp_path):
    fields = {"topic": "orders", "queueId": 0, "consumerGroup": "G"}
    for is_first in (True, False):
        with Broker(tmp_path) as broker, Wire(broker.address) as wire:
            if is_first:
                wire.ask(310, SEND, b"x")
                broker.store.wait_dispatched()
                wire.ask(15, {**fields, "commitOffset": 1})
            assert wire.ask(14, fields).fields == {"offset": "1"}
            assert wire.ask(11, {**PULL, "queueOffset": 1, "sysFlag": 4}).code == 19


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("brokerName", "a b"), ("brokerClusterName", ""), ("brokerIP1", ""), ("listenPort", "many"),
        ("listenPort", ""), ("listenPort", "10911.0"), ("listenPort", "65536"),
        ("namesrvPort", "65536"), ("autoCreateTopicEnable", "yes"), ("traceOn", ""),
        ("registerNameServerPeriod", "0"), ("defaultTopicQueueNums", "0"),
        ("namesrvAddr", "10.0.0.1"), ("namesrvAddr", "10.0.0.1:9876,10.0.0.2:9876"),
        ("namesrvAddr", "10.0.0.1:9876;10.0.0.2:0"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused_by_their_key(key, text):
    with pytest.raises(ConfigError, match=key) as caught:
        BrokerSettings.of({key: text})
    assert caught.value.key == key


def test_a_program_is_told_of_a_setting_of_another_type():
    with pytest.raises(ConfigError, match="auto_create_topic_enable"):
        BrokerSettings(auto_create_topic_enable="no")  # type: ignore[arg-type]


def test_a_master_has_the_id_0_and_a_slave_another():
    told = BrokerSettings(broker_id=1)
    assert told.in_role(BrokerRole.ASYNC_MASTER).broker_id == 0
    assert told.in_role(BrokerRole.SLAVE) is told
    with pytest.raises(ConfigError, match="brokerId"):
        BrokerSettings().in_role(BrokerRole.SLAVE)


def test_a_producer_finds_a_master_whose_file_says_another_id():
    with Broker(broker_id=1) as broker, Wire(broker.name_server) as wire:
        route = wire.ask(105, {"topic": "SELF_TEST_TOPIC"})
        assert f'{{0:"{broker.address}"}}'.encode() in route.body


@pytest.mark.parametrize(
    ("listens", "stored"),
    [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("[::1]", "[::1]")],
)
def test_records_say_the_number_of_an_address_that_is_a_name(listens, stored):
    """An address of IPv6 stands in brackets, or clients in Go find no port in it."""
    with Broker(broker_ip1=listens) as broker, Wire(broker.name_server) as wire:
        port = int(broker.address.rpartition(":")[2])
        assert broker.store.config.store_host == f"{stored}:{port}"
        told = "localhost" if listens == "localhost" else stored
        assert broker.address == f"{told}:{port}"
        assert broker.name_server.startswith(f"{stored}:")
        route = wire.ask(105, {"topic": "SELF_TEST_TOPIC"})
        assert f'{{0:"{broker.address}"}}'.encode() in route.body
        with Wire(broker.address) as sender:
            assert sender.ask(310, SEND, b"x").code == 0


@pytest.mark.parametrize(
    ("settings", "own"), [({}, "127.0.0.1"), ({"broker_ip1": "127.0.0.2"}, "127.0.0.2")]
)
def test_a_broker_listens_at_its_own_address_and_at_no_other(settings, own):
    with Broker(**settings) as broker:
        for address in (broker.address, broker.name_server):
            host, _, port = address.rpartition(":")
            assert host == own
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.3", int(port)))


@pytest.mark.parametrize("elsewhere", ["203.0.113.7", "2001:db8::1"])
def test_a_broker_that_is_told_as_another_machine_listens_everywhere(elsewhere):
    """In a container the host's address is told, which no socket of the container can have."""
    with Broker(broker_ip1=elsewhere) as broker:
        host, _, port = broker.address.rpartition(":")
        assert (host.strip("[]"), broker.store.config.store_host) == (elsewhere, broker.address)
        with Wire(f"127.0.0.1:{broker.name_server.rpartition(':')[2]}") as wire:
            route = wire.ask(105, {"topic": "SELF_TEST_TOPIC"})
            assert f'{{0:"{broker.address}"}}'.encode() in route.body
        with Wire(f"127.0.0.1:{port}") as sender:
            assert sender.ask(310, SEND, b"x").code == 0


def test_file_of_4_9_says_what_it_is_about_the_broker():
    settings = BrokerSettings.of(
        {"brokerName": " broker-c ", "brokerId": "0", "namesrvAddr": "a:1; b:2",
         "autoCreateTopicEnable": "false", "flushDiskType": "SYNC_FLUSH"}
    )  # fmt: skip
    assert (settings.broker_name, settings.auto_create_topic_enable) == ("broker-c", False)
    assert settings.name_servers == ["a:1", "b:2"]


def test_free_port_is_one_that_nobody_has():
    with socket.create_server(("127.0.0.1", BrokerSettings(listen_port=0).listen_port)):
        pass


def test_a_broker_is_known_to_its_name_servers_once_it_is_open():
    """A producer that finds no route to the template of topics gives up at once."""
    for _ in range(10):
        with Broker() as broker, Wire(broker.name_server) as wire:
            assert wire.ask(105, {"topic": "TBW102"}).code == 0


def test_a_name_server_that_does_not_answer_holds_the_start_up_for_two_seconds_only():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with Broker(namesrv_addr=f"127.0.0.1:{silent.getsockname()[1]}") as broker:
            assert time.monotonic() - began >= LONGEST_WAIT_S == 2.0
            with Wire(broker.address) as wire:
                assert wire.ask(30, {"topic": "-", "queueId": 0}).code == 0
