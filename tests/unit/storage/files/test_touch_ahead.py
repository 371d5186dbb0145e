"""Pages touched ahead: those a fast writer is about to fill, and never a byte changed."""

import threading
from pathlib import Path

from rocketstore.format.host import encode_host
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.preallocate import Preallocator
from rocketstore.storage.files.touch_ahead import (
    FAST_WINDOW_MS,
    WINDOW_BYTES,
    WINDOWS_AHEAD,
    TouchAhead,
    touch_pages,
)
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.units import QueueKey
from support.failing_disk import FailingDisk
from support.log_parts import SettableClock

FILE_BYTES = 4 * WINDOW_BYTES
BODY = bytes(WINDOW_BYTES // 4)


class RecordingTouch(TouchAhead):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def request(self, file: MappedFile, start: int, stop: int) -> None:
        self.asked.append((file.base + start, file.base + stop))


def log_with(directory: Path, touch: TouchAhead, clock: SettableClock) -> CommitLog:
    disk = Disk()
    files = MappedFileQueue(directory, FILE_BYTES, disk=disk)
    return CommitLog(
        files,
        preallocator=Preallocator(files.directory_of, FILE_BYTES, disk=disk),
        clock=clock,
        store_host=encode_host("127.0.0.1:10911"),
        touch_ahead=touch,
    )


def append(log: CommitLog) -> int:
    cell = log.cell(QueueKey("t", 0))
    return log.append(cell, BODY, b"", 0, 0, None, encode_host("127.0.0.1:0"), 0, 0)[0]


def test_a_fast_writer_has_the_next_windows_touched_whenever_it_enters_one(tmp_path):
    touch, clock = RecordingTouch(), SettableClock()
    log = log_with(tmp_path, touch, clock)
    for _ in range(10):
        append(log)
    ahead = WINDOWS_AHEAD * WINDOW_BYTES
    assert touch.asked == [
        (2 * WINDOW_BYTES, 2 * WINDOW_BYTES + ahead),
        (3 * WINDOW_BYTES, 3 * WINDOW_BYTES + ahead),
    ]


def test_a_slow_writer_is_left_alone(tmp_path):
    touch, clock = RecordingTouch(), SettableClock()
    log = log_with(tmp_path, touch, clock)
    for _ in range(30):
        append(log)
        clock.now_ms += FAST_WINDOW_MS
    assert touch.asked == []


def test_windows_change_nothing_in_what_is_written(tmp_path):
    clock = SettableClock()
    plain = log_with(tmp_path / "a", RecordingTouch(), clock)
    plain._touch_ahead = None
    touched = log_with(tmp_path / "b", TouchAhead(), clock)
    touched._touch_ahead.start()
    for log in (plain, touched):
        offsets = [append(log) for _ in range(40)]
    assert offsets == [
        number // 15 * FILE_BYTES + number % 15 * (len(BODY) + 92) for number in range(40)
    ]
    touched._touch_ahead.stop()
    for mine, other in zip(plain.files.files, touched.files.files, strict=True):
        assert mine.path.read_bytes() == other.path.read_bytes()


def test_touching_changes_no_byte_and_stays_inside_the_file(tmp_path):
    file = MappedFile.create(tmp_path, base=0, size=FILE_BYTES, disk=Disk())
    file.append_bytes(b"abc")
    assert touch_pages(file, 3, 100 * FILE_BYTES) in {True, False}
    assert file.path.read_bytes() == b"abc" + bytes(FILE_BYTES - 3)
    assert not touch_pages(file, FILE_BYTES, FILE_BYTES + 1)


def test_pages_without_room_on_the_disk_are_never_touched(tmp_path):
    disk = FailingDisk()
    disk.is_sparse = True
    file = MappedFile.create(tmp_path, base=0, size=FILE_BYTES, disk=disk)
    assert not touch_pages(file, 0, FILE_BYTES)
    assert file.path.stat().st_blocks == 0


def test_the_thread_serves_the_last_request_and_ends(tmp_path):
    threads = threading.active_count()
    file = MappedFile.create(tmp_path, base=0, size=FILE_BYTES, disk=Disk())
    touch = TouchAhead()
    assert not touch.is_running
    touch.start()
    assert touch.is_running
    touch.request(file, 0, WINDOW_BYTES)
    touch.stop()
    assert threading.active_count() == threads
    TouchAhead().stop()
