"""The golden store ``delay``: the same puts at the same times, delivered, leave the same bytes."""

import shutil

import pytest

from rocketstore import Message, MessageStore
from rocketstore.format.metadata_json import DelayOffsets, decode_table
from support.configured_store import small_config
from support.golden_stores import golden_store

SETTINGS = small_config()


def messages_of(golden, facts):
    """Return the messages in the genuine log."""
    offsets = [record["phy"] for record in facts["records"] if record["type"] == "msg"]
    with MessageStore.open(golden, read_only=True) as store:
        return [store.at_physical_offset(offset) for offset in offsets]


def is_copy(stored):
    return stored.topic == stored.properties.get("REAL_TOPIC")


def put(store, stored, *, prepared):
    """Put a message as it was before the store wrote its delay into it."""
    properties = dict(stored.properties)
    topic = properties.pop("REAL_TOPIC", stored.topic)
    queue_id = int(properties.pop("REAL_QID", stored.queue_id))
    if stored.topic != topic and "lv" in properties:
        properties["DELAY"] = properties["lv"]  # the level asked for, beyond 18 too
    message = Message(
        topic=topic,
        body=stored.raw_body,
        properties=properties,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp_ms=stored.born_timestamp_ms,
        born_host=stored.born_host,
        reconsume_times=stored.reconsume_times,
    )
    if prepared:
        return store.put_prepared(store.prepare(message), queue_id=queue_id)
    return store.put(message, queue_id)


@pytest.mark.parametrize("prepared", [False, True], ids=["put", "put_prepared"])
def test_puts_and_deliveries_leave_the_bytes_of_the_genuine_store(tmp_path, prepared):
    golden, facts = golden_store("delay")
    messages = messages_of(golden, facts)
    times = {message.physical_offset: message.store_timestamp_ms for message in messages}
    last = max(times.values())

    def clock():  # the time at which Java appended the record that comes next
        return times.get(store.max_physical_offset, last) if opened else 0

    opened = False
    store = MessageStore.open(tmp_path, SETTINGS, clock=clock, threads=False)
    opened = True
    with store:
        store.delays.turn()
        puts = [message for message in messages if not is_copy(message)]
        assert len(puts) == 46
        for message in puts:
            result = put(store, message, prepared=prepared)
            assert result.physical_offset == message.physical_offset
            assert result.queue_offset == message.queue_offset
        store.wait_dispatched()
        while store.delays.delivery.delivered < len(messages) - len(puts):
            store.delays.turn()
    for name in (
        "commitlog/00000000000000000000",
        *(f"consumequeue/DelayTopic/{one}/00000000000000000000" for one in range(3)),
        *(f"consumequeue/SCHEDULE_TOPIC_XXXX/{one}/00000000000000000000" for one in (0, 1, 2, 17)),
    ):
        assert (tmp_path / name).read_bytes() == (golden / name).read_bytes(), name


def test_the_genuine_offsets_are_read_and_no_message_is_delivered_again(tmp_path):
    """Java left {1: 1, 2: 1} although 12 and 6 messages were delivered (K-S2): the log says so."""
    golden, facts = golden_store("delay")
    shutil.copytree(golden, tmp_path / "store")
    last = messages_of(golden, facts)[-1].store_timestamp_ms
    with MessageStore.open(
        tmp_path / "store", SETTINGS, clock=lambda: last, threads=False
    ) as store:
        store.delays.turn()
        store.delays.turn()
        assert store.delays.delivery.delivered == 0
        assert {level.number: level.offset for level in store.delays.delivery.levels}[1] == 12
    saved = (tmp_path / "store/config/delayOffset.json").read_bytes()
    assert decode_table(saved, DelayOffsets).offset_table == {1: 12, 2: 6}
