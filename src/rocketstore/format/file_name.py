"""Names below the root of a store: directories, files that mark a state, offsets of files.

A file of the log or of a queue is named by the offset of its first byte, in 20 digits. Law: only a
name of exactly 20 ASCII digits is an offset; everything else (``.DS_Store``, a backup copy, Unicode
digits) is an extra file, which the caller reports.
Page: docs/format/directory.md. Source: rocketmq-all-4.9.8, UtilAll.offset2FileName,
StorePathConfigHelper, DefaultMessageStore.start, shutdown and createTempFile; spec F1, F2, F12.
"""

from collections.abc import Collection
from typing import Final

from rocketstore.format import checked

COMMIT_LOG_DIRECTORY: Final = "commitlog"
CONSUME_QUEUE_DIRECTORY: Final = "consumequeue"
CONSUME_QUEUE_EXT_DIRECTORY: Final = "consumequeue_ext"
BATCH_CONSUME_QUEUE_DIRECTORY: Final = "batchconsumequeue"
INDEX_DIRECTORY: Final = "index"
CONFIG_DIRECTORY: Final = "config"
STORE_DIRECTORIES: Final = (
    COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY,
    BATCH_CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY, CONFIG_DIRECTORY,
)  # fmt: skip
CHECKPOINT_FILE_NAME: Final = "checkpoint"

ABORT_FILE_NAME: Final = "abort"
"""Empty; it exists while a writer runs, so finding it means that the last one did not end in
order."""

LOCK_FILE_NAME: Final = "lock"
LOCK_CONTENT: Final = b"lock"
"""Written once; a shorter or longer file is left as it is, because truncating is never needed."""
LOCK_START: Final = 0
LOCK_LENGTH_BYTES: Final = 1
"""The byte range that 4.9 locks exclusively (``FileChannel.tryLock(0, 1, false)``)."""

KNOWN_ENDS_FILE_NAME: Final = "known-ends"
LOG_DIRECTORIES_FILE_NAME: Final = "log-directories"
"""Two of our own; 4.9 does not list the root."""
DLEDGER_HEAD_BYTES: Final = 88
"""Head of a file of such a log: DLedger's own head of an entry, then the begin of its message."""

MAX_OFFSET: Final = 2**63 - 1
"""Offsets are signed 64-bit numbers on disk, so 19 digits suffice; the 20th is always 0."""

QUEUE_ID_MAX: Final = 2**31 - 1

_DIGITS: Final = 20
_MAX_NAME_BYTES: Final = 255
"""Longest name in a directory, on the file systems of Linux."""


def file_name(offset: int) -> str:
    """Return the name of the file that starts at `offset`, a non-negative signed 64-bit number.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    checked(offset, 0, MAX_OFFSET, "no file can start at this offset")
    return f"{offset:020d}"


def parse_file_name(name: str) -> int | None:
    """Return the offset that `name` stands for, or None for any other file.

    >>> parse_file_name("00000000001073741824"), parse_file_name("00000000001073741824.tmp")
    (1073741824, None)
    """
    if len(name) != _DIGITS or not (name.isascii() and name.isdigit()):
        return None
    offset = int(name)
    return offset if offset <= MAX_OFFSET else None


def is_judged(name: str, neighbours: Collection[str]) -> bool:
    """Whether a name that is not an offset is a fault among the files of a log.

    In a store's root, where a log may lie too, only one that begins like a file of the log.
    """
    is_root = LOCK_FILE_NAME in neighbours or CHECKPOINT_FILE_NAME in neighbours
    return not is_root or name[:_DIGITS].isdigit()


def is_dledger_head(head: bytes, base: int) -> bool:
    """Whether a file that starts at `base` begins with an entry of DLedger around a message."""
    numbers = [int.from_bytes(head[at : at + size], "big") for at, size in ((0, 4), (24, 8))]
    # Its magic is 1, its place that of the entry; the message states the place after the head.
    return numbers == [1, base] and int.from_bytes(head[76:84], "big") == base + 48


def parse_queue_id(name: str) -> int | None:
    """Return the queue id that a directory's name stands for, or None: it is then passed over.

    Only a number's own spelling counts: ``007`` beside ``7`` would be a second queue 7.

    >>> parse_queue_id("7"), parse_queue_id("007"), parse_queue_id("x")
    (7, None, None)
    """
    if not (name.isascii() and name.isdigit() and len(name) <= len(str(QUEUE_ID_MAX))):
        return None
    number = int(name)
    return number if str(number) == name and number <= QUEUE_ID_MAX else None


def is_directory_name(topic: str) -> bool:
    """Whether a topic can be the name of a directory below ``consumequeue``.

    Wider than what a put accepts: a log that a Java program wrote is read as it is.

    >>> is_directory_name("%RETRY%group"), is_directory_name("a/b")
    (True, False)
    """
    is_name = topic not in {"", ".", ".."} and "/" not in topic and "\0" not in topic
    return is_name and len(topic.encode("utf-8", "surrogatepass")) <= _MAX_NAME_BYTES
