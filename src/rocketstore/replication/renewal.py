"""A slave that cannot go on from where it is begins again; what it had is kept beside.

Law: nothing is deleted and nothing is overwritten: each directory and file gets a second name, and
where that is taken already nothing is done. What was delivered of delayed messages goes with the
log; consumer offsets stay, and say which log they are of, so that groups go on where both agree.
4.9 has nothing of the kind: such a slave hears heartbeats for ever (K-H2).
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
    """Rename log, queues, index and what is known of them; return the new names.

    `end` is where the log ends.
    `StoreLockedError` says that somebody writes to the store, `StoreError` that something was set
    aside already, which nobody has looked at.
    """
    disk = Disk()
    delays = DelayOffsetTable(layout, disk)
    own = (KNOWN_ENDS_FILE_NAME, LOG_DIRECTORIES_FILE_NAME)
    known = [layout.checkpoint, layout.abort, *(layout.root / name for name in own)]
    known += [delays.path, backup_path(delays.path)]
    derived = [layout.consume_queue, layout.consume_queue_ext, layout.batch_consume_queue]
    derived.append(layout.index)
    # What is known goes first, and the log last: interrupted, the next opening builds the rest.
    paths = [path for path in (*known, *derived, *layout.commit_log_directories) if path.exists()]
    with StoreLock(layout.lock, layout.written_directories):
        renamed = {path: path.with_name(path.name + REPLACED) for path in paths}
        taken = [str(path) for path in renamed.values() if path.exists()]
        if taken:
            raise StoreError(
                f"the log cannot be set aside again: {taken[0]} is there from the last time",
                hint="remove or move it once nothing in it is needed",
            )
        say_which_log(layout, end, disk)
        for path, name in renamed.items():
            path.rename(name)
        for directory in {path.parent for path in renamed}:
            disk.fsync_directory(directory)
        if delays.path in renamed:
            delays.clear()
    return list(renamed.values())
