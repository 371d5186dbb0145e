"""What is equal to a queue id and is none has the same answer whatever queues there are."""

from collections.abc import Callable
from typing import Any

import pytest

from rocketstore import (
    FieldRangeError,
    InvalidFilterError,
    InvalidNameError,
    Message,
    MessageStore,
    StoreConfig,
)
from rocketstore.format.client_batch import encode_client_batch

MESSAGE = Message(topic="t", body=b"x")
PUTS: list[Callable[[MessageStore, Any], object]] = [
    lambda store, queue_id: store.put(MESSAGE, queue_id),
    lambda store, queue_id: store.put(MESSAGE, queue_id=queue_id),
    lambda store, queue_id: store.put_prepared(store.prepare(MESSAGE), None, queue_id),
    lambda store, queue_id: store.put_batch([MESSAGE], queue_id),
    lambda store, queue_id: store.put_client_batch(
        "t", queue_id, encode_client_batch([(0, b"x", b"")])
    ),
]
GETS: list[Callable[[Any, Any], object]] = [
    lambda store, queue_id: store.get("t", queue_id, 0),
    lambda store, queue_id: store.get_raw("t", queue_id, 0),
    lambda store, queue_id: store.get_views("t", queue_id, 0),
    lambda store, queue_id: store.min_offset("t", queue_id),
    lambda store, queue_id: store.max_offset("t", queue_id),
    lambda store, queue_id: store.message_count("t", queue_id),
    lambda store, queue_id: list(store.queue_entries("t", queue_id)),
    lambda store, queue_id: store.offset_at("t", queue_id, 0),
    lambda store, queue_id: store.earliest_timestamp("t", queue_id),
    lambda store, queue_id: store.store_timestamp("t", queue_id, 0),
]


@pytest.mark.parametrize("no_id", [True, False, 1.0, "1", None])
def test_no_put_and_no_get_takes_it(no_id, tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=65_536)
    with MessageStore.open(tmp_path, config, threads=False) as store:
        for has_queues in (False, True):
            end = store.max_physical_offset
            for ask in [*PUTS, *GETS]:
                with pytest.raises(
                    InvalidNameError,
                    match=r"a queue id is an int, not|queue_id: expected int, found",
                ):
                    ask(store, no_id)
            assert store.max_physical_offset == end
            if not has_queues:
                for queue_id in (0, 1):
                    store.put(MESSAGE, queue_id)
                store.wait_dispatched()
    with MessageStore.open(tmp_path, config, read_only=True) as reader:
        for ask in GETS:
            with pytest.raises(InvalidNameError):
                ask(reader, no_id)


@pytest.mark.parametrize("no_text", [None, b"t", 17])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_lookup_by_what_is_no_text_is_refused_and_no_empty_answer(no_text, read_only, tmp_path):
    config = StoreConfig.small()
    with MessageStore.open(tmp_path, config, threads=False) as store:
        store.put(Message(topic="t", body=b"x", keys="17"))
    with MessageStore.open(tmp_path, config, read_only=read_only) as reader:
        for get in (reader.get, reader.get_raw, reader.get_views):
            with pytest.raises(InvalidNameError, match="a topic is a str, not"):
                get(no_text, 0, 0)
        for topic, key in ((no_text, "17"), ("t", no_text)):
            with pytest.raises(InvalidFilterError, match="a topic and a key are texts, not"):
                reader.find(topic, key)
        with pytest.raises(FieldRangeError, match="not a message id"):
            reader.by_id(no_text)
        assert len(reader.find("t", "17")) == 1
