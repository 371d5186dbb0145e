"""Calls with something else than what is asked for end in a typed error that says so."""

import inspect
import typing

import pytest

from rocketstore import (
    InvalidFilterError,
    InvalidNameError,
    Message,
    MessageStore,
    RefusedMessageError,
)
from support.clock import Clock
from support.small_store import CONFIG, open_store

MESSAGE = Message(topic="Topic", body=b"x")


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path, Clock()) as opened:
        yield opened


@pytest.mark.parametrize("wrong", ["x", 5, None, b"x", ("Topic", b"x")])
def test_what_is_no_message_is_refused_by_every_put(store, wrong):
    for call in (store.put, store.prepare):
        with pytest.raises(RefusedMessageError, match=r"a message is a rocketstore\.Message"):
            call(wrong)
    for batch in ([wrong], [MESSAGE, wrong]):
        with pytest.raises(RefusedMessageError, match=r"a message is a rocketstore\.Message"):
            store.put_batch(batch)
    assert store.max_offset("Topic", 0) == 0


@pytest.mark.parametrize("wrong", [5, None, "abc", {}, MESSAGE, iter([MESSAGE])])
def test_a_batch_that_is_no_sequence_is_refused(store, wrong):
    with pytest.raises(RefusedMessageError, match="a batch is a sequence of messages"):
        store.put_batch(wrong)


def test_properties_that_are_no_mapping_are_refused(store):
    message = Message(topic="Topic", properties=5)
    for call in (store.put, store.prepare, lambda it: store.put_batch([it])):
        with pytest.raises(RefusedMessageError, match="a mapping"):
            call(message)


@pytest.mark.parametrize("wrong", ["||", " || || ", 5, ["a"], b"a"])
def test_tags_that_choose_by_nothing_are_an_invalid_filter(store, wrong):
    with pytest.raises(InvalidFilterError, match="tag expression"):
        store.get("Topic", 0, 0, tags=wrong)
    assert InvalidFilterError.exit_code == 2


@pytest.mark.parametrize("topic", [b"Topic", 5, None])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_topic_that_is_no_text_is_not_taken_for_an_unknown_one(tmp_path, topic, *, read_only):
    with open_store(tmp_path, Clock()) as store:
        store.put(MESSAGE)
    with MessageStore.open(tmp_path, CONFIG, read_only=read_only) as reader:
        for call in (
            reader.min_offset,
            reader.max_offset,
            reader.message_count,
            reader.earliest_timestamp,
            lambda topic, queue: reader.store_timestamp(topic, queue, 0),
            lambda topic, queue: reader.offset_at(topic, queue, 0),
            lambda topic, queue: list(reader.queue_entries(topic, queue)),
            lambda topic, queue: reader.wait_for(topic, queue, 0, 0),
        ):
            with pytest.raises(InvalidNameError, match=r"a topic is a str|topic: expected str"):
                call(topic, 0)


def test_a_message_can_be_asked_for_its_fields():
    assert list(inspect.signature(Message).parameters)[:2] == ["topic", "body"]
    assert typing.get_type_hints(Message)["topic"] is str
