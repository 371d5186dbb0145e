"""A descriptor is lent: closed by another thread, its number may be another file's at once."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstore.errors import FlushFailedError
from rocketstore.format.queue_entry import QueueEntry
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.units import QueueKey
from support.descriptors import open_descriptors
from support.failing_disk import HeldDisk
from support.mapped_bytes import append_bytes

SIZE = 8192


def create(directory: Path, disk: Disk | None = None) -> MappedFile:
    return MappedFile.create(directory / "file", base=0, size=SIZE, disk=disk or Disk())


def test_a_lent_descriptor_stays_open_when_another_thread_closes_it(tmp_path):
    before = open_descriptors(tmp_path)
    file = create(tmp_path)
    with file.descriptor() as descriptor:
        file.close_descriptor()
        with file.descriptor() as second:
            assert os.fstat(second).st_size == os.fstat(descriptor).st_size == SIZE
        assert os.fstat(descriptor).st_size == SIZE
    assert open_descriptors(tmp_path) == before


def test_a_descriptor_that_nobody_borrowed_is_closed_at_once(tmp_path):
    before = open_descriptors(tmp_path)
    file = create(tmp_path)
    file.close_descriptor()
    assert open_descriptors(tmp_path) == before
    assert file.read_at(0, 4) == bytes(4)
    file.drop()
    assert open_descriptors(tmp_path) == before


def test_a_sync_never_syncs_the_file_that_got_the_number_meanwhile(tmp_path):
    class Noting(HeldDisk):
        def fdatasync(self, descriptor: int, path: Path) -> None:
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            super().fdatasync(descriptor, path)

    disk, synced = Noting(), list[Path]()
    file = create(tmp_path, disk)
    append_bytes(file, b"abc")
    synced.clear()
    disk.may_go.clear()
    flush = threading.Thread(target=file.flush)
    flush.start()
    # A reader gives the descriptor back, and whoever comes next gets its number.
    file.close_descriptor()
    with (tmp_path / "other").open("wb"):
        disk.may_go.set()
        flush.join()
    assert synced == [file.path]
    assert file.flushed_position == 3


@contextmanager
def closed_and_its_number_taken(close: Callable[[], object]) -> Iterator[None]:
    """Close a file, and give its number to another one, again and again beside the block."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            close()
            os.close(os.open("/dev/zero", os.O_RDONLY))

    closer = threading.Thread(target=work)
    closer.start()
    try:
        yield
    finally:
        stop.set()
        closer.join()


def test_reading_while_another_thread_closes_always_reads_this_file(tmp_path):
    file = create(tmp_path)
    append_bytes(file, b"mine" * 100)
    with closed_and_its_number_taken(file.close_descriptor):
        assert {file.read_at(4 * (n % 100), 4) for n in range(3000)} == {b"mine"}


def test_a_mapping_made_while_another_thread_closes_is_of_this_file(tmp_path):
    file = create(tmp_path)
    append_bytes(file, b"mine")
    with closed_and_its_number_taken(file.drop):
        for _ in range(2000):
            assert file.mapping[:4] == b"mine"


def test_a_file_that_retention_deleted_needs_no_sync(tmp_path):
    file = create(tmp_path)
    append_bytes(file, b"abc")
    file.destroy(0, now_ms=0)
    file.sync()


def test_a_file_that_somebody_else_deleted_fails_its_sync(tmp_path):
    file = create(tmp_path)
    append_bytes(file, b"abc")
    file.close_descriptor()
    file.path.unlink()
    with pytest.raises(FlushFailedError, match="it was deleted or moved"):
        file.sync()


def test_a_queue_whose_first_file_expired_is_flushed_without_it(tmp_path):
    table = ConsumeQueueTable(tmp_path, 200, disk=Disk(), log_min_offset=lambda: 0)
    queue = table.get_or_create(QueueKey("orders", 0))
    assert queue is not None
    for number in range(25):
        queue.put(number, QueueEntry(100 * number, 100, 7))
    queue.count_as_unflushed(0)
    gone, is_done = queue.delete_expired(1500, force_after_ms=0, now_ms=0)
    assert len(gone) == 1
    assert is_done
    assert table.flush()
