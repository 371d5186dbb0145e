"""Delayed messages between us and the genuine ScheduleMessageService: either goes on."""

import time

import pytest

from rocketstore import Message, MessageStore
from support.both_sides import small_config
from support.java_store import SMALL_FILES, JavaStore, message_json
from support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

TOPIC = "later"


def put_ours(store: MessageStore, *bodies: bytes, level: int = 1) -> None:
    for body in bodies:
        store.put(
            Message(topic=TOPIC, body=body, properties={"DELAY": str(level)})
        ).raise_for_status()


def put_java(java: JavaStore, *bodies: bytes, level: int = 1, **more: str) -> None:
    asked = [("DELAY", str(level)), *more.items()]
    java.put([message_json(TOPIC, body, properties=asked) for body in bodies])


def wait_ours(store: MessageStore, count: int) -> list[bytes]:
    """Wait until so many are delivered; return what is, a look later."""
    assert store.wait_for(TOPIC, 0, count - 1, PATIENCE_S), store.max_offset(TOPIC, 0)
    time.sleep(0.3)  # for one that is delivered twice
    return [message.body for message in store.get(TOPIC, 0, 0).messages]


def wait_java(java: JavaStore, count: int) -> list[dict]:
    wait_until(lambda: len(java.read_queue(TOPIC)) >= count)
    return java.read_queue(TOPIC)


def test_java_delivers_what_waits_in_our_store_and_we_go_on_after_it(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, b"1", b"2")
        assert wait_ours(ours, 2) == [b"1", b"2"]
        put_ours(ours, b"3", b"4")  # wait when it is closed
    with JavaStore(tmp_path, SMALL_FILES) as java:
        found = wait_java(java, 4)
        assert len(found) == 4
        for message in found:
            assert message["properties"] == {"DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
        put_java(java, b"5")
        assert len(wait_java(java, 5)) == 5
        put_java(java, b"6", level=2)
    with MessageStore.open(tmp_path, small_config()) as ours:
        assert wait_ours(ours, 6) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(
    "several", [{}, {"INNER_MULTI_DISPATCH": "%LMQ%a"}], ids=["one", "several"]
)
def test_what_a_halted_java_store_had_delivered_is_not_delivered_again(tmp_path, several):
    """It was halted before it wrote its offsets down, which 4.9 does every 10 s."""
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"} if several else {}
    java = JavaStore(tmp_path, SMALL_FILES | settings)
    put_java(java, b"1", b"2", b"3", **several)
    assert len(wait_java(java, 3)) == 3
    put_java(java, b"4", b"5")
    java.wait_dispatched()
    java.halt()
    assert not (tmp_path / "config/delayOffset.json").exists()
    with MessageStore.open(tmp_path, small_config(**settings)) as ours:
        assert wait_ours(ours, 5) == [b"1", b"2", b"3", b"4", b"5"]
