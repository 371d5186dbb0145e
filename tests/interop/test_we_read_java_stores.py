"""Stores that the genuine Apache RocketMQ store wrote, read by us."""

import pytest

from rocketstore.storage.read_only import ReadOnlyStore
from support.both_sides import (
    all_of_java,
    all_of_ours,
    assert_equal_messages,
    assert_same_answers,
    assert_same_store,
    put_java,
    sample_messages,
)
from support.java_store import SMALL_FILES, JavaStore
from support.trees import tree

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

MESSAGES = sample_messages(400)
"""Enough for several CommitLog, queue and index files of the small sizes."""


def test_reader_beside_a_running_java_writer_follows_it(tmp_path):
    with JavaStore(tmp_path, SMALL_FILES) as java:
        put_java(java, MESSAGES[:50])
        java.wait_dispatched()
        with ReadOnlyStore.open(tmp_path) as ours:
            assert_same_store(ours, java, 50)
            put_java(java, MESSAGES[50:])
            java.wait_dispatched()
            assert_same_store(ours, java, len(MESSAGES))
            assert_same_answers(ours, java, MESSAGES[:120], "orders")
            for tags in ("created", "created || 送達", "bezahlt-ß", "nobody"):
                mine = ours.get("orders", queue_id=1, offset=3, max_messages=32, tags=tags)
                theirs = java.get("orders", 1, 3, tags=tags)
                assert mine.status.name == theirs["status"]
                assert mine.next_offset == theirs["nextOffset"]
                assert [m.physical_offset for m in mine.messages] == [
                    m["physicalOffset"] for m in theirs["messages"]
                ]


def test_a_halted_java_store_is_read_without_recovering_it(tmp_path):
    java = JavaStore(tmp_path, SMALL_FILES)
    put_java(java, MESSAGES)
    java.wait_dispatched()
    expected = all_of_java(java)
    java.halt()
    before = tree(tmp_path)
    with ReadOnlyStore.open(tmp_path) as ours:
        assert_equal_messages(all_of_ours(ours), expected)
    assert tree(tmp_path) == before
