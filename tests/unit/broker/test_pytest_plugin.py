"""The fixtures that a user's suite gets from the plugin, in a run of pytest of its own."""

import time
import tomllib

import pytest

from rocketstore.broker.testing import Broker
from rocketstore.errors import ConfigError, RemotingError, ResponseError
from rocketstore.units import MiB
from support.broker_desk import SEND
from support.broker_wire import Wire
from support.python_process import run_python
from support.repository import ROOT

SUITE = """\
import sys

known = {}


def test_before_anybody_asks_no_broker_is_imported():
    assert "rocketstore.broker.pytest_plugin" in sys.modules
    assert {"numpy", "msgspec", "rocketstore.message_store"} & set(sys.modules) == set()


def test_first(rocketmq_broker, rocketmq_broker_session):
    known.update(own=rocketmq_broker, shared=rocketmq_broker_session)
    assert rocketmq_broker.name_server != rocketmq_broker_session.name_server
    assert rocketmq_broker_session.store.topics() == []
    rocketmq_broker_session.make_topic("orders")


def test_second(rocketmq_broker, rocketmq_broker_session):
    assert known["own"] is not rocketmq_broker
    assert known["own"].store.is_closed
    assert known["shared"] is rocketmq_broker_session
    assert not rocketmq_broker_session.store.is_closed
"""


def test_a_suite_gets_a_broker_of_its_own_and_one_for_all(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = project["entry-points"]["pytest11"]["rocketstore"]
    (tmp_path / "test_suite.py").write_text(SUITE)
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = run_python(
        *("-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider", "."),
        cwd=tmp_path,
        env=alone | {"ROCKETSTORE_KERNELS": "off"},
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_broker_for_a_test_is_ready_within_a_second_and_takes_few_megabytes():
    """Of processor time: what a machine with other load gives is not the broker's."""
    began = time.process_time()
    with Broker() as broker, Wire(broker.address) as wire:
        assert time.process_time() - began < 1
        assert {wire.ask(310, SEND, b"x" * 100).code for _ in range(100)} == {0}
        broker.store.wait_dispatched()
        root = broker.store.layout.root
        taken = sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())
        assert taken < 5 * MiB
    assert not root.exists()


def test_a_topic_is_found_by_the_client_that_looks_next():
    with Broker() as broker, Wire(broker.name_server) as names:
        assert names.ask(105, {"topic": "orders"}).code == 17
        broker.make_topic("orders", queue_count=2)
        route = names.ask(105, {"topic": "orders"})
        assert (route.code, b'"readQueueNums":2' in route.body) == (0, True)
        with pytest.raises(ResponseError, match="conflict with system topic"):
            broker.make_topic("TBW102")
    with pytest.raises(RemotingError, match="does not run"):
        broker.make_topic("orders")


def test_a_broker_that_does_not_run_makes_no_topic_and_one_that_runs_is_not_entered_again():
    broker = Broker()
    with pytest.raises(RemotingError, match="does not run; enter it"):
        broker.make_topic("orders")
    with broker:
        root = broker.store.layout.root
        with pytest.raises(RemotingError, match=f"runs already, at {broker.address}"), broker:
            pass
        broker.make_topic("orders")
        assert root.exists()
    with broker:
        broker.make_topic("orders")


def test_a_broker_may_be_closed_before_it_began_and_twice():
    broker = Broker()
    broker.close()
    with broker:
        broker.make_topic("orders")
        broker.close()
    broker.close()


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("autoCreateTopicEnable", r"did you mean auto_create_topic_enable\?"),
        (
            "message_delay_level",
            r"one of the store: config=StoreConfig.small\(message_delay_level=…",
        ),
        ("unheard_of", "see the fields of BrokerSettings"),
    ],
)
def test_a_setting_that_a_broker_does_not_have_is_refused_before_it_is_entered(setting, hint):
    with pytest.raises(ConfigError, match=f"{setting} is no setting of a broker; .*{hint}"):
        Broker(**{setting: "1s"})
