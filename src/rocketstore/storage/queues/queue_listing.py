"""Which queues a store has a directory of."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from rocketstore.errors import FormatError, StoreDamagedError
from rocketstore.format.file_name import parse_queue_id
from rocketstore.format.metadata_json import TOPICS_FILE, batch_topics
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.files.whole_file import read_with_backup
from rocketstore.units import QueueKey
from rocketstore.verification.newer import ROCKSDB_MARK, rocksdb_queues
from rocketstore.verification.queue_kinds import compare_kinds

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.layout import StoreLayout


def batch_topics_in(layout: StoreLayout) -> frozenset[str]:
    """Return the batch topics, and raise where the table does not say so of one with such queues.

    Such a topic has a directory from the moment at which it is made.
    """
    batch_queues = listed_queues(layout.batch_consume_queue)
    has_queues = bool(_subdirectories(layout.batch_consume_queue))
    decode = partial(batch_topics, has_queues=has_queues)
    try:
        names = read_with_backup(layout.config / TOPICS_FILE, decode) or frozenset()
    except FormatError:
        if not batch_queues:
            raise
        names = frozenset()  # the queues say better what is lost
    for one in compare_kinds(names, [], batch_queues).findings:
        raise StoreDamagedError(f"{layout.root}/{one.file}: {one.reason}", hint=one.action)
    return names


@system_errors("cannot list the queues of the store")
def listed_queues(root: Path) -> list[QueueKey]:
    """Return the queues that have a directory, in order; as in 4.9, a name must be a number.

    Raises `StoreError` where they are in RocksDB.
    """
    if (root / ROCKSDB_MARK).is_file():
        raise rocksdb_queues(root)
    return sorted(
        QueueKey(topic, queue_id)
        for topic in _subdirectories(root)
        for name in _subdirectories(root / topic)
        if (queue_id := parse_queue_id(name)) is not None
    )


def _subdirectories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
