"""A broker whose store was closed, or whose process forked: it answers no more, and says so."""

import asyncio
import socket

import pytest

from rocketstore.broker.testing import Broker
from rocketstore.remoting.fields import field_rows
from support.broker_desk import SEND, Desk
from support.broker_wire import Wire
from support.descriptors import listening, open_sockets
from support.forked import HeldChild, in_child
from support.patience import PATIENCE_S
from support.trees import tree

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

TEXTS = {"int": "0", "long": "0", "boolean": "false", "string": "other"}
HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"other","subscriptionDataSet":[]}],'
    b'"groupName":"other"}'
)


def sockets() -> set[tuple[str, str]]:
    return {one for one in open_sockets() if one[1].startswith("socket:")}


@pytest.fixture(params=["asyncio", "uvloop"])
def _loop(request, monkeypatch):
    if request.param == "asyncio":
        monkeypatch.setattr("rocketstore.broker.service.new_event_loop", asyncio.new_event_loop)
    else:
        pytest.importorskip("uvloop")


@pytest.mark.usefixtures("_loop")
def test_a_child_has_no_port_and_no_connection_of_a_broker():
    ports, before = listening(), sockets()
    with Broker() as broker, Wire(broker.address) as wire:
        assert wire.ask(310, SEND, b"x").code == 0
        host, port = broker.address.split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            own = {one for one in sockets() - before if one[0] == str(client.fileno())}
            for _ in range(2):  # the client is a peer by then: asyncio takes three turns for that
                wire.ask(30, {"topic": "orders", "queueId": 0})
            child = HeldChild(lambda: None)
            try:
                in_child(lambda: check_child(ports, own))
                assert wire.ask(310, SEND, b"y").code == 0  # the parent goes on
                broker.close()
                assert client.recv(1) == b""  # the child keeps nothing open
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((host, int(port)))
            finally:
                child.let_go()


def check_child(ports: set[object], own: set[tuple[str, str]]) -> None:
    assert listening() == ports
    assert own <= sockets()  # that of the test itself is another's


def test_a_child_that_ends_a_broker_leaves_the_parent_s_files():
    with Broker() as broker:
        in_child(broker.close)
        assert broker.store.layout.root.exists()


@pytest.mark.parametrize("ends", ["closed", "forked"])
def test_every_request_of_a_store_that_is_gone_is_refused_and_writes_nothing(tmp_path, ends):
    desk = Desk(tmp_path)
    desk.send("orders")
    if ends == "closed":
        desk.close()
    before = tree(tmp_path)

    def ask_all() -> None:
        for code, row in desk.table.rows.items():
            fields = {one.name: TEXTS[one.type] for one in field_rows(row.header)}
            answer = desk.answer(code, fields, HEARTBEAT)
            assert answer.code == 14, (row.code, answer)
            assert str(tmp_path) in str(answer.remark)

    if ends == "closed":
        ask_all()
    else:
        in_child(ask_all)
    assert tree(tmp_path) == before
    desk.close()
