"""A slave that cannot continue from its end begins again; its old files are kept beside the new.

Law: nothing is deleted or overwritten: each directory and file gets a second name, and if that
exists already nothing is done. How far delayed messages were delivered is set aside with the log.
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


def set_log_aside(layout: StoreLayout, end: int) -> list[Path]:
    """Rename log, queues, index and the files about them; return the new names.

    `end` is where the log ends.
    `StoreLockedError` says that a process writes to the store, `StoreError` that files were set
    aside before and are still there.
    """
    disk = Disk()
    delays = DelayOffsetTable(layout, disk)
    own = (KNOWN_ENDS_FILE_NAME, LOG_DIRECTORIES_FILE_NAME)
    known = [layout.checkpoint, layout.abort, *(layout.root / name for name in own)]
    known += [delays.path, backup_path(delays.path)]
    derived = [layout.consume_queue, layout.consume_queue_ext, layout.batch_consume_queue]
    derived.append(layout.index)
    # The log goes last: after an interrupt, the next opening builds the rest from it.
    paths = [path for path in (*known, *derived, *layout.commit_log_directories) if path.exists()]
    with StoreLock(layout.lock, layout.written_directories):
        renamed = {path: path.with_name(path.name + REPLACED) for path in paths}
        taken = [str(path) for path in renamed.values() if path.exists()]
        if taken:
            raise StoreError(
                f"the log cannot be set aside: {taken[0]} is still there from the last time",
                hint="delete or move it when you no longer need it",
            )
        say_which_log(layout, end, disk)
        for path, name in renamed.items():
            path.rename(name)
        for directory in {path.parent for path in renamed}:
            disk.fsync_directory(directory)
        if delays.path in renamed:
            delays.clear()
    return list(renamed.values())
