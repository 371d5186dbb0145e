"""The checkpoint: times that never go back and are written only when they changed."""

import pytest

from rocketstore.errors import StoreFullError
from rocketstore.format.checkpoint import CHECKPOINT_SIZE_BYTES, Checkpoint, encode_checkpoint
from rocketstore.storage.checkpoint import StoreCheckpoint, read_checkpoint
from support.failing_disk import FailingDisk


def test_a_missing_file_is_all_zeros_and_not_made_by_reading(tmp_path):
    path = tmp_path / "checkpoint"
    assert StoreCheckpoint(path, disk=FailingDisk()).times == Checkpoint(0, 0, 0)
    assert not path.exists()


def test_a_file_that_is_too_short_is_all_zeros(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\0\1\2")
    assert read_checkpoint(path) == Checkpoint()


def test_a_new_file_has_4096_bytes_and_a_durable_name(tmp_path, disk):
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint", disk=disk)
    checkpoint.advance(physic_ms=10, logics_ms=20, index_ms=30)
    checkpoint.flush()
    content = (tmp_path / "checkpoint").read_bytes()
    assert content == encode_checkpoint(Checkpoint(10, 20, 30))
    assert len(content) == CHECKPOINT_SIZE_BYTES
    assert ("fdatasync", "checkpoint") in disk.calls
    assert disk.calls[-1] == ("fsync_directory", tmp_path.name)


def test_times_never_go_back(tmp_path):
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint", disk=FailingDisk())
    checkpoint.advance(physic_ms=10, logics_ms=20, index_ms=30)
    checkpoint.advance(physic_ms=5, logics_ms=25)
    assert checkpoint.times == Checkpoint(10, 25, 30)
    checkpoint.reset(Checkpoint(1, 2, 3))
    assert checkpoint.times == Checkpoint(1, 2, 3)


@pytest.mark.parametrize("is_new", [True, False])
def test_times_that_could_not_be_written_are_written_by_the_next_flush(tmp_path, is_new):
    path, disk = tmp_path / "checkpoint", FailingDisk()
    checkpoint = StoreCheckpoint(path, disk=disk)
    if not is_new:
        checkpoint.flush()
    checkpoint.advance(physic_ms=7)
    disk.is_full = True
    with pytest.raises(StoreFullError):
        checkpoint.flush()
    assert read_checkpoint(path) == Checkpoint()
    disk.is_full = False
    checkpoint.flush()
    assert read_checkpoint(path) == Checkpoint(7, 0, 0)


def test_unchanged_times_cost_no_sync(tmp_path, disk):
    checkpoint = StoreCheckpoint(tmp_path / "checkpoint", disk=disk)
    checkpoint.advance(physic_ms=1)
    checkpoint.flush()
    calls = list(disk.calls)
    checkpoint.flush()
    assert disk.calls == calls


def test_what_5_x_keeps_after_the_times_stays(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(24) + b"later versions" + bytes(CHECKPOINT_SIZE_BYTES - 38))
    checkpoint = StoreCheckpoint(path, disk=FailingDisk())
    checkpoint.advance(physic_ms=7)
    checkpoint.flush()
    assert path.read_bytes()[24:38] == b"later versions"
    assert len(path.read_bytes()) == CHECKPOINT_SIZE_BYTES
    assert read_checkpoint(path) == Checkpoint(7, 0, 0)
