"""Queue extensions that the genuine store and ours continue in turn."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from rocketstore import MessageStore, verify_store
from rocketstore.format.java_hash import tags_code
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS
from rocketstore.storage.read_only import ReadOnlyStore
from support.both_sides import (
    QUEUE_COUNT,
    all_of_java,
    all_of_ours,
    assert_equal_messages,
    put_java,
    put_ours,
    sample_messages,
    small_config,
)
from support.extended_store import queue_files
from support.java_store import SMALL_FILES, JavaStore
from support.rebuild_runs import rebuilt_here

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

MESSAGES = sample_messages(400)
EXTENDED = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1024}
OURS = small_config(enableConsumeQueueExt="true", mappedFileSizeConsumeQueueExt=1024)
LATE_MS = 2**41
"""After any clock that this runs under."""


def assert_units_are_right(root: Path, count: int) -> None:
    """Assert that every entry refers to the unit of its record."""
    seen = 0
    with ReadOnlyStore.open(root) as store:
        for queue_id in range(QUEUE_COUNT):
            for queue_offset, entry in store.queue_entries("orders", queue_id):
                unit = store.extension_unit("orders", queue_id, entry.tags_code)
                message = store.at_physical_offset(entry.physical_offset)
                assert unit is not None, (queue_id, queue_offset)
                assert message is not None
                expected = tags_code(message.tags) if message.tags else 0
                assert unit[:2] == (expected, message.store_timestamp_ms)
                seen += 1
    assert seen == count
    assert {one.kind for one in verify_store(root, now_ms=LATE_MS).findings} <= {"queue-ext"}


def assert_pages_are_equal(ours: ReadOnlyStore, java: JavaStore) -> None:
    """Assert that a get by tags gives the same on both sides, page by page."""
    for queue_id in range(QUEUE_COUNT):
        offset = 0
        while offset < ours.max_offset("orders", queue_id):
            page = ours.get("orders", queue_id, offset, tags="created || 送達")
            theirs = java.get("orders", queue_id, offset, tags="created || 送達")
            offsets = [message["queueOffset"] for message in theirs["messages"]]
            assert [message.queue_offset for message in page.messages] == offsets
            assert (page.status.name, page.next_offset) == (theirs["status"], theirs["nextOffset"])
            offset = page.next_offset


def test_either_goes_on_with_the_units_of_the_other(tmp_path):
    root = tmp_path / "store"
    with MessageStore.open(root, OURS) as ours:
        put_ours(ours, MESSAGES[:150])
    with JavaStore(root, SMALL_FILES | EXTENDED) as java, ReadOnlyStore.open(root) as reader:
        assert_pages_are_equal(reader, java)
        put_java(java, MESSAGES[150:300])
        java.wait_dispatched()
        assert_pages_are_equal(reader, java)
    with MessageStore.open(root, OURS) as ours:
        put_ours(ours, MESSAGES[300:])
        ours.wait_dispatched()
        expected = all_of_ours(ours)
    assert_units_are_right(root, len(MESSAGES))
    with JavaStore(root, SMALL_FILES | EXTENDED) as java:
        assert_equal_messages(expected, all_of_java(java))
    # As if one of the two had written them all.
    again = tmp_path / "again"
    shutil.copytree(root / "commitlog", again / "commitlog")
    MessageStore.open(again, OURS, threads=False).close()
    assert queue_files(again) == queue_files(root)


def test_either_recovers_the_units_of_the_other_after_a_crash(tmp_path):
    ours = MessageStore.open(tmp_path, OURS, threads=False)
    put_ours(ours, MESSAGES[:150])
    ours.wait_dispatched()
    put_ours(ours, MESSAGES[150:160])  # not dispatched
    ours.abandon()
    with JavaStore(tmp_path, SMALL_FILES | EXTENDED) as java:
        with ReadOnlyStore.open(tmp_path) as reader:
            assert_pages_are_equal(reader, java)
        put_java(java, MESSAGES[160:300])
        java.wait_dispatched()
        os.kill(java.pid, signal.SIGKILL)
        os.waitid(os.P_PID, java.pid, os.WEXITED | os.WNOWAIT)
    with MessageStore.open(tmp_path, OURS) as ours:
        put_ours(ours, MESSAGES[300:])
    assert_units_are_right(tmp_path, len(MESSAGES))


def test_java_goes_on_with_queues_that_a_rebuild_gave_plain_codes(tmp_path):
    with MessageStore.open(tmp_path, OURS) as ours:
        put_ours(ours, MESSAGES[:150])
    rebuilt_here(tmp_path, config=small_config())
    with JavaStore(tmp_path, SMALL_FILES | EXTENDED) as java:
        put_java(java, MESSAGES[150:300])
        java.wait_dispatched()
        with ReadOnlyStore.open(tmp_path) as reader:
            assert_pages_are_equal(reader, java)
            ends = [reader.max_offset("orders", queue_id) for queue_id in range(QUEUE_COUNT)]
            codes = [
                entry.tags_code
                for queue_id in range(QUEUE_COUNT)
                for _, entry in reader.queue_entries("orders", queue_id)
            ]
    assert sum(ends) == len(codes) == 300
    assert sum(code <= MAX_EXT_ADDRESS for code in codes) == 150
    with MessageStore.open(tmp_path, OURS) as ours:
        put_ours(ours, MESSAGES[300:])
    assert {one.kind for one in verify_store(tmp_path, now_ms=LATE_MS).findings} == {"queue-ext"}
