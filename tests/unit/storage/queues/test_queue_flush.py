"""The checkpoint moves only to what queues and index really have on the disk."""

import pytest

from rocketstore.config import StoreConfig
from rocketstore.errors import FlushFailedError, StoreFullError
from rocketstore.storage.checkpoint import (
    KnownEndsWriter,
    QueueFlusher,
    StoreCheckpoint,
    read_checkpoint,
    read_known_ends,
)
from support.dispatch_parts import DispatchParts


@pytest.fixture
def parts(tmp_path, disk):
    return DispatchParts(tmp_path, disk=disk)


@pytest.fixture
def flusher(parts):
    return flusher_of(parts)


def flusher_of(parts, **settings):
    return QueueFlusher(
        parts.table, parts.index,
        checkpoint=StoreCheckpoint(parts.root / "checkpoint", disk=parts.disk),
        dispatched_timestamp=lambda: parts.dispatcher.last_store_timestamp_ms,
        config=StoreConfig(**settings), monotonic=parts.clock,
        known_ends=KnownEndsWriter(
            parts.root, parts.log, parts.table, parts.index,
            dispatched_offset=lambda: parts.dispatcher.dispatched_offset, disk=parts.disk,
        ),
    )  # fmt: skip


def times(parts):
    return tuple(read_checkpoint(parts.root / "checkpoint"))


def dispatch(parts, stored, count=1):
    parts.append(count, properties=b"KEYS\x01k", store_timestamp_ms=stored)
    parts.run()


def test_entries_too_few_for_a_turn_are_on_the_disk_after_a_thorough_flush(parts, flusher):
    dispatch(parts, stored=1000)
    assert not flusher.run_once()
    file = parts.table.all()[0].files.files[0]
    assert file.flushed_position == 0
    flusher.flush_all()
    assert file.flushed_position == file.write_position == 20


def test_only_a_thorough_flush_moves_the_checkpoint(parts, flusher):
    """K-R7: Java's time is that of the last entry in memory."""
    dispatch(parts, 5000)
    assert flusher.run_once() is False
    assert times(parts) == (0, 0, 0)
    parts.clock.now_ms += 60_000
    assert flusher.run_once() is True
    assert times(parts) == (0, 5000, 5000)


@pytest.mark.parametrize(
    ("settings", "interval_ms"),
    [({}, 60_000), ({"flush_consume_queue_thorough_interval": 700}, 700)],
    ids=["by default", "by the setting"],
)
def test_a_flush_is_thorough_once_the_interval_is_over_and_not_before(parts, settings, interval_ms):
    flusher = flusher_of(parts, **settings)
    for _ in range(2):
        parts.clock.now_ms += interval_ms - 1
        assert flusher.run_once() is False
        parts.clock.now_ms += 1
        assert flusher.run_once() is True


def test_every_file_of_the_index_is_synced_before_the_checkpoint_moves(parts, flusher, disk):
    """Also a full one that others followed: nothing else syncs it when the next is made."""
    dispatch(parts, 5000, count=20)
    names = [file.file.path.name for file in parts.index.files]
    assert len(names) > 2
    disk.calls.clear()  # making a file syncs it too
    assert flusher.flush_all()
    assert set(names) <= set(disk.synced[: disk.synced.index("checkpoint")])
    assert times(parts) == (0, 5000, 5000)


def test_a_full_index_file_is_synced_in_the_next_turn_and_once(parts, flusher, disk):
    dispatch(parts, 5000, count=20)
    *full, _newest = [file.file.path.name for file in parts.index.files]
    assert full
    disk.calls.clear()
    assert [flusher.run_once() for _ in range(2)] == [False, False]
    assert [name for name in disk.synced if name in full] == full
    assert times(parts) == (0, 0, 0), "only a thorough flush moves the checkpoint"


def test_ends_for_which_there_was_no_room_are_written_by_the_next_flush(parts, flusher):
    dispatch(parts, 5000)
    parts.disk.is_full = True
    with pytest.raises(StoreFullError):  # of the checkpoint
        flusher.flush_all()
    assert read_known_ends(parts.root) is None
    parts.disk.is_full = False
    assert flusher.flush_all()
    assert read_known_ends(parts.root).log_end == parts.end


def test_what_is_dispatched_during_the_flush_is_not_promised(parts, flusher, monkeypatch):
    dispatch(parts, 5000)
    real = parts.table.flush

    def flush_while_dispatching(*arguments):
        dispatch(parts, 9000)
        return real(*arguments)

    monkeypatch.setattr(parts.table, "flush", flush_while_dispatching)
    end = parts.end
    assert flusher.flush_all()
    assert times(parts) == (0, 5000, 5000)
    known = read_known_ends(parts.root)
    assert (known.log_end, [ends.next for _, ends in known.queues]) == (end, [1])
    assert parts.queue().max_offset == 2


def test_after_a_failed_sync_the_checkpoint_stays(parts, flusher):
    dispatch(parts, 5000)
    index_files = {file.file.path.name for file in parts.index.files}
    parts.disk.fails_sync = {f"{0:020d}", *index_files}
    with pytest.raises(FlushFailedError):
        flusher.flush_all()
    parts.disk.fails_sync = set()
    assert flusher.flush_all() is False
    assert parts.table.is_flush_broken
    assert times(parts) == (0, 0, 0)
