"""The queues for which a store has a directory."""

import os
from pathlib import Path

from rocketstore.format.file_name import is_directory_name, parse_queue_id
from rocketstore.format.refusals import may_be_topic
from rocketstore.rules.newer import ROCKSDB_MARK, rocksdb_queues
from rocketstore.storage.files.disk import refuse_dead_link, system_errors
from rocketstore.units import QueueKey


@system_errors("cannot list the queues of the store")
def listed_queues(root: Path, topic: str | None = None) -> list[QueueKey]:
    """Return the queues that have a directory, in order; as in 4.9, a name must be a number.

    Those of one topic are found without a look at the others.

    Raises `StoreError` where they are in RocksDB.
    """
    refuse_dead_link(root)
    if (root / ROCKSDB_MARK).is_file():
        raise rocksdb_queues(root)
    return sorted(
        QueueKey(each, queue_id)
        for each in (_subdirectories(root) if topic is None else filter(is_directory_name, [topic]))
        for name in _subdirectories(root / each)
        if (queue_id := parse_queue_id(name)) is not None
    )


def _subdirectories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except (FileNotFoundError, NotADirectoryError, UnicodeEncodeError):
        refuse_dead_link(directory)
        return []
    except PermissionError:
        if may_be_topic(directory.name):
            raise
        return []
    for name, is_directory in found:
        if not is_directory and may_be_topic(name):
            refuse_dead_link(directory / name)
    return [name for name, is_directory in found if is_directory]
