"""A store whose log lost its end, read as it is: the rest is served, and soon."""

import pytest

from rocketstore.format.file_name import file_name
from rocketstore.native.decode import LogAtHand
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading import pread_log
from rocketstore.storage.results import GetMessageStatus
from rocketstore.units import QueueKey
from support.store_files import StoreFiles

QUEUE = QueueKey("TopicTest", 0)


@pytest.fixture
def files(tmp_path):
    return StoreFiles(tmp_path / "store")


def bodies(store: ReadOnlyStore, offset: int = 0) -> list[bytes]:
    return [message.body for message in store.get(*QUEUE, offset).messages]


@pytest.mark.parametrize("loss", ["zeros", "missing files"])
def test_a_lost_end_of_the_log_is_looked_at_once(files, loss, monkeypatch):
    wide = StoreFiles(files.root.parent / "wide", queue_file_size=50 * 20)
    for number in range(300):
        wide.put(queue_id=number % 2, body=b"%d" % number)
    kept, *lost = sorted((wide.root / "commitlog").iterdir())
    for path in lost:
        path.unlink() if loss == "missing files" else path.write_bytes(bytes(4096))
    looked_at: list[int] = []
    genuine = pread_log.size_at

    def counted(log: LogAtHand, offset: int) -> int:
        looked_at.append(offset)
        return genuine(log, offset)

    monkeypatch.setattr(pread_log, "size_at", counted)
    store = ReadOnlyStore(wide.root)
    end = store.max_physical_offset
    assert kept.name == file_name(0)
    assert 0 < end <= 4096
    for key in store.queues() * 3:
        last = store.max_offset(*key) - 1
        [message] = store.get(*key, last).messages
        assert message.physical_offset < end
        assert store.get(*key, last + 1).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    # Each lost entry once, and a few more for every question.
    assert len(looked_at) < 300 + 6 * 60


def test_a_writer_that_goes_on_after_a_lost_end_is_followed(files):
    for number in range(8):
        files.put(body=b"%d" % number)
    entries = files.next_offsets[QUEUE]
    with ReadOnlyStore(files.root) as before:
        second = before.get(*QUEUE, 1).messages[0].physical_offset
        third = before.get(*QUEUE, 2).messages[0].physical_offset
    whole = files.log_path(0).read_bytes()
    files.write_log(second, bytes(4096 - second))
    store = ReadOnlyStore(files.root)
    assert store.max_offset(*QUEUE) == 1
    assert store.max_offset(*QUEUE) == 1
    files.write_log(second, whole[second:third])  # entry 1 stands there already
    assert store.max_offset(*QUEUE) == 2
    assert bodies(store) == [b"0", b"1"]
    files.write_log(third, whole[third:])
    assert store.max_offset(*QUEUE) == entries
    assert bodies(store)[-1] == b"7"
