"""Begin, commit, roll back: what is stored, what is answered, what a kill leaves."""

import threading
import tracemalloc
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketstore import (
    EndStatus,
    FormatError,
    InvalidNameError,
    Message,
    MessageStore,
    PutMessageStatus,
    RefusedMessageError,
)
from rocketstore.format.host import HOST_V4_SIZE, HOST_V6_SIZE, encode_host
from rocketstore.format.metadata_json import loads
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE, TOPIC_SIZE_MAX
from rocketstore.native.log_end import Record
from rocketstore.rules.half_messages import TRANSACTION_GROUP as GROUP
from rocketstore.transaction import ledger, transactions
from rocketstore.transaction.ledger import Ledger, open_transactions, read_ledger
from rocketstore.transaction.records import HALF, OP, ROOM_BYTES, op_record
from rocketstore.units import QueueKey
from support.clock import START_MS
from support.interrupts import InterruptAt
from support.small_store import CONFIG
from support.transaction_stores import TransactionStores, all_of, ended, refusing

ORDERS = QueueKey("orders", 3)
MESSAGE = Message(
    topic="orders", body=b"o-17", keys="o-17", tags="created", properties={"a": "1"},
    flag=7, reconsume_times=2, born_timestamp_ms=START_MS - 5, unique_key="K1",
)  # fmt: skip


@pytest.fixture
def store(stores):
    return stores.store


@pytest.mark.parametrize("topic", [DELAY_TOPIC, HALF.topic])
@pytest.mark.parametrize("properties", [None, {"DELAY": "1"}])
def test_a_topic_that_nothing_is_delivered_to_is_no_message_s_own(topic, properties, store):
    """Also where a half message names it already: it harms no other one."""
    with pytest.raises(InvalidNameError, match=topic):
        store.begin(Message(topic=topic, body=b"x", properties=properties))
    named = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02PGROUP\x01billing\x02DELAY\x011"
    put = store.put_record(*HALF, Record(b"x", named.encode(), encode_host("127.0.0.1:1")))
    half = store.begin(MESSAGE, ORDERS.queue_id, producer_group="billing")
    assert store.commit(half).status is EndStatus.COMMITTED
    end = store.end_transaction("billing", put.queue_offset, put.physical_offset, commits=True)
    assert end.status is EndStatus.NOT_A_HALF_MESSAGE
    assert [one.body for one in all_of(store, ORDERS)] == [MESSAGE.body]


def test_a_half_message_is_hidden_until_it_is_committed(stores, store):
    half = store.begin(MESSAGE, ORDERS.queue_id, producer_group="billing")
    assert half.put.status is PutMessageStatus.PUT_OK
    assert not all_of(store, ORDERS)

    stored = store.at_physical_offset(half.physical_offset)
    assert stored is not None
    assert (stored.topic, stored.queue_id, stored.queue_offset) == (*HALF, half.queue_offset)
    assert stored.message_id == half.message_id
    assert stored.properties == {
        "a": "1", "KEYS": "o-17", "UNIQ_KEY": "K1", "TAGS": "created", "TRAN_MSG": "true",
        "PGROUP": "billing", "REAL_TOPIC": "orders", "REAL_QID": "3",
    }  # fmt: skip

    stores.clock.now_ms += 10
    result = store.commit(half)
    assert result.status is EndStatus.COMMITTED
    [final] = all_of(store, ORDERS)
    assert final.prepared_transaction_offset == half.physical_offset
    assert final.sys_flag & 0xC == 0x8
    assert final.raw_properties == stored.raw_properties
    for name in ("raw_body", "flag", "reconsume_times", "born_timestamp_ms", "born_host"):
        assert getattr(final, name) == getattr(stored, name) == getattr(MESSAGE, name, b"o-17")
    [op] = all_of(store, OP)
    assert (op.body, op.properties, op.sys_flag) == (b"0", {"WAIT": "true", "TAGS": "d"}, 0)


def test_open_half_messages_are_read_at_a_start_without_keeping_their_bodies(stores):
    store, body = stores.store, bytes(5000)
    for _ in range(200):
        assert store.begin(msgspec.structs.replace(MESSAGE, body=body)).put.is_stored
    store.wait_dispatched()
    tracemalloc.start()
    try:
        _, halves = read_ledger(store, lambda *_: None)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(halves) == 200
    assert held < 200 * len(body) // 2


def test_a_rollback_leaves_nothing_to_consume(store):
    first, second = (store.begin(MESSAGE, ORDERS.queue_id) for _ in range(2))
    assert store.rollback(second).status is EndStatus.ROLLED_BACK
    assert not all_of(store, ORDERS)
    assert ended(store) == [b"1"]
    assert store.commit(first).status is EndStatus.COMMITTED
    assert ended(store) == [b"1", b"0"]


@pytest.mark.parametrize("reopened", ["no", "closed", "killed"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_transaction_ends_once(stores, reopened, store, *, first, second):
    half = store.begin(MESSAGE, ORDERS.queue_id)
    ends = (store.commit if first else store.rollback)(half)
    assert ends.status in (EndStatus.COMMITTED, EndStatus.ROLLED_BACK)
    if reopened != "no":
        store = stores.reopen(killed=reopened == "killed")
    again = (store.commit if second else store.rollback)(half)
    assert again.status is EndStatus.ENDED_ALREADY
    assert len(all_of(store, ORDERS)) == first
    assert ended(store) == [b"0"]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("commits_again", [True, False])
def test_a_kill_in_a_commit_neither_loses_nor_doubles_it(
    stores, number, store, *, after, commits_again, indexed
):
    store.config = msgspec.structs.replace(store.config, message_index_enable=indexed)
    half = store.begin(MESSAGE, ORDERS.queue_id)
    with stores.killed_at_put(number, after=after):
        store.commit(half)
    store = stores.reopen(killed=True)
    store.config = msgspec.structs.replace(store.config, message_index_enable=indexed)
    is_committed = after or number > 0
    assert len(all_of(store, ORDERS)) == is_committed
    result = (store.commit if commits_again else store.rollback)(half)
    if is_committed:
        assert result.status is EndStatus.ENDED_ALREADY
    assert len(all_of(store, ORDERS)) == (is_committed or commits_again)
    assert ended(store) == [b"0"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("key", ["K1", None])
def test_what_ended_is_known_whatever_was_indexed_before_and_after_a_kill(
    tmp_path, key, *, before, after
):
    first = msgspec.structs.replace(CONFIG, message_index_enable=before)
    stores = TransactionStores(tmp_path, first)
    half = stores.store.begin(msgspec.structs.replace(MESSAGE, unique_key=key), ORDERS.queue_id)
    with stores.killed_at_put():
        stores.store.commit(half)
    stores.config = msgspec.structs.replace(CONFIG, message_index_enable=after)
    store = stores.reopen(killed=True)
    assert store.commit(half).status is EndStatus.ENDED_ALREADY
    assert len(all_of(store, ORDERS)) == 1
    assert not [*open_transactions(store)]
    stores.store.abandon()


@pytest.mark.parametrize("levels", ["1s", "1s 5s 10s 1h 2h", "0s 0s 0s 0s 0s 0s"])
@pytest.mark.parametrize("asked", ["1", "3", "5"])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_delayed_commit_is_put_once_whatever_became_of_the_levels(
    tmp_path, levels, asked, *, indexed
):
    first = msgspec.structs.replace(
        CONFIG, message_index_enable=indexed, message_delay_level="1h 2h 3h 4h"
    )
    stores = TransactionStores(tmp_path, first)
    delayed = msgspec.structs.replace(MESSAGE, properties={"DELAY": asked})
    half = stores.store.begin(delayed, ORDERS.queue_id)
    with stores.killed_at_put():
        stores.store.commit(half)
    stores.config = msgspec.structs.replace(first, message_delay_level=levels)
    store = stores.reopen(killed=True)
    assert store.commit(half).status is EndStatus.ENDED_ALREADY
    queues = [key for key in store.queues() if key.topic == DELAY_TOPIC]
    assert sum(len(all_of(store, key)) for key in queues) == 1
    assert not all_of(store, ORDERS)
    stores.store.abandon()


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("commits_again", [True, False])
def test_after_an_interrupted_end_the_next_call_finds_out_what_happened(
    stores, number, store, *, after, commits_again
):
    half = store.begin(MESSAGE, ORDERS.queue_id)
    with stores.killed_at_put(number, after=after):
        store.commit(half)
    (store.commit if commits_again else store.rollback)(half)
    is_committed = commits_again or after or number > 0
    assert len(all_of(store, ORDERS)) == is_committed
    store = stores.reopen(killed=False)
    assert store.commit(half).status is EndStatus.ENDED_ALREADY
    assert set(ended(store)) == {b"0"}


def test_an_interrupted_rollback_is_not_committed_afterwards(stores, store):
    half = store.begin(MESSAGE, ORDERS.queue_id)
    with stores.killed_at_put():
        store.rollback(half)
    assert store.commit(half).status is EndStatus.ENDED_ALREADY
    assert not all_of(store, ORDERS)


def test_what_cannot_be_stored_leaves_the_transaction_open(store):
    half = store.begin(MESSAGE, ORDERS.queue_id)
    with refusing(store, "orders"):
        result = store.commit(half)
    assert (result.status, result.detail) == (EndStatus.NOT_STORED, "full")
    with refusing(store, OP.topic):
        assert store.rollback(half).status is EndStatus.NOT_STORED
    assert store.commit(half).status is EndStatus.COMMITTED
    assert ended(store) == [b"0"]


def test_an_op_message_that_found_no_room_is_put_later(stores, store):
    half = store.begin(MESSAGE, ORDERS.queue_id)
    with refusing(store, OP.topic):
        assert store.commit(half).status is EndStatus.COMMITTED
        assert store.commit(half).status is EndStatus.ENDED_ALREADY
        assert not ended(store)
    store = stores.reopen(killed=False)
    assert ended(store) == [b"0"]
    assert len(all_of(store, ORDERS)) == 1


def test_wrong_ends_are_told_apart_and_change_nothing(store):
    plain = store.put(Message(topic="orders", body=b"plain"), queue_id=3)
    half = store.begin(MESSAGE, ORDERS.queue_id, producer_group="billing")
    store.wait_dispatched()
    end = store.end_transaction
    at, offset = half.physical_offset, half.queue_offset
    end_of_log = store.max_physical_offset
    told = {
        EndStatus.NOT_A_HALF_MESSAGE: end("billing", 0, plain.physical_offset, commits=True),
        EndStatus.WRONG_GROUP: end("other", offset, at, commits=True),
        EndStatus.WRONG_QUEUE_OFFSET: end("billing", 5, at, commits=False),
        EndStatus.WRONG_PHYSICAL_OFFSET: end("billing", offset, at + 4, commits=True),
        EndStatus.NOT_FOUND: end("billing", 9, at + 4, commits=True),
    }
    for status, result in told.items():
        assert result.status is status
        assert result.detail
    assert end("billing", -1, -1, commits=True).status is EndStatus.NOT_FOUND
    assert store.max_physical_offset == end_of_log
    assert store.commit(half).status is EndStatus.COMMITTED


def test_what_could_never_be_committed_does_not_begin(store):
    with pytest.raises(InvalidNameError):
        store.begin(Message(topic="../orders"))
    with pytest.raises(InvalidNameError):
        store.begin(Message(topic=HALF.topic))
    with pytest.raises(InvalidNameError):
        store.begin(MESSAGE, -1)
    with pytest.raises(RefusedMessageError):
        store.begin(Message(topic="orders", properties={"a\x01": "b"}))
    with pytest.raises(RefusedMessageError):
        store.begin("orders")  # type: ignore[arg-type]
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("size", range(32_500, 32_768, 23))
def test_a_half_message_leaves_room_for_its_checks(stores, size):
    half = stores.store.begin(Message(topic="orders", properties={"a": "x" * size}))
    assert half.put.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    assert half.put.detail is not None
    assert ("that checks add" in half.put.detail) == (size > 32_574)
    assert stores.store.commit(half).status is EndStatus.NOT_FOUND


def test_a_half_message_leaves_room_in_its_file_for_the_longest_copy(stores):
    def begun(size):
        return stores.store.begin(Message(topic="orders", body=bytes(size), unique_key="k")).put

    sizes = range(stores.store.config.mapped_file_size_commit_log)
    longest = bisect_left(sizes, 1, key=lambda size: not begun(size).is_stored) - 1
    refused = begun(longest + 1)
    assert refused.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    assert "for a copy at its longest" in refused.detail
    more_host, more_topic = HOST_V6_SIZE - HOST_V4_SIZE, TOPIC_SIZE_MAX - len(HALF.topic)
    at_longest = begun(longest).size + ROOM_BYTES + more_topic + more_host
    assert at_longest + END_FILE_MIN_BLANK_SIZE == len(sizes)


def test_a_message_without_a_key_gets_one(store):
    first, second = (store.begin(Message(topic="orders")) for _ in range(2))
    assert first.transaction_id != second.transaction_id
    assert len(first.transaction_id) == 32
    [one, two] = all_of(store, HALF)
    assert (one.unique_key, two.unique_key) == (first.transaction_id, second.transaction_id)
    assert one.properties["PGROUP"] == first.producer_group == "DEFAULT_PRODUCER"


def test_the_groups_offsets_pass_over_what_has_ended(stores, store):
    halves = [store.begin(MESSAGE, number) for number in range(5)]
    for half in (halves[0], halves[1], halves[3]):
        store.commit(half)
    store = stores.reopen(killed=False)
    assert offsets(stores.root) == {HALF.topic: 2, OP.topic: 2}
    store.commit(halves[4])
    store.rollback(halves[2])
    stores.reopen(killed=False)
    assert offsets(stores.root) == {HALF.topic: 5, OP.topic: 5}


class _Busy:
    """A store in which another transaction begins at a chosen look at the half queue."""

    def __init__(self, store: MessageStore, look: int) -> None:
        self._store, self._left = store, look

    def max_offset(self, topic: str, queue_id: int) -> int:
        stop = self._store.max_offset(topic, queue_id)
        self._left -= topic == HALF.topic
        if self._left == 0 and topic == HALF.topic:
            self._store.begin(MESSAGE)
            self._store.wait_dispatched()
        return stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("look", range(1, 7))
def test_what_begins_while_the_queues_are_read_is_open(stores, look):
    halves = [stores.store.begin(MESSAGE) for _ in range(2)]
    stores.store.rollback(halves[0])
    stores.store.wait_dispatched()
    known, _ = read_ledger(_Busy(stores.store, look), lambda *_: None)  # type: ignore[arg-type]
    begun = all_of(stores.store, HALF)
    assert [known.is_open(half.queue_offset) for half in begun] == [False, True, True][: len(begun)]


def test_what_waits_is_read_once_for_all_who_are_the_first_to_ask(stores, monkeypatch):
    halves = [stores.store.begin(MESSAGE) for _ in range(2)]
    store, reads = stores.reopen(killed=False), []

    def read(*given: Any) -> Any:
        reads.append(given)
        threading.Event().wait(0.05)  # the other one comes
        return read_ledger(*given)

    monkeypatch.setattr(transactions, "read_ledger", read)
    with ThreadPoolExecutor(2) as pool:
        assert {end.status for end in pool.map(store.rollback, halves)} == {EndStatus.ROLLED_BACK}
    assert len(reads) == 1


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("count", [1, 12, 30])
def test_a_half_message_that_nobody_ends_holds_little_back(stores, monkeypatch, count, *, killed):
    monkeypatch.setattr(transactions, "SETTLE_EVERY", 4)
    monkeypatch.setattr(ledger, "LONGEST", 10)
    store = stores.store
    message = Message(topic="orders")  # each gets a key of its own
    waiting = [store.begin(message, number) for number in range(count)]
    for _ in range(100):
        assert store.commit(store.begin(message, ORDERS.queue_id)).status is EndStatus.COMMITTED
        store.wait_dispatched()
    store.consumer_offsets.save()
    store = stores.reopen(killed=killed)
    length = store.max_offset(*HALF) - offsets(stores.root)[HALF.topic]
    assert length <= max(10, 2 * count) + 4
    assert {half.properties["REAL_QID"] for half in open_transactions(store)} == {
        str(number) for number in range(count)
    }
    # It is ended by the offsets with which it began, once.
    assert [store.commit(half).status for half in waiting] == [EndStatus.COMMITTED] * count
    assert [store.commit(half).status for half in waiting] == [EndStatus.ENDED_ALREADY] * count


def test_ends_of_what_lies_before_the_base_do_not_have_open_ones_moved():
    known = Ledger(10_000, 0)
    for offset in range(10_000):
        known.end(offset)
    assert not known.is_long(20_001)


def offsets(root: Path) -> dict[str, int]:
    table = loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"]
    return {name.removesuffix("@CID_RMQ_SYS_TRANS"): queues[0] for name, queues in table.items()}


@pytest.mark.parametrize("opened_again", [True, False])
def test_an_op_message_of_a_half_message_to_come_ends_nothing(stores, store, *, opened_again):
    store.rollback(store.begin(MESSAGE, ORDERS.queue_id))
    for body in (b"0", b"1", b"2", b"-1", b"x", b"9" * 400):
        store.put(Message(topic=OP.topic, body=body, tags="d"))
    half = store.begin(MESSAGE, ORDERS.queue_id)
    if opened_again:
        store = stores.reopen(killed=True)
    else:
        store.wait_dispatched()
        store.attached["transactions"].read_ops()
    assert store.commit(half).status is EndStatus.COMMITTED
    store = stores.reopen(killed=True)
    assert store.commit(half).status is EndStatus.ENDED_ALREADY


def test_two_threads_end_a_transaction_once(store):
    halves = [store.begin(MESSAGE, ORDERS.queue_id) for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(store.commit, halves * 4))
    assert sum(result.status is EndStatus.COMMITTED for result in results) == len(halves)
    assert len(all_of(store, ORDERS)) == len(halves)


def test_a_broken_table_of_offsets_stops_transactions_only(stores):
    half = stores.store.begin(MESSAGE)
    stores.store.close()
    (stores.root / "config").mkdir(exist_ok=True)
    (stores.root / "config" / "consumerOffset.json").write_text("[1]")
    with MessageStore.open(stores.root, CONFIG) as store:
        assert store.put(Message(topic="orders")).status is PutMessageStatus.PUT_OK
        with pytest.raises(FormatError):
            store.commit(half)


def test_an_open_with_threads_finishes_what_a_kill_left(stores):
    half = stores.store.begin(MESSAGE, ORDERS.queue_id)
    with stores.killed_at_put():
        stores.store.commit(half)
    stores.store.abandon()
    with MessageStore.open(stores.root, CONFIG) as store:
        assert ended(store) == [b"0"]
        assert len(all_of(store, ORDERS)) == 1
    assert offsets(stores.root) == {HALF.topic: 1, OP.topic: 1}


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_message_with_a_delay_waits_after_its_commit(stores, number, store, *, after):
    waiting = QueueKey(DELAY_TOPIC, 1)
    half = store.begin(msgspec.structs.replace(MESSAGE, properties={"DELAY": "2"}), 3)
    assert len(all_of(store, HALF)) == 1
    with stores.killed_at_put(number, after=after):
        store.commit(half)
    store = stores.reopen(killed=True)
    store.commit(half)
    [final] = all_of(store, waiting)
    assert final.prepared_transaction_offset == half.physical_offset
    assert final.sys_flag & 0xC == 0x8
    assert not all_of(store, ORDERS)
    assert ended(store) == [b"0"]


def test_an_op_message_counts_until_the_last_one_that_it_names_has_ended(tmp_path):
    """As brokers of 5.x write them: one for several half messages."""
    table = tmp_path / "config" / "consumerOffset.json"

    def offsets() -> list[int]:
        saved = loads(table.read_bytes())["offsetTable"]
        return [saved[f"{queue.topic}@{GROUP}"][0] for queue in (HALF, OP)]

    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        halves = [store.begin(Message(topic="T", body=b"%d" % one), 0) for one in range(4)]
        one = op_record(0, store.config.store_host)
        several = Record(b"0,2,", one.properties, one.born_host)
        assert store.put_record(*OP, several).is_stored
        for ended in (halves[0], halves[2]):
            assert store.rollback(ended).status is EndStatus.ENDED_ALREADY
    assert offsets() == [1, 0]
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        assert store.rollback(halves[2]).status is EndStatus.ENDED_ALREADY
        assert store.rollback(halves[1]).status is EndStatus.ROLLED_BACK
    assert offsets() == [3, 2]


def test_an_interrupt_of_advance_opens_nothing_again():
    interrupts, line, is_interrupted = InterruptAt("transaction"), 0, True
    while is_interrupted:
        line += 1
        ledger = Ledger(0, 0)
        for offset in range(5):
            ledger.end(offset)
        is_interrupted = interrupts.run(line, ledger.advance)
        assert not any(map(ledger.is_open, range(5))), interrupts.where
        ledger.advance()
        assert ledger.base == 5
