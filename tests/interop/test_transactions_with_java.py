"""Transactions between us and a genuine broker's own classes: either ends what the other began."""

import pytest

from rocketstore import CheckAnswer, EndStatus, Message, MessageStore, StoredMessage
from rocketstore.transaction.ledger import open_transactions
from rocketstore.units import QueueKey
from support.both_sides import small_config
from support.java_store import SMALL_FILES, JavaStore, message_json
from support.transaction_stores import all_of

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

ORDERS = QueueKey("orders", 3)
GROUP = "billing"


def begin_ours(store: MessageStore, *bodies: bytes) -> dict[bytes, tuple[int, int]]:
    begun = [
        store.begin(Message(topic="orders", body=body), 3, producer_group=GROUP) for body in bodies
    ]
    assert all(half.put.is_stored for half in begun)
    return dict(
        zip(bodies, [(one.queue_offset, one.physical_offset) for one in begun], strict=True)
    )


def begin_java(java: JavaStore, *bodies: bytes) -> dict[bytes, tuple[int, int]]:
    properties = [("TRAN_MSG", "true"), ("PGROUP", GROUP)]
    messages = [
        message_json(
            "orders",
            body,
            queue_id=3,
            sys_flag=4,
            properties=[*properties, ("UNIQ_KEY", f"J{body!r}")],
        )
        for body in bodies
    ]
    places = [(one["queueOffset"], one["physicalOffset"]) for one in java.begin(messages)]
    return dict(zip(bodies, places, strict=True))


def delivered(store: MessageStore) -> list[bytes]:
    return [message.body for message in all_of(store, ORDERS)]


def test_a_broker_ends_what_we_began_and_we_what_it_began(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        places = begin_ours(ours, b"commit", b"roll back", b"ours", b"asked", b"left")
        ended = ours.end_transaction(GROUP, *places[b"ours"], commits=True)
        assert ended.status is EndStatus.COMMITTED
    with JavaStore(tmp_path, SMALL_FILES) as java:
        assert java.end_transaction(GROUP, *places[b"commit"], commits=True) == 0
        assert java.end_transaction(GROUP, *places[b"roll back"], commits=False) == 0
        java.wait_dispatched()
        # What either has ended is not asked about; a copy of each other is at the tail now.
        asked = java.check_transactions()
        assert list(asked) == [b"asked", b"left"]
        assert java.end_transaction(GROUP, *asked[b"asked"], commits=True) == 0
        places |= begin_java(java, b"java's", b"java's roll back", b"java's own")
        assert java.end_transaction(GROUP, *places[b"java's own"], commits=True) == 0
    with MessageStore.open(tmp_path, small_config()) as ours:
        assert delivered(ours) == [b"ours", b"commit", b"asked", b"java's own"]
        waiting = [one.body for one in open_transactions(ours)]
        assert waiting == [b"left", b"java's", b"java's roll back"]
        for body in (b"commit", b"roll back", b"ours", b"asked", b"java's own"):
            result = ours.end_transaction(GROUP, *places[body], commits=True)
            assert result.status is EndStatus.ENDED_ALREADY, body
        for body in (b"left", b"java's"):  # the first by the offsets with which it began
            result = ours.end_transaction(GROUP, *places[body], commits=True)
            assert result.status is EndStatus.COMMITTED
        result = ours.end_transaction(GROUP, *places[b"java's roll back"], commits=False)
        assert result.status is EndStatus.ROLLED_BACK
    with JavaStore(tmp_path, SMALL_FILES) as java:
        assert java.check_transactions() == {}
        last = [message["body"] for message in java.read_queue(*ORDERS)][4:]
        assert len(last) == 2


def test_a_broker_goes_on_after_a_kill_and_with_our_copies_and_we_with_its(tmp_path):
    ours = MessageStore.open(tmp_path, small_config(transactionTimeOut=0), threads=False)
    places = begin_ours(ours, b"1", b"2", b"3")
    asked: dict[bytes, tuple[int, int]] = {}

    def on_check(half: StoredMessage) -> CheckAnswer:
        asked[half.body] = half.queue_offset, half.physical_offset
        return CheckAnswer.ROLLBACK if half.body == b"3" else CheckAnswer.UNKNOWN

    ours.wait_dispatched()
    ours.check_transactions(on_check)
    assert ours.transaction_checks.turn(2**62 // 10**9) == 3
    ours.abandon()  # before the offsets of the group are saved
    java = JavaStore(tmp_path, SMALL_FILES)
    assert java.end_transaction(GROUP, *asked[b"1"], commits=True) == 0
    java.wait_dispatched()
    java.halt()
    with MessageStore.open(tmp_path, small_config()) as ours:
        assert delivered(ours) == [b"1"]
        for body in (b"1", b"3"):
            result = ours.end_transaction(GROUP, *places[body], commits=True)
            assert result.status is EndStatus.ENDED_ALREADY
        assert [one.body for one in open_transactions(ours)] == [b"2"]
        result = ours.end_transaction(GROUP, *places[b"2"], commits=False)
        assert result.status is EndStatus.ROLLED_BACK
