"""Batch queues that the genuine store of 5.x and ours continue in turn, also after a crash."""

import shutil
from functools import partial

import pytest

from rocketstore import Message, MessageStore, verify_store
from support.batch_stores import BATCHES, bodies, mark
from support.both_sides import small_config
from support.java_batch_store import BATCH_QUEUE_FILE, PROJECT, JavaBatchStore
from support.java_program import class_path
from support.java_store import require_java
from support.reading import pages_of

pytestmark = [pytest.mark.java]

QUEUES = (0, 3)
BATCHES_EACH = 130
"""More than a file of a queue has entries."""

OURS = small_config(mapperFileSizeBatchConsumeQueue=BATCH_QUEUE_FILE)


class Expected:
    """What each queue holds; the batches have from one to five messages."""

    def __init__(self) -> None:
        self.queues: dict[int, list[tuple[int, str]]] = {queue_id: [] for queue_id in QUEUES}
        self._number = 0

    def next_batch(self, queue_id: int) -> tuple[int, list[str]]:
        """Return the next batch of a queue, which is expected from now on, and its offset."""
        self._number += 1
        held = self.queues[queue_id]
        first, count = len(held), 1 + self._number % 5
        texts = [f"{self._number}.{one}" for one in range(count)]
        held += enumerate(texts, first)
        return first, texts


def put_ours(store: MessageStore, expected: Expected, count: int) -> None:
    for number in range(count):
        queue_id = QUEUES[number % 2]
        first, texts = expected.next_batch(queue_id)
        result = store.put_batch([message(text) for text in texts], queue_id)
        assert (result.queue_offset, result.message_count) == (first, len(texts))
    store.wait_dispatched()


def message(text: str) -> Message:
    return Message(topic=BATCHES, body=text.encode())


def put_java(java: JavaBatchStore, expected: Expected, count: int) -> None:
    for number in range(count):
        queue_id = QUEUES[number % 2]
        first, texts = expected.next_batch(queue_id)
        assert java.put(queue_id, *texts) == {"status": "PUT_OK", "queueOffset": first}


def assert_java_has(java: JavaBatchStore, expected: Expected) -> None:
    assert {queue_id: java.read(queue_id) for queue_id in QUEUES} == expected.queues


def assert_ours_has(store: MessageStore, expected: Expected) -> None:
    for queue_id, held in expected.queues.items():
        found = [one for page in pages_of(store, BATCHES, queue_id) for one in bodies(page)]
        assert found == held


def test_each_side_continues_what_the_other_wrote(tmp_path):
    require_java(partial(class_path, PROJECT))
    root, crashed = tmp_path / "store", tmp_path / "crashed"
    mark(root, BATCHES)
    expected = Expected()
    with JavaBatchStore() as java:
        with MessageStore.open(root, OURS) as store:
            put_ours(store, expected, 2 * BATCHES_EACH)
        java.open(root, BATCHES)
        assert_java_has(java, expected)
        put_java(java, expected, 2 * BATCHES_EACH)
        assert_java_has(java, expected)
        java.close()

        assert verify_store(root).findings == []
        with MessageStore.open(root, OURS) as store:
            assert_ours_has(store, expected)
            put_ours(store, expected, 50)
            store.flush()
            shutil.copytree(root, crashed)  # what a crash would leave

        java.open(crashed, BATCHES)
        assert_java_has(java, expected)
        put_java(java, expected, 50)
        java.kill()

    with MessageStore.open(crashed, OURS) as store:
        assert_ours_has(store, expected)
        put_ours(store, expected, 50)
        assert_ours_has(store, expected)
    assert verify_store(crashed).findings == []
