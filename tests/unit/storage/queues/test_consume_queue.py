"""ConsumeQueues: reading, filling, cutting, flushing, and many of them at once."""

import gc
import itertools
import os
import resource
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from rocketstore.errors import FlushFailedError
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER, FILLER_BYTES, QueueEntry
from rocketstore.native.row import PutEntry, QueueColumn
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.pread_files import OpenFiles
from rocketstore.storage.queues.pread_queue import PreadQueue
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.units import QueueKey
from support.descriptors import open_descriptors
from support.golden_stores import golden_store
from support.mapped_bytes import is_read_at_random
from support.oracle.codecs import encode_entry
from support.patience import PATIENCE_S

KEY = QueueKey("TopicTest", 0)


def no_copy(*_):
    """Stand for a copy that nobody wants."""


class LogMin:
    value = 0

    def __call__(self):
        return self.value


@pytest.fixture
def log_min():
    return LogMin()


def open_table(tmp_path, log_min, disk=None, *, file_bytes=100, **options):
    table = ConsumeQueueTable(
        tmp_path / "consumequeue", file_bytes, disk=disk or Disk(), log_min_offset=log_min,
        **options,
    )  # fmt: skip
    table.load()
    return table


def entry(number):
    return QueueEntry(1000 + 100 * number, 100, number)


def put(queue, numbers):
    return [queue.put(number, entry(number)) for number in numbers]


@pytest.fixture
def table(tmp_path, log_min):
    return open_table(tmp_path, log_min)


@pytest.fixture
def queue(table):
    queue = table.get_or_create(KEY)
    put(queue, range(12))
    return queue


# --- reading --------------------------------------------------------------------------------------


def test_reading_never_creates_anything(table, tmp_path):
    """K-C5"""
    assert table.get(KEY) is None
    assert table.get_or_create(QueueKey("..", 0)) is None
    assert table.get_or_create(QueueKey("a/b", 0)) is None
    assert table.get_or_create(QueueKey("a", -1)) is None
    queue = table.get_or_create(KEY)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, 0)
    assert queue.entry(0) is None
    assert not len(queue.entries(0, 10))
    assert queue.bytes_at(0, 1) is None
    assert queue.last_message() is None
    assert not (tmp_path / "consumequeue").exists()


def test_entries_are_read_within_one_file_and_not_more_than_asked_for(queue):
    assert queue.entries(3, 10).tobytes() == encode_entry(*entry(3)) + encode_entry(*entry(4))
    assert queue.entries(10, 2)["tags_code"].tolist() == [10, 11]
    assert queue.entries(10, 2).tobytes() == encode_entry(*entry(10)) + encode_entry(*entry(11))
    for start, limit in ((15, 1), (-1, 1), (0, 0)):
        assert not len(queue.entries(start, limit))
    assert queue.entry(11) == entry(11)
    assert queue.entries_per_file == 5
    assert queue.bytes_at(11, 1)[1:3] == (200, 100)


def test_the_end_is_found_again(queue, table, tmp_path, log_min):
    table.flush()
    for count in range(12, 25):
        again = open_table(tmp_path, log_min).get(KEY)
        assert again.max_offset == count
        assert again.max_physical_offset == 1000 + 100 * count
        put(queue, [count])


@pytest.mark.parametrize("count", [0, 1, 3275, 3276, 3277, 6552, 9000, 9999, 10_000])
def test_the_end_is_found_in_whichever_chunk_it_is(tmp_path, log_min, count):
    directory = tmp_path / "consumequeue" / "TopicTest" / "0"
    directory.mkdir(parents=True)
    content = b"".join(encode_entry(*entry(number)) for number in range(count))
    (directory / f"{0:020d}").write_bytes(content.ljust(200_000, b"\0"))
    table = open_table(tmp_path, log_min, file_bytes=200_000)
    by_pread = PreadQueue(
        directory, OpenFiles(), log_min_offset=log_min, log_end_before=lambda _entry: None
    )
    assert (table.get(KEY).max_offset, by_pread.max_offset) == (count, count)


@pytest.mark.parametrize("name", ["basic", "batch", "broker", "delay", "ipv6", "expired/base",
                                  "expired/files_removed", "expired/files_and_cq_removed",
                                  "expired/deleted_by_store"])  # fmt: skip
def test_minimum_maximum_and_entries_are_those_that_java_reads(name, tmp_path):
    store, manifest = golden_store(name)
    shutil.copytree(store / "consumequeue", tmp_path / "consumequeue")
    log_min = manifest["minPhyOffset"]
    size = manifest["config"]["mappedFileSizeConsumeQueue"]
    table = ConsumeQueueTable(
        tmp_path / "consumequeue", size, disk=Disk(), log_min_offset=lambda: log_min
    )
    assert table.load() == []
    described = {
        (topic, int(queue_id)): q
        for topic, queues in manifest["consumeQueues"].items()
        for queue_id, q in queues.items()
    }
    assert {queue.key for queue in table.all() if queue.max_offset} == {
        key for key, q in described.items() if q["maxOffset"]
    }
    for key, q in described.items():
        queue = table.get(QueueKey(*key))
        if queue is None:
            assert q["maxOffset"] == 0
            continue
        assert queue.max_offset == q["maxOffset"]
        entries = [list(queue.entry(n)) for n in range(queue.min_offset, queue.max_offset)]
        assert entries == q["entries"]
        if entries:
            assert queue.min_offset == q["minOffset"]
            # Java's lastOffset is the end of the last valid entry, fillers included (K-C2).
            assert queue.max_physical_offset == q["maxPhysicOffset"]


def test_the_minimum_follows_the_log_by_bisection(queue, log_min):
    for number in range(13):
        log_min.value = 1000 + 100 * number
        assert queue.min_offset == number
    log_min.value = 1050
    assert queue.min_offset == 1
    log_min.value = 10**9
    assert queue.min_offset == 12, "K-C3: nothing left, so the minimum is the maximum"
    put(queue, [12])
    log_min.value = 2200
    assert queue.min_offset == 12


def test_the_minimum_is_found_after_a_missing_file_mapped_or_not(tmp_path, log_min):
    table = open_table(tmp_path, log_min)
    put(table.get_or_create(KEY), range(15))
    assert table.flush()
    directory = tmp_path / "consumequeue" / "TopicTest" / "0"
    (directory / f"{100:020d}").unlink()
    mapped = open_table(tmp_path, log_min).get(KEY)
    by_pread = PreadQueue(
        directory, OpenFiles(), log_min_offset=log_min, log_end_before=lambda _entry: None
    )
    for first, expected in ((0, 0), (3, 3), (5, 10), (8, 10), (12, 12), (20, 15), (4, 4)):
        log_min.value = 1000 + 100 * first
        assert (mapped.min_offset, by_pread.min_offset) == (expected, expected)


def test_fillers_are_no_messages(table, log_min):
    """K-C2: in Java a queue that ends in fillers reaches to offset 2147483647."""
    queue = table.get_or_create(KEY)
    put(queue, [3, 4])
    queue.fill_to(20 * 15)
    assert queue.max_offset == 15
    assert queue.max_physical_offset == 1500
    assert queue.min_offset == 3
    log_min.value = 1400
    assert queue.min_offset == 4
    log_min.value = 1401
    assert queue.min_offset == 15
    assert queue.last_message() == (4, entry(4))
    assert queue.put(3, FILLER, overwrite=True) is PutEntry.WRITTEN  # as recovery does
    assert queue.max_physical_offset == 1500
    assert dict(queue.backwards(0, 15)) == {4: entry(4)}


def test_fillers_beyond_a_chunk_are_passed_over(tmp_path, log_min):
    queue = open_table(tmp_path, log_min, file_bytes=200_000).get_or_create(KEY)
    put(queue, [0])
    queue.fill_to(20 * 9000)
    put(queue, [9000])
    log_min.value = 1001
    assert queue.min_offset == 9000
    queue.truncate(9000, no_copy, now_ms=0)
    assert queue.last_message() == (0, entry(0))


# --- writing --------------------------------------------------------------------------------------


def test_an_entry_is_put_once_and_keeps_its_place(queue):
    assert put(queue, [5]) == [PutEntry.REPEATED]
    assert queue.put(5, entry(6)) is PutEntry.REFUSED
    assert queue.entry(5) == entry(5)
    assert queue.put(5, entry(6), overwrite=True) is PutEntry.WRITTEN
    assert queue.entry(5) == entry(6)


def test_a_filler_gives_way_to_its_message(queue):
    queue.put(20, entry(20))
    assert queue.entry(15) == FILLER
    assert put(queue, [15]) == [PutEntry.WRITTEN]
    assert queue.entry(15) == entry(15)
    assert queue.max_offset == 21


def test_a_queue_that_begins_late_begins_in_the_middle_of_a_file(table, tmp_path):
    """F6: byte for byte what ConsumeQueue.fillPreBlank writes."""
    queue = table.get_or_create(KEY)
    put(queue, [12])
    [path] = (tmp_path / "consumequeue" / "TopicTest" / "0").iterdir()
    assert path.name == "00000000000000000200"
    assert path.read_bytes() == FILLER_BYTES * 2 + encode_entry(*entry(12)) + bytes(40)
    assert put(queue, [3]) == [PutEntry.REFUSED]


def test_few_files_may_be_mapped_and_all_queues_still_be_written(tmp_path, log_min):
    table = open_table(tmp_path, log_min, writer_limit=3)
    queues = [table.get_or_create(QueueKey("T", number)) for number in range(10)]
    for number in range(12):
        for queue in queues:
            put(queue, [number])
    assert len(table.mappings._writers) == 3
    assert table.flush()
    assert [queue.max_offset for queue in queues] == [12] * 10
    again = open_table(tmp_path, log_min)
    for number in range(10):
        other = again.get(QueueKey("T", number))
        assert [other.entry(n) for n in range(12)] == [entry(n) for n in range(12)]


def test_the_file_that_is_written_fetches_single_pages_and_a_full_one_is_read_ahead(
    queue, tmp_path, log_min
):
    """A new queue's first entry brought all 6 MB of its file into memory, zeros read ahead."""
    first, second, third = (file.path for file in queue.files.files)
    assert is_read_at_random(first) == is_read_at_random(second) == [False]
    assert is_read_at_random(third) == [True]
    again = open_table(tmp_path, log_min)  # held: its files are let go of with it
    put(again.get(KEY), [12])
    assert is_read_at_random(third) == [True, True], "also after a restart"


def test_a_file_is_given_to_the_kernels_once_however_many_entries_it_gets(table, monkeypatch):
    given = []
    monkeypatch.setattr(MappedFile, "write_single_pages", lambda file, _: given.append(file.base))
    put(table.get_or_create(KEY), range(12))
    assert given == [0, 100, 200]


def test_a_file_that_an_interrupt_kept_from_the_kernels_is_given_again(table, monkeypatch):
    """Else dispatch would ask for it without an end."""
    queue = table.get_or_create(KEY)
    put(queue, range(6))
    file, really = queue.files.files[1], table.rows.set
    for column in (QueueColumn.ADDRESS, QueueColumn.FILE_START, QueueColumn.FILE_STOP):
        table.mappings.dismiss_writer(queue.row)

        def interrupted(row, changed, value, at=column):
            if value and changed is at:
                raise KeyboardInterrupt
            really(row, changed, value)

        monkeypatch.setattr(table.rows, "set", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.mappings.admit_writer(queue.row, file)
        monkeypatch.undo()
        assert not table.rows.value(queue.row, QueueColumn.FILE_STOP)
        assert put(queue, [queue.max_offset]) == [PutEntry.WRITTEN]
        assert table.rows.value(queue.row, QueueColumn.FILE_STOP) == file.base + file.size


# --- cutting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("count", range(13))
def test_the_end_of_the_entries_within_an_offset_is_found(tmp_path, first, count):
    table = ConsumeQueueTable(tmp_path, 100, disk=Disk(), log_min_offset=lambda: 0)
    queue = table.get_or_create(KEY)
    for number in range(first, first + count):  # one that begins late begins with fillers
        queue.put(number, QueueEntry(100 * number, 100, 0))
    for limit in range(0, 100 * (first + count) + 101, 50):
        within = [number for number in range(first, first + count) if 100 * number + 100 <= limit]
        assert queue.end_within(limit) == (within[-1] + 1 if within else queue.first_offset)


def test_what_is_cut_off_is_zero_and_stays_gone(queue, table, tmp_path, log_min):
    """K-R5: Java takes the old entries for new ones at its next start."""
    queue.truncate(queue.end_within(1720), no_copy, now_ms=0)
    assert (queue.max_offset, queue.max_physical_offset) == (7, 1700)
    assert [file.base for file in queue.files.files] == [0, 100]
    directory = tmp_path / "consumequeue" / "TopicTest" / "0"
    assert (directory / f"{100:020d}").read_bytes()[40:] == bytes(60)
    assert open_table(tmp_path, log_min).get(KEY).max_offset == 7
    assert put(queue, [7, 8]) == [PutEntry.WRITTEN] * 2
    assert not queue.truncate(queue.end_within(10**9), no_copy, now_ms=0), "nothing to cut"


@pytest.mark.parametrize(("kept", "bases"), [(6, [0, 100]), (5, [0]), (0, [])])
def test_a_cut_leaves_no_file_without_entries(queue, table, kept, bases):
    """Java counts the first place of such a file at its next start."""
    queue.truncate(kept, no_copy, now_ms=0)
    assert [file.base for file in queue.files.files] == bases
    assert put(queue, range(kept, 12)) == [PutEntry.WRITTEN] * (12 - kept)
    assert queue.max_offset == 12


def test_the_only_file_of_a_queue_keeps_its_number_when_it_is_cut(queue):
    queue.files.remove(queue.files.files[:-1], now_ms=0)
    first = queue.files.min_offset
    queue.truncate(queue.first_offset, no_copy, now_ms=0)
    assert [file.base for file in queue.files.files] == [first]
    assert queue.max_offset * 20 == first


def test_bytes_after_the_last_entry_are_cleaned(queue, tmp_path):
    file = queue.files.files[-1]
    file.write_bytes(60, encode_entry(*entry(99)))
    assert queue.truncate(queue.end_within(10**9), no_copy, now_ms=0)
    assert bytes(file.mapping[40:]) == bytes(60)
    assert not queue.truncate(queue.end_within(10**9), no_copy, now_ms=0)


def test_only_files_without_a_living_message_expire_and_the_last_never(queue, log_min):
    """K-C4: a queue whose messages are all gone keeps its number."""
    options = {"force_after_ms": 0, "now_ms": 0}
    assert queue.delete_expired(1400, **options) == ([], True)
    [gone], is_done = queue.delete_expired(1401, **options)
    assert (gone.name, is_done) == (f"{0:020d}", True)
    assert queue.first_offset == 5
    log_min.value = 10**9
    assert len(queue.delete_expired(10**9, **options)[0]) == 1
    assert len(queue.files.files) == 1
    assert (queue.min_offset, queue.max_offset) == (12, 12)
    assert put(queue, [12]) == [PutEntry.WRITTEN]


def test_a_file_that_ends_in_fillers_stays_while_a_message_of_it_lives(table):
    queue = table.get_or_create(KEY)
    put(queue, [0, 1])
    queue.fill_to(200)
    put(queue, [10, 11])
    options = {"force_after_ms": 0, "now_ms": 0}
    assert queue.delete_expired(1100, **options) == ([], True)
    assert len(queue.delete_expired(1101, **options)[0]) == 2


def test_what_went_before_an_error_is_let_go_of(queue, monkeypatch):
    """Else it would count among the files that may be mapped until the store is closed."""
    first = queue.files.files[0]
    assert queue.entry(0) == entry(0)
    assert first in queue._mappings._readers

    def fails(_disk, _directory):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Disk, "fsync_directory", fails)
    with pytest.raises(OSError, match="Input/output"):
        queue.delete_expired(1401, force_after_ms=0, now_ms=0)
    assert first not in queue._mappings._readers


def test_a_held_file_is_deleted_when_its_reader_is_done(queue):
    first = queue.files.files[0]
    view = first.array[:20]
    options = {"force_after_ms": 1000, "now_ms": 0}
    assert queue.delete_expired(1401, **options) == ([], False)
    del view
    assert len(queue.delete_expired(1401, **options)[0]) == 1


def test_views_outlive_the_file(queue):
    view = queue.entries(0, 5)
    queue.delete_expired(10**9, force_after_ms=0, now_ms=0)
    assert view.tobytes() == b"".join(encode_entry(*entry(n)) for n in range(5))


# --- durability -----------------------------------------------------------------------------------


def test_a_flush_syncs_what_changed_and_nothing_twice(tmp_path, log_min, disk):
    table = open_table(tmp_path, log_min, disk)
    queue = table.get_or_create(KEY)
    put(queue, range(7))
    disk.calls.clear()
    assert table.flush()
    assert disk.synced == [f"{0:020d}", f"{100:020d}"]
    assert table.flush()
    assert len(disk.synced) == 2
    put(queue, [7])
    assert table.flush()
    assert disk.synced[2:] == [f"{100:020d}"]


def test_dispatch_syncs_no_name_of_a_new_queue_and_its_first_flush_all(tmp_path, log_min, disk):
    table = open_table(tmp_path, log_min, disk)
    put(table.get_or_create(KEY), range(3))
    assert disk.count("fsync_directory") == 0
    assert table.flush()
    named = [name for call, name in disk.calls if call == "fsync_directory"]
    assert named == [str(KEY.queue_id), KEY.topic, "consumequeue"]
    put(table.get_or_create(KEY), [3])
    assert table.flush()
    assert disk.count("fsync_directory") == 3


def test_a_flush_of_many_new_queues_syncs_each_directory_once(tmp_path, log_min, disk):
    """Names come after all bytes, and an interrupt between them leaves none of them out."""
    table = open_table(tmp_path, log_min, disk)
    for topic, queue_id in itertools.product(("orders", "bills"), range(20)):
        put(table.get_or_create(QueueKey(topic, queue_id)), range(3))
    sync = disk.fsync_directory
    disk.fsync_directory = interrupted = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        table.flush()
    interrupted.assert_called_once()
    disk.fsync_directory = sync
    assert len(disk.synced) == 40
    assert table.flush()
    assert len(disk.synced) == 40
    named = Counter(name for call, name in disk.calls if call == "fsync_directory")
    assert (named["consumequeue"], named["orders"], named["bills"]) == (1, 1, 1)
    assert named.total() == 40 + 2 + 1


def test_few_new_pages_wait_for_a_thorough_flush(tmp_path, log_min, disk):
    table = open_table(tmp_path, log_min, disk, file_bytes=20 * 4096)
    queue = table.get_or_create(KEY)
    put(queue, range(205))
    disk.calls.clear()
    assert not table.flush(least_pages=2)
    assert disk.synced == []
    put(queue, range(205, 410))
    assert table.flush(least_pages=2)
    assert len(disk.synced) == 1


def test_an_entry_rewritten_before_the_end_is_flushed_too(tmp_path, log_min, disk):
    table = open_table(tmp_path, log_min, disk)
    queue = table.get_or_create(KEY)
    put(queue, range(12))
    table.flush()
    disk.calls.clear()
    queue.put(1, entry(50), overwrite=True)
    assert table.flush()
    assert f"{0:020d}" in disk.synced


def test_after_a_failed_sync_nothing_is_promised_any_more(tmp_path, log_min, disk):
    table = open_table(tmp_path, log_min, disk)
    put(table.get_or_create(KEY), range(3))
    disk.fails_sync = {"*"}
    with pytest.raises(FlushFailedError):
        table.flush()
    disk.fails_sync = set()
    assert not table.flush()
    assert table.is_flush_broken


def load_sparse_queue(tmp_path, log_min, data):
    directory = tmp_path / "consumequeue" / KEY.topic / str(KEY.queue_id)
    directory.mkdir(parents=True)
    with (directory / f"{0:020d}").open("wb") as file:
        file.write(data)
        file.truncate(6_000_000)
    return open_table(tmp_path, log_min, file_bytes=6_000_000).all()[0]


def test_the_end_is_found_without_reading_where_the_file_system_knows_of_no_data(
    tmp_path, log_min, monkeypatch
):
    read_stops = []

    def pread(descriptor, size, position, really=os.pread):
        read_stops.append(position + size)
        return really(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    data = b"".join(encode_entry(*entry(n)) for n in range(5200))
    assert load_sparse_queue(tmp_path, log_min, data).max_offset == 5200
    assert max(read_stops) <= 26 * 4096, "the kernel would read megabytes of zeros ahead"


def test_a_last_entry_whose_end_is_a_hole_is_an_entry(tmp_path, log_min):
    """A copy leaves pages of zeros out, and a message without tags has zeros at its end."""
    data = b"".join(encode_entry(1000 + 100 * n, 100, 0) for n in range(205))
    assert not any(data[4096:]), "the last entry goes on in the second page"
    assert load_sparse_queue(tmp_path, log_min, data[:4096]).max_offset == 205


# --- many -----------------------------------------------------------------------------------------


def test_a_thousand_queues_open_quickly_and_without_mapping(tmp_path, log_min):
    directory = tmp_path / "consumequeue"
    data = b"".join(encode_entry(*entry(n)) for n in range(3)) + bytes(40)
    for number in range(1000):
        queue = directory / f"Topic{number % 100}" / str(number // 100)
        queue.mkdir(parents=True)
        (queue / f"{0:020d}").write_bytes(data)
    (directory / "Topic0" / "not-a-number").mkdir()
    (directory / "Topic0" / "007").mkdir()
    gc.collect()
    before, descriptors_before = _anonymous_bytes(), open_descriptors(tmp_path)
    began = time.perf_counter()
    table = open_table(tmp_path, log_min)
    took_s = time.perf_counter() - began
    assert len(table) == 1000
    assert all(queue.max_offset == 3 for queue in table.all())
    assert not any(file.is_mapped for queue in table.all() for file in queue.files.files)
    assert open_descriptors(tmp_path) - descriptors_before < 10
    assert _anonymous_bytes() - before < 50 * 2**20
    assert took_s < 60, "loose, for busy machines; the promise is in bench/"


def test_an_opening_reads_a_few_chunks_of_a_queue_whatever_its_length(tmp_path, log_min):
    directory, size = tmp_path / "consumequeue" / "TopicTest" / "0", 2_000_000
    directory.mkdir(parents=True)
    data = b"".join(encode_entry(*entry(n)) for n in range(size // ENTRY_SIZE_BYTES))
    for base, content in ((0, data), (size, data[: size // 2] + bytes(size // 2))):
        (directory / f"{base:020d}").write_bytes(content)
    before = _read_bytes()
    table = open_table(tmp_path, log_min, file_bytes=size)
    assert table.get(KEY).max_offset == size * 3 // 2 // ENTRY_SIZE_BYTES
    assert _read_bytes() - before < size // 4


def _read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])


def _anonymous_bytes():
    fields = dict(
        line.split(":")
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return int(fields["RssAnon"].split()[0]) * 1024


def test_the_table_lists_topics_and_next_offsets(table, queue):
    others = [QueueKey("Other", 2), QueueKey(KEY.topic, KEY.queue_id + 1)]
    for key in others:
        assert table.get_or_create(key) is table.get(key) is not queue
    assert table.topics() == ["Other", "TopicTest"]
    assert table.next_offsets() == {KEY: 12} | dict.fromkeys(others, 0)
    assert table.max_physical_offset == 2200
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_no_file_is_let_go_while_kernels_hold_its_address(tmp_path, log_min, monkeypatch):
    """Readers let go of files on threads of their own, also while a queue moves to its next one."""
    table = open_table(tmp_path, log_min, writer_limit=3)
    table.mappings._reader_limit = 1
    queues = [table.get_or_create(QueueKey("T", number)) for number in range(3)]
    put(queues[0], range(5))
    real_set, real_drop = table.rows.set, MappedFile.drop

    def drop(file):
        address = int(file.array.ctypes.data) if file.is_mapped else 0
        held = table.rows.queues[:, QueueColumn.ADDRESS]
        assert not address or address not in held, f"{file} is in use"
        real_drop(file)

    def set_while_others_read(row, column, value):
        reader = threading.Thread(target=lambda: [table.mappings.read(f, 0, 20) for f in others])
        reader.start()
        reader.join(0.05)  # where a lock is held it waits
        readers.append(reader)
        real_set(row, column, value)

    monkeypatch.setattr(MappedFile, "drop", drop)
    put(queues[1], range(2))
    put(queues[2], range(2))
    others = [queue.files.files[0] for queue in queues[1:]]
    failures, readers = [], []
    monkeypatch.setattr(threading, "excepthook", lambda caught: failures.append(caught.exc_value))
    monkeypatch.setattr(table.rows, "set", set_while_others_read)
    put(queues[0], [5])  # in its second file
    for reader in readers:
        reader.join(PATIENCE_S)
    monkeypatch.undo()
    assert failures == []


def test_kernels_never_keep_the_address_of_a_file_that_expired(tmp_path, log_min):
    """A record with an old number has the first file mapped for kernels; then it expires."""
    table = open_table(tmp_path, log_min)
    queue = table.get_or_create(KEY)
    for number in range(12):
        queue.put(number, QueueEntry(100 * number, 100, 0))
    assert queue.put(0, QueueEntry(0, 100, 0)) is PutEntry.REPEATED
    assert queue.map_for_write(0)
    address = table.rows.value(queue.row, QueueColumn.ADDRESS)
    first = queue.files.files[0].path
    log_min.value = 10_000
    queue.delete_expired(10_000, force_after_ms=0, now_ms=0)
    gc.collect()
    mapped = [
        line.split()[0].split("-")[0] for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(first))
    ]  # fmt: skip
    assert [int(start, 16) for start in mapped] == [address]
    # With the next entry they have another file, and it goes.
    assert queue.put(12, QueueEntry(1200, 100, 0)) is PutEntry.WRITTEN
    gone, _ = queue.delete_expired(10_000, force_after_ms=0, now_ms=0)
    assert first in gone
