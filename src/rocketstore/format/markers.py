"""The two marker files of a store: ``abort`` and ``lock``.

``abort`` is empty; it exists while a writer runs, so finding it means that the last writer did not
end in order. ``lock`` holds four letters and is never about its content: the writer holds a POSIX
lock on its first byte, and the file stays for ever.

Page: docs/format/directory.md. Source: rocketmq-all-4.9.8, DefaultMessageStore.start, shutdown and
createTempFile; spec F12.
"""

from __future__ import annotations

from typing import Final

ABORT_FILE_NAME: Final = "abort"
ABORT_CONTENT: Final = b""

LOCK_FILE_NAME: Final = "lock"
LOCK_CONTENT: Final = b"lock"
"""Written once; a shorter or longer file is left as it is, because truncating is never needed."""
LOCK_START: Final = 0
LOCK_LENGTH_BYTES: Final = 1
"""The byte range that 4.9 locks exclusively (``FileChannel.tryLock(0, 1, false)``)."""

CHECKPOINT_FILE_NAME: Final = "checkpoint"
COMMIT_LOG_DIRECTORY: Final = "commitlog"
CONSUME_QUEUE_DIRECTORY: Final = "consumequeue"
CONSUME_QUEUE_EXT_DIRECTORY: Final = "consumequeue_ext"
INDEX_DIRECTORY: Final = "index"
CONFIG_DIRECTORY: Final = "config"
"""Names below the root of a store (StorePathConfigHelper; spec F1)."""


def is_lock_content(content: bytes) -> bool:
    """Whether `content` is what some writer put into ``lock`` (or has not yet put there)."""
    return content in (b"", LOCK_CONTENT)
