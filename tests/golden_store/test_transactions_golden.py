"""The records that a genuine broker and its store wrote for transactions, made again by us."""

import shutil

from rocketstore import EndStatus, MessageStore, ReadOnlyStore
from rocketstore.format.stored_message import StoredMessage
from rocketstore.message import Message
from rocketstore.native.log_end import Record
from rocketstore.rules.half_messages import ended_by
from rocketstore.rules.waiting import real_queue
from rocketstore.storage.reading.reader import messages_of
from rocketstore.transaction.ledger import read_ledger
from rocketstore.transaction.records import (
    HALF,
    OP,
    checked_record,
    final_record,
    half_record,
    known,
    op_record,
    times_checked,
)
from support.golden_stores import golden_root


def is_of(record: Record, stored: StoredMessage) -> None:
    """Compare a record that we made with what a broker stored."""
    assert record.properties == stored.raw_properties
    assert record.body == stored.raw_body
    assert record.sys_flag == stored.sys_flag
    assert record.flag == stored.flag
    assert record.prepared_offset == stored.prepared_transaction_offset
    assert record.reconsume_times == stored.reconsume_times


def as_sent(half: StoredMessage) -> Message:
    """Return the message as its producer sent it."""
    own = ("REAL_TOPIC", "REAL_QID")
    kept = {name: value for name, value in half.properties.items() if name not in own}
    return Message(
        topic=half.properties["REAL_TOPIC"],
        body=half.raw_body,
        properties=kept,
        sys_flag=half.sys_flag | 4,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=half.born_host,
    )


def test_half_messages_are_those_of_a_broker():
    root = golden_root("broker")
    with ReadOnlyStore.open(root) as store:
        halves = list(messages_of(store, HALF, 0))
        assert len(halves) == 16
        for half in halves:
            if known(half).is_copy:
                earlier = next(one for one in halves if one.unique_key == half.unique_key)
                is_of(checked_record(earlier, times_checked(half)), half)
                continue
            queue_id = int(half.properties["REAL_QID"])
            key = half.unique_key or ""
            is_of(half_record(as_sent(half), queue_id, "golden_tx_producer", key), half)


def test_committed_messages_and_op_messages_are_those_of_a_broker():
    root = golden_root("broker")
    with ReadOnlyStore.open(root) as store:
        halves = {half.physical_offset: half for half in messages_of(store, HALF, 0)}
        finals = [
            message
            for key in store.queues()
            for message in messages_of(store, key, 0)
            if message.sys_flag & 0xC == 0x8
        ]
        assert len(finals) == 8
        for final in finals:
            half = halves[final.prepared_transaction_offset]
            assert known(half).identity == known(final).identity
            assert (final.topic, final.queue_id) == real_queue(half)
            is_of(final_record(half), final)
        ops = list(messages_of(store, OP, 0))
        assert len(ops) == 12
        for op in ops:
            (offset,) = ended_by(op.tags, op.raw_body)
            is_of(op_record(offset, op.store_host), op)
            assert op.born_host == op.store_host


def test_a_broker_left_nothing_open_and_we_go_on_where_it_stopped(tmp_path):
    root = golden_root("broker")
    shutil.copytree(root, tmp_path / "store")
    with MessageStore.open(tmp_path / "store") as store:
        ledger, halves = read_ledger(store, store.consumer_offsets.get)
        assert (ledger.base, ledger.op_base, halves) == (16, 12, [])
        for half in list(messages_of(store, HALF, 0)):
            group = half.properties["PGROUP"]
            result = store.end_transaction(
                group, half.queue_offset, half.physical_offset, commits=True
            )
            assert result.status is EndStatus.ENDED_ALREADY
        half = store.begin(Message(topic="GoldenTx", body=b"ours"), 2)
        assert half.queue_offset == 16
        assert store.commit(half).status is EndStatus.COMMITTED
        store.wait_dispatched()
        assert [op.body for op in messages_of(store, OP, 12)] == [b"16"]


def test_without_its_offsets_the_queues_of_a_broker_say_the_same():
    """Which copy stands for which half message, and what was ended, follows from the records."""
    for name, count in (("broker", 0), ("transactions", 0)):
        root = golden_root(name)
        with ReadOnlyStore.open(root) as store:
            ledger, halves = read_ledger(store, lambda *_: None)
            assert len(halves) == count
            ledger.advance()
            assert ledger.base == store.max_offset(*HALF)
            assert ledger.op_base == store.max_offset(*OP)
