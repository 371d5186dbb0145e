"""How often and how much is flushed: each setting of it, driven turn by turn without a thread."""

import pytest

from rocketstore import FlushDiskType, Message, PutMessageStatus, StoreConfig
from rocketstore.storage.threads import StopSign
from support.configured_store import LOG_FILE_BYTES, open_small
from support.failing_disk import FailingDisk
from support.inside import workers_of
from support.log_parts import LogParts

PAGE = 4096


class Turns:
    """Stands for the puts that wait, of which there are none; a rest moves the clock.

    Attributes
    ----------
    rests
        How long the flush rested before each turn, in seconds.
    """

    def __init__(self, parts: LogParts, count: int) -> None:
        self.rests: list[float] = []
        self._parts = parts
        self._count = count

    def __len__(self) -> int:
        return 0

    def rest(self, timeout_s: float) -> None:
        self.rests.append(timeout_s)
        self._parts.clock.now_ms += round(timeout_s * 1000)
        if len(self.rests) >= self._count:
            self._parts.flusher.thread.stopping.set()

    def take(self) -> None: ...

    def serve(self, flushed_offset: int) -> None: ...

    def let_go(self) -> None: ...


def parts_with(root, pages: int = 0, **settings) -> LogParts:
    """A log in which something new stands on so many pages."""
    parts = LogParts(root, StoreConfig(**settings), log_file_bytes=LOG_FILE_BYTES)
    parts.flusher._last_thorough_ms = parts.clock.now_ms
    if pages:
        parts.writer.put(Message(topic="t", body=bytes(pages * PAGE)))
    return parts


def run_turns(parts: LogParts, count: int) -> list[float]:
    parts.flusher.group = turns = Turns(parts, count)
    parts.flusher.thread.stopping = StopSign()
    parts.flusher._run_async()
    return turns.rests


@pytest.mark.parametrize(
    ("settings", "seconds"), [({}, 0.5), ({"flush_interval_commit_log": 7}, 0.007)]
)
def test_the_log_is_flushed_every_half_second_unless_the_setting_says_otherwise(
    tmp_path, settings, seconds
):
    assert run_turns(parts_with(tmp_path, **settings), 3) == [seconds] * 3


@pytest.mark.parametrize(
    ("settings", "pages", "is_flushed"),
    [
        ({}, 3, False),
        ({}, 4, True),
        ({"flush_commit_log_least_pages": 6}, 5, False),
        ({"flush_commit_log_least_pages": 6}, 6, True),
        ({"flush_commit_log_least_pages": 1}, 1, True),
    ],
    ids=str,
)
def test_a_turn_flushes_the_log_from_four_new_pages_on_or_as_many_as_the_setting_says(
    tmp_path, settings, pages, is_flushed
):
    parts = parts_with(tmp_path, pages, **settings)
    run_turns(parts, 1)
    assert (parts.log.flushed_offset > 0) is is_flushed


@pytest.mark.parametrize(
    ("settings", "turns"),
    [({}, 20), ({"flush_commit_log_thorough_interval": 2000}, 4)],
    ids=["ten seconds", "as set"],
)
def test_the_log_is_flushed_whole_after_ten_seconds_or_as_long_as_the_setting_says(
    tmp_path, settings, turns
):
    parts = parts_with(tmp_path, pages=1, **settings)
    run_turns(parts, turns - 1)
    assert parts.log.flushed_offset == 0
    parts.flusher._stopping = False
    run_turns(parts, 1)
    assert parts.log.flushed_offset == parts.log.max_offset


@pytest.mark.parametrize(
    ("settings", "entries", "is_flushed"),
    [
        ({}, 210, False),
        ({}, 420, True),
        ({"flush_consume_queue_least_pages": 1}, 210, True),
        ({"flush_consume_queue_least_pages": 3}, 420, False),
    ],
    ids=str,
)
def test_a_turn_flushes_a_queue_from_two_new_pages_on_or_as_many_as_the_setting_says(
    tmp_path, settings, entries, is_flushed, disk
):
    with open_small(
        tmp_path / "store", disk=disk, mapped_file_size_consume_queue=20_000, **settings
    ) as store:
        store.put_batch([Message(topic="t", body=b"x")] * entries)
        store.wait_dispatched()
        disk.calls.clear()
        workers_of(store).queue_flusher.run_once()
        assert (("fdatasync", f"{0:020d}") in disk.calls) is is_flushed


@pytest.mark.parametrize(
    ("settings", "seconds"), [({}, 5.0), ({"sync_flush_timeout": 20}, 0.02)], ids=str
)
def test_a_put_waits_for_its_flush_as_long_as_the_setting_says(
    tmp_path, monkeypatch, settings, seconds
):
    parts = parts_with(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH, **settings)
    waited = []

    def wait_flushed(_offset, timeout_s):
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(parts.flusher, "wait_flushed", wait_flushed)
    parts.writer.plain.close()  # which waits by itself
    message = Message(topic="t", body=b"x")
    result = parts.writer.put(message)
    assert result.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert parts.writer.put_messages([message]).status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert waited == [seconds] * 2


@pytest.mark.parametrize(
    ("settings", "more"), [({}, 0), ({"flush_least_pages_when_warm_mapped_file": 4}, 3)]
)
def test_a_file_is_warmed_in_steps_of_so_many_pages_as_the_setting_says(tmp_path, settings, more):
    syncs = []
    for name, given in (("default", {}), ("set", settings)):
        disk = FailingDisk()
        with open_small(
            tmp_path / name, disk=disk, warm_mapped_file_enable=True,
            flush_disk_type=FlushDiskType.SYNC_FLUSH, **given,
        ) as store:  # fmt: skip
            store.put(Message(topic="t", body=b"x"))
            syncs.append(disk.calls.count(("fdatasync", f"{0:020d}")))
    assert syncs[1] - syncs[0] == more
