"""A slave that cannot continue from its end begins again; its old files are kept beside the new.

Law: nothing is deleted or overwritten: each directory and file gets a second name, and where the
log has that already nothing is done. The log goes last, when all other names are on the disk: what
was interrupted, by a kill or a power cut, is a store with a log, and is done again. How far delayed
messages were delivered is set aside with the log.
Consumer offsets stay, and say which log they belong to, so that groups continue where both logs
agree. 4.9 has no such step: there the slave gets heartbeats for ever (K-H2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import StoreError
from rocketstore.format.file_name import KNOWN_ENDS_FILE_NAME, LOG_DIRECTORIES_FILE_NAME
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.files.whole_file import backup_path
from rocketstore.tables.consumer_offsets import say_which_log
from rocketstore.tables.delay_offsets import DelayOffsetTable
from rocketstore.tables.positions import REPLACED

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.layout import StoreLayout


def set_log_aside(layout: StoreLayout, end: int, disk: Disk | None = None) -> list[Path]:
    """Rename log, queues, index and the files about them; return the new names.

    `end` is where the log ends.
    `StoreLockedError` says that a process writes to the store, `StoreError` that a log was set
    aside before and is still there.
    """
    disk, logs = disk or Disk(), layout.commit_log_directories
    delays = DelayOffsetTable(layout, disk)
    own = (KNOWN_ENDS_FILE_NAME, LOG_DIRECTORIES_FILE_NAME)
    others = [layout.checkpoint, layout.abort, *(layout.root / name for name in own)]
    others += [delays.path, backup_path(delays.path), layout.consume_queue_ext]
    others += [layout.consume_queue, layout.batch_consume_queue, layout.index]
    renamed: dict[Path, Path] = {}
    with StoreLock(layout.lock, layout.written_directories):
        for name in (path.with_name(path.name + REPLACED) for path in logs):
            if name.exists():
                raise StoreError(
                    f"the log cannot be set aside: {name} is still there from the last time",
                    hint="delete or move it when you no longer need it",
                )
        say_which_log(layout, end, disk)
        for paths in (others, logs):
            for path in [one for one in paths if one.exists()]:
                name = path.with_name(path.name + REPLACED)
                while name.exists():  # an interrupted run left it
                    name = name.with_name(name.name + REPLACED)
                disk.replace(path, name)
                renamed[path] = name
            for directory in {path.parent for path in renamed}:
                disk.fsync_directory(directory)
        if delays.path in renamed:
            delays.clear()
    return list(renamed.values())
