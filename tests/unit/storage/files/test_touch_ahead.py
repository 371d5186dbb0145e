"""Pages touched ahead: those a fast writer is about to fill, and never a byte changed."""

import mmap
import threading
from pathlib import Path

import pytest

from rocketstore.config import FlushDiskType, StoreConfig
from rocketstore.format.host import encode_host
from rocketstore.message import Message
from rocketstore.native.log_end import Record
from rocketstore.native.touch import PagesAhead
from rocketstore.scan import kernels
from rocketstore.storage.files import ahead as ahead_module
from rocketstore.storage.files.ahead import (
    LEADS,
    SYNC_AHEAD_BYTES,
    TOUCH_BYTES,
    Preallocator,
    TouchAhead,
    touch_for_syncs,
    touch_pages,
)
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile, advise
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.units import KiB, QueueKey
from support.clock import Clock
from support.log_parts import LogParts
from support.mapped_bytes import append_bytes, resident_bytes
from support.patience import PATIENCE_S, wait_until

FILE_BYTES = 4 * TOUCH_BYTES
needs_compiled = pytest.mark.skipif(
    not kernels.is_compiled(), reason="an interpreted writer faults its pages in itself"
)
BODY = bytes(TOUCH_BYTES // 4)


class RecordingTouch(TouchAhead):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []
        self.ended = 0

    def request(self, file: MappedFile, start: int, stop: int) -> None:
        self.asked.append((file.base + start, file.base + stop))

    def end_file(self) -> None:
        self.ended += 1


def log_with(directory: Path, touch: TouchAhead, clock: Clock) -> CommitLog:
    disk = Disk()
    files = MappedFileQueue(directory, FILE_BYTES, disk=disk)
    return CommitLog(
        files,
        preallocator=Preallocator(lambda _base: [directory], FILE_BYTES, disk=disk),
        clock=clock,
        store_host=encode_host("127.0.0.1:10911"),
        touch_ahead=touch,
        monotonic=clock,
    )


def append(log: CommitLog) -> int:
    record = Record(BODY, b"", encode_host("127.0.0.1:0"))
    return log.append(log.counter(QueueKey("t", 0)), [record]).physical_offset


def test_a_fast_writer_has_the_next_windows_touched_whenever_it_enters_one(tmp_path):
    touch, clock = RecordingTouch(), Clock()
    log = log_with(tmp_path, touch, clock)
    for _ in range(10):
        append(log)
        clock.now_ms += LEADS[0][0]
    ahead = LEADS[1][1] * TOUCH_BYTES
    assert touch.asked == [
        (2 * TOUCH_BYTES, 2 * TOUCH_BYTES + ahead),
        (3 * TOUCH_BYTES, 3 * TOUCH_BYTES + ahead),
    ]


@pytest.mark.parametrize(("filled_ms", "windows"), [(0, 8), (19, 8), (20, 2), (999, 2), (1000, 0)])
def test_the_faster_the_writer_the_longer_its_lead(tmp_path, filled_ms, windows):
    touch, clock = RecordingTouch(), Clock()
    log = log_with(tmp_path, touch, clock)
    for _ in range(3):
        append(log)
    clock.now_ms += filled_ms
    append(log)
    append(log)
    ahead = (2 * TOUCH_BYTES, (2 + windows) * TOUCH_BYTES)
    assert touch.asked == ([ahead] if windows else [])


def until_present(file: MappedFile, size: int) -> None:
    """Wait until so many bytes of a file are in memory for this process."""
    wait_until(lambda: resident_bytes(file.path) == size, f"{size} bytes are in memory")


@needs_compiled
def test_what_is_asked_for_is_touched_in_one_file_after_another(tmp_path):
    first, second = (
        MappedFile.create(tmp_path / str(base), base=base, size=FILE_BYTES, disk=Disk())
        for base in (0, FILE_BYTES)
    )
    touch = TouchAhead()
    touch.thread.start()
    touch.request(first, 0, TOUCH_BYTES)
    until_present(first, TOUCH_BYTES)
    touch.request(first, 2 * TOUCH_BYTES, 3 * TOUCH_BYTES)
    until_present(first, 2 * TOUCH_BYTES)
    touch.end_file()
    touch.request(second, TOUCH_BYTES, 100 * FILE_BYTES)
    until_present(second, FILE_BYTES - TOUCH_BYTES)
    touch.thread.stop()
    assert resident_bytes(first.path) == 2 * TOUCH_BYTES


@needs_compiled
def test_each_page_is_touched_once(tmp_path):
    file = MappedFile.create(tmp_path / "file", base=0, size=FILE_BYTES, disk=Disk())
    touch = TouchAhead()
    touch.thread.start()
    touch.request(file, 0, 2 * TOUCH_BYTES)
    until_present(file, 2 * TOUCH_BYTES)
    advise(file.array, mmap.MADV_DONTNEED, 0, FILE_BYTES)
    touch.request(file, TOUCH_BYTES, 2 * TOUCH_BYTES + 128 * KiB)
    until_present(file, 128 * KiB)
    touch.thread.stop()


def test_pages_that_cannot_be_touched_are_left(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(TOUCH_BYTES))
    with path.open("rb") as file:
        pages = PagesAhead(mmap.mmap(file.fileno(), TOUCH_BYTES, prot=mmap.PROT_READ))
    thread = threading.Thread(target=pages.touch)
    thread.start()
    pages.want(0, TOUCH_BYTES)
    pages.want(-5, 1 << 62)
    pages.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert resident_bytes(path) == 0


def test_no_stretch_of_bytes_no_pages():
    for wrong in (None, 5):
        with pytest.raises(TypeError):
            PagesAhead(wrong)


def test_a_file_that_is_full_is_let_go(tmp_path):
    touch = RecordingTouch()
    log = log_with(tmp_path, touch, Clock())
    for _ in range(15):
        append(log)
    assert touch.ended == 0
    append(log)
    assert (len(log.files.files), touch.ended) == (2, 1)


def test_windows_change_nothing_in_what_is_written(tmp_path, clock):
    plain = log_with(tmp_path / "a", RecordingTouch(), clock)
    plain.touch_ahead = None
    touched = log_with(tmp_path / "b", TouchAhead(), clock)
    touched.touch_ahead.thread.start()
    for log in (plain, touched):
        offsets = [append(log) for _ in range(40)]
    assert offsets == [
        number // 15 * FILE_BYTES + number % 15 * (len(BODY) + 92) for number in range(40)
    ]
    touched.touch_ahead.thread.stop()
    for mine, other in zip(plain.files.files, touched.files.files, strict=True):
        assert mine.path.read_bytes() == other.path.read_bytes()


def test_touching_changes_no_byte_and_stays_inside_the_file(tmp_path):
    file = MappedFile.create(tmp_path / "file", base=0, size=FILE_BYTES, disk=Disk())
    append_bytes(file, b"abc")
    assert touch_pages(file, 3, 100 * FILE_BYTES) in {True, False}
    assert file.path.read_bytes() == b"abc" + bytes(FILE_BYTES - 3)
    assert not touch_pages(file, FILE_BYTES, FILE_BYTES + 1)


def test_pages_without_room_on_the_disk_are_never_touched(tmp_path, disk):
    disk.is_sparse = True
    file = MappedFile.create(tmp_path / "file", base=0, size=FILE_BYTES, disk=disk)
    assert not touch_pages(file, 0, FILE_BYTES)
    assert file.path.stat().st_blocks == 0


def test_the_thread_serves_the_last_request_and_ends(tmp_path):
    threads = set(threading.enumerate())
    file = MappedFile.create(tmp_path / "file", base=0, size=FILE_BYTES, disk=Disk())
    touch = TouchAhead()
    assert not touch.thread.is_running
    touch.thread.start()
    assert touch.thread.is_running
    touch.request(file, 0, TOUCH_BYTES)
    touch.thread.stop()
    assert set(threading.enumerate()) <= threads
    TouchAhead().thread.stop()


@pytest.fixture
def touched_ranges(monkeypatch):
    """Return the ranges of positions that are touched from now on."""
    ranges = []

    def touch(file, start, stop):
        ranges.append((start, stop))
        return touch_pages(file, start, stop)

    monkeypatch.setattr(ahead_module, "touch_pages", touch)
    return ranges


def test_pages_ahead_of_a_writer_that_syncs_are_touched_again_when_half_are_used(
    tmp_path, touched_ranges
):
    file = MappedFile.create(tmp_path / "file", base=FILE_BYTES, size=FILE_BYTES, disk=Disk())
    file.write_position = 100
    first_stop = 100 + SYNC_AHEAD_BYTES
    touched = touch_for_syncs(file, 0)
    assert touched == FILE_BYTES + first_stop
    file.write_position += SYNC_AHEAD_BYTES // 2
    assert touch_for_syncs(file, touched) == touched
    file.write_position += 1
    second_stop = file.write_position + SYNC_AHEAD_BYTES
    assert touch_for_syncs(file, touched) == FILE_BYTES + second_stop
    file.write_position = FILE_BYTES - 10
    assert touch_for_syncs(file, FILE_BYTES + second_stop) == 2 * FILE_BYTES
    assert touched_ranges == [
        (100, first_stop),
        (first_stop, second_stop),
        (FILE_BYTES - 10, FILE_BYTES),
    ]
    assert file.path.read_bytes() == bytes(FILE_BYTES)


@pytest.mark.parametrize(
    ("settings", "is_touched"),
    [
        ({"flush_disk_type": FlushDiskType.SYNC_FLUSH}, True),
        ({"flush_disk_type": FlushDiskType.SYNC_FLUSH, "warm_mapped_file_enable": True}, False),
        ({}, False),
    ],
)
def test_only_a_flush_that_somebody_waits_for_touches_pages(
    tmp_path, touched_ranges, settings, is_touched
):
    parts = LogParts(tmp_path, StoreConfig(**settings), log_file_bytes=FILE_BYTES)
    parts.writer.put(Message(topic="t"))
    parts.flusher.flush()
    assert bool(touched_ranges) is is_touched


def test_a_request_that_fails_is_logged_and_the_next_one_served(tmp_path, monkeypatch):
    asked, logged = [], []

    class Pages:
        is_ended = False

        def __init__(self, _mapping):
            asked.append("file")
            if len(asked) == 1:
                raise MemoryError

        def want(self, start, stop):
            asked.append((start, stop))

    monkeypatch.setattr(ahead_module, "PagesAhead", Pages)
    monkeypatch.setattr(
        ahead_module._log, "exception", lambda *_, **__: logged.append(1), raising=False
    )
    file = MappedFile.create(tmp_path / "file", base=0, size=FILE_BYTES, disk=Disk())
    touch = TouchAhead()
    touch.request(file, 0, 4096)
    touch.request(file, 4096, 8192)
    assert (asked, logged) == (["file", "file", (4096, 8192)], [1])
