"""Which queue offset belongs to a moment, also where records are lost and clocks go back."""

import os
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from rocketstore.config import StoreConfig
from rocketstore.format.queue_entry import FILLER
from rocketstore.scan.queue_search import QueueSearch
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.topic_kinds import TopicKinds
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import Reader
from rocketstore.units import QueueKey
from support.mapped_reader import mapped_reader
from support.oracle.codecs import encode_entry
from support.store_files import StoreFiles
from support.synthetic_log import record_bytes

QUEUE = QueueKey("TopicTest", 0)


class MemoryLog:
    """Records at multiples of 200; a time of None is a lost one."""

    min_offset = 0

    def __init__(self, times: list[int | None]) -> None:
        self.times = times
        self.reads = 0

    def bytes_at(self, offset: int, _size: int) -> tuple[bytes, int, int, None] | None:
        self.reads += 1
        stored = self.times[offset // 200]
        if stored is None:
            return None
        record = record_bytes(offset, store_timestamp_ms=stored)
        return record, offset, len(record), None


class TimedQueue(QueueSearch):
    """One entry per time; fillers where asked for, files of ten entries; it is its own `files`."""

    file_size = 10 * 20
    first_offset = min_offset = 0
    max_offset = 0

    def __init__(self, times: list[int | None], fillers: set[int], missing: set[int]) -> None:
        size = len(record_bytes(0))
        self.content = b"".join(
            encode_entry(*FILLER) if n in fillers else encode_entry(n * 200, size, 0)
            for n in range(len(times))
        )
        self.max_offset, self.missing = len(times), missing
        numbers = (number for number in range(len(times) // 10 + 1) if number not in missing)
        self.files = SimpleNamespace(
            files=[SimpleNamespace(base=number * self.file_size) for number in numbers],
            file_size=self.file_size,
            read=self.read,
        )

    def read(self, offset: int, size: int) -> bytes | None:
        if offset // self.file_size in self.missing:
            return None
        stop = offset - offset % self.file_size + self.file_size
        return self.content[offset : min(offset + size, stop)]


def offset_at(log: MemoryLog, queue: TimedQueue, moment: int) -> int:
    layout, index = StoreLayout.of("store"), SimpleNamespace(is_mapped=False)
    reader = Reader(layout, StoreConfig(), log, {QUEUE: queue}, index, TopicKinds())
    return reader.offset_at(*QUEUE, moment)


def first_at_or_after(times: list[int | None], unreadable: set[int], moment: int) -> int:
    for n, stored in enumerate(times):
        if stored is not None and n not in unreadable and stored >= moment:
            return n
    return len(times)


@given(
    st.lists(st.integers(0, 30), max_size=60).map(sorted),
    st.sets(st.integers(0, 59)),
    st.sets(st.integers(0, 59), max_size=20),
    st.sets(st.integers(0, 5), max_size=2),
    st.integers(-1, 32),
)
@example([5, 5], {1}, set(), set(), 5)
def test_offset_at_is_the_first_readable_message_at_or_after_the_moment(
    rising, lost, fillers, missing, moment
):
    times = [None if n in lost else stored for n, stored in enumerate(rising)]
    unreadable = fillers | {n for n in range(len(times)) if n // 10 in missing}
    found = offset_at(MemoryLog(times), TimedQueue(times, fillers, missing), moment)
    assert found == first_at_or_after(times, unreadable, moment)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(-1, 32))
def test_where_times_go_back_the_answer_separates_earlier_from_later(times, moment):
    known: list[int | None] = list(times)
    found = offset_at(MemoryLog(known), TimedQueue(known, set(), set()), moment)
    assert 0 <= found <= len(times)
    if found < len(times):
        assert times[found] >= moment
    if found > 0:
        assert times[found - 1] < moment


def test_a_search_reads_few_records():
    times: list[int | None] = list(range(100_000))
    log = MemoryLog(times)
    assert offset_at(log, TimedQueue(times, set(), set()), 77_777) == 77_777
    assert log.reads <= 18


def test_every_message_of_one_millisecond_is_after_the_answer(tmp_path):
    files = StoreFiles(tmp_path / "store")
    for stored in (10, 20, 20, 20, 30):
        files.put(store_timestamp_ms=stored)
    for reader in (mapped_reader(files.root, end=files.end), ReadOnlyStore(files.root)):
        answers = [reader.offset_at(*QUEUE, moment) for moment in (0, 10, 11, 20, 21, 30, 31)]
        assert answers == [0, 0, 1, 1, 4, 4, 5]
        assert reader.earliest_timestamp(*QUEUE) == 10


def test_k_t5_the_oldest_message_has_a_time_however_little_follows_it(tmp_path):
    files = StoreFiles(tmp_path / "store")
    for reader in (ReadOnlyStore(files.root),):
        assert reader.earliest_log_timestamp() is None
    first = files.put(store_timestamp_ms=70)
    files.put(store_timestamp_ms=80, queue_id=3)
    files.put(store_timestamp_ms=90)
    for reader in (mapped_reader(files.root, end=files.end), ReadOnlyStore(files.root)):
        assert reader.earliest_log_timestamp() == 70  # Java: -1, the file has no 8 MiB left
    files.write_log(first, bytes(50))
    for reader in (mapped_reader(files.root, end=files.end), ReadOnlyStore(files.root)):
        assert reader.earliest_log_timestamp() == 80


def test_file_times_do_not_matter(tmp_path):
    files = StoreFiles(tmp_path / "store")
    for number in range(25):
        files.put(store_timestamp_ms=1000 + number)
    for at, path in enumerate(sorted(files.root.rglob("0*"))):
        os.utime(path, (at, 10 - at))
    for reader in (mapped_reader(files.root, end=files.end), ReadOnlyStore(files.root)):
        assert reader.offset_at(*QUEUE, 1017) == 17


def test_expired_messages_are_never_the_answer(tmp_path):
    files = StoreFiles(tmp_path / "store")
    for number in range(40):
        files.put(body=b"x" * 300, store_timestamp_ms=1000 + number)
    files.log_path(0).unlink()
    for reader in (mapped_reader(files.root, end=files.end), ReadOnlyStore(files.root)):
        minimum = reader.min_offset(*QUEUE)
        assert minimum > 0
        assert reader.offset_at(*QUEUE, 0) == minimum
        assert reader.earliest_timestamp(*QUEUE) == 1000 + minimum
