"""A store with a transient store pool, without threads unless a test wants them."""

from pathlib import Path
from typing import Any

from rocketstore import MessageStore
from support.configured_store import LOG_FILE_BYTES, open_small

BODY = b"b" * 1000


def open_pooled(root: Path, *arguments: Any, **settings: Any) -> MessageStore:
    return open_small(root, *arguments, transient_store_pool_enable=True, **settings)


def in_files(store: MessageStore) -> bytes:
    """Return the bytes of the log as its files have them."""
    (directory,) = store.layout.commit_log_directories
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()))


def fill_file(store: MessageStore, put: Any) -> int:
    """Put until the log's last file is another one; return how many messages that took."""
    first = store.appended_physical_offset // LOG_FILE_BYTES
    count = 0
    while store.appended_physical_offset // LOG_FILE_BYTES == first:
        put()
        count += 1
    return count
