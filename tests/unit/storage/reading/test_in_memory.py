"""Whether a page can be read without the disk: of files that the system has let go of, and back."""

import os
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore
from rocketstore.scan import kernels
from support.configured_store import small_config

pytestmark = pytest.mark.skipif(not kernels.is_compiled(), reason="interpreted code cannot ask")

BODY = bytes(20_000)
COUNT = 40
"""Messages of each of two tags; many more than the system reads ahead of one."""


def let_go(root: Path) -> None:
    """Have the system keep nothing of a store in memory."""
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def is_kept(root: Path, offset: int) -> bool:
    """Return whether the system has what stands at an offset of the log in memory."""
    path = [path for path in sorted((root / "commitlog").iterdir()) if int(path.name) <= offset][-1]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Nothing of this reads ahead: what is not there already is an error.
        return bool(os.preadv(descriptor, [bytearray(1)], offset - int(path.name), os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system that cannot say
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this CPython cannot ask the system")
def test_page_is_in_memory_once_it_was_read_in(tmp_path_factory):
    config, root = small_config(), tmp_path_factory.mktemp("on-the-disk")
    offsets = []
    with MessageStore.open(root, config) as store:
        for number in range(2 * COUNT):
            result = store.put(Message(topic="orders", body=BODY, tags="ab"[number % 2]))
            offsets += result.record_offsets
        store.wait_dispatched()
        for tags in (None, "a"):
            assert all(store.is_in_memory("orders", 0, at, 32, tags) for at in range(2 * COUNT))
    let_go(root)
    with MessageStore.open(root, config) as store:
        at = COUNT
        if all(is_kept(root, offset) for offset in offsets[at : at + 4]):
            pytest.skip("this file system keeps what it is told to let go of")
        assert not store.is_in_memory("orders", 0, at, 4)
        assert store.is_in_memory("orders", 0, at, 4, waits=True)
        assert store.is_in_memory("orders", 0, at, 4)
        assert store.get_raw("orders", 0, at, 4).message_count == 4
        assert not store.is_in_memory("orders", 0, at - 30, 4)
        assert store.is_in_memory("orders", 0, 2 * COUNT)


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset"),
    [("none", 0, 0), ("orders", 1, 0), ("orders", 0, 1), ("orders", 0, -1)],
)
def test_where_there_is_no_entry_nothing_is_read(tmp_path, topic, queue_id, offset):
    with MessageStore.open(tmp_path, small_config()) as store:
        store.put(Message(topic="orders", body=b"x"))
        store.wait_dispatched()
        assert store.is_in_memory(topic, queue_id, offset)
