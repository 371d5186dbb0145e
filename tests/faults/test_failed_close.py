"""A close that fails lets go of everything all the same: files, maps, threads, and the lock."""

import errno
import gc
import threading
from pathlib import Path

import pytest

from rocketstore import FlushDiskType, Message, MessageStore
from support.configured_store import small_config
from support.descriptors import open_descriptors
from support.hooked_disk import HookedDisk
from support.patience import PATIENCE_S


class Breaking:
    """Fails every call that makes names or bytes durable, or takes them away, behind the n-th."""

    calls_left: int | None = None

    def __call__(self, call: str, _path: Path) -> None:
        if self.calls_left is not None and call in {"fdatasync", "fsync_directory", "unlink"}:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OSError(errno.EIO, "Input/output error")


def maps_of(root: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return [line for line in lines if f" {root}/" in line]


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("has_threads", [False, True])
@pytest.mark.parametrize("calls", [0, 1, 3, 6, 10, 11, None])
def test_a_close_keeps_nothing_whatever_fails_in_it(calls, flush, tmp_path, *, has_threads):
    config = small_config(flush_disk_type=flush)
    threads_before = set(threading.enumerate())
    breaking = Breaking()
    disk = HookedDisk(breaking)
    gc.collect()
    gc.disable()  # what is let go of must be so at once
    try:
        store = MessageStore.open(tmp_path, config, disk=disk, threads=has_threads)
        for number in range(50):
            store.put(Message(topic=f"Topic{number % 3}", body=b"x" * 100, keys=f"k{number}"))
        assert store.wait_dispatched(timeout_s=PATIENCE_S)
        breaking.calls_left = calls
        try:
            store.close()
        except Exception:  # noqa: BLE001 - which one is told elsewhere
            assert calls is not None
        breaking.calls_left = None
        assert open_descriptors(tmp_path) == 0
        assert maps_of(tmp_path) == []
        assert set(threading.enumerate()) <= threads_before
    finally:
        gc.enable()
    with MessageStore.open(tmp_path, config) as store:  # not held by a lock either
        assert sum(store.max_offset(f"Topic{number}", 0) for number in range(3)) == 50
