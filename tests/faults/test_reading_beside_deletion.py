"""A file that retention deletes while somebody reads is an expected outcome, never an error."""

import pytest

from rocketstore import Message
from rocketstore.storage.files.mapped_file import MappedFile
from support.clock import START_MS
from support.configured_store import open_small
from support.inside import parts_of

TOPIC = "orders"
COUNT = 150


@pytest.fixture
def store(tmp_path):
    """A store of several files of each kind, opened again, so that few are mapped."""
    sizes = {"max_hash_slot_num": 10, "max_index_num": 40, "mapped_file_size_consume_queue": 1000}
    with open_small(tmp_path, **sizes) as writer:
        for number in range(COUNT):
            writer.put(Message(topic=TOPIC, body=bytes(2000), keys=(f"k{number}", "all")))
        assert writer.wait_dispatched()
    with open_small(tmp_path, **sizes) as opened:
        yield opened


def in_the_midst_of_deletion(file: MappedFile) -> None:
    """Delete a file as retention does, and leave it in its row, as readers may still see it."""
    assert file.destroy(0, now_ms=START_MS)


@pytest.mark.parametrize("key", ["all", "größe"], ids=["ascii", "not-ascii"])
def test_find_passes_over_an_index_file_that_goes_away(store, key):
    before = store.find(TOPIC, key, max_messages=COUNT)
    in_the_midst_of_deletion(parts_of(store).index.files[0].file)
    after = store.find(TOPIC, key, max_messages=COUNT)
    assert after == before[: len(after)]
    assert len(after) < COUNT
    assert store.find(TOPIC, f"k{COUNT - 1}")
    assert store.find(TOPIC, "k0") == []


def test_all_questions_bear_a_log_file_that_goes_away(store):
    log = parts_of(store).log.files.files[0]
    count = sum(m.physical_offset >= log.size for m in store.find(TOPIC, "all", max_messages=COUNT))
    in_the_midst_of_deletion(log)
    assert store.at_physical_offset(0) is None
    assert store.find(TOPIC, "k0") == []
    assert len(store.find(TOPIC, "all", max_messages=COUNT)) == count
    assert store.get(TOPIC, 0, 0).next_offset > 0
    assert store.get_raw(TOPIC, 0, 0).next_offset > 0
    assert 0 <= store.offset_at(TOPIC, 0, START_MS) <= COUNT
    store.earliest_log_timestamp()
    store.store_timestamp(TOPIC, 0, 0)


def test_all_questions_bear_a_queue_file_that_goes_away(store):
    queue = parts_of(store).queues.all()[0]
    in_the_midst_of_deletion(queue.files.files[0])
    assert store.max_offset(TOPIC, 0) == COUNT
    store.min_offset(TOPIC, 0)
    store.get(TOPIC, 0, 0)
    store.get_raw(TOPIC, 0, 0)
    store.offset_at(TOPIC, 0, START_MS)
    store.earliest_timestamp(TOPIC, 0)
    assert store.store_timestamp(TOPIC, 0, 0) is None
    assert store.store_timestamp(TOPIC, 0, COUNT - 1) is not None
