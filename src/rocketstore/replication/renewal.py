"""A slave that cannot go on from where it is begins again; what it had is kept beside.

Law: nothing is deleted and nothing is overwritten: each directory and file gets a second name, and
where that is taken already nothing is done. Consumer offsets stay, they are of the same queues.
4.9 has nothing of the kind: such a slave hears heartbeats for ever (K-H2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.storage.checkpoint import KNOWN_ENDS_FILE_NAME
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import StoreLock

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.layout import StoreLayout

REPLACED: Final = ".replaced"


def set_log_aside(layout: StoreLayout) -> list[Path]:
    """Rename log, queues, index and what is known of them; return the new names.

    `StoreLockedError` says that somebody writes to the store, `StoreError` that something was set
    aside already, which nobody has looked at.
    """
    known = (layout.checkpoint, layout.abort, layout.root / KNOWN_ENDS_FILE_NAME)
    derived = (layout.consume_queue, layout.consume_queue_ext, layout.index)
    # What is known goes first, and the log last: interrupted, the next opening builds the rest.
    paths = [path for path in (*known, *derived, *layout.commit_log_directories) if path.exists()]
    with StoreLock(layout.lock):
        renamed = {path: path.with_name(path.name + REPLACED) for path in paths}
        taken = [str(path) for path in renamed.values() if path.exists()]
        if taken:
            raise StoreError(
                f"the log cannot be set aside again: {taken[0]} is there from the last time",
                hint="remove or move it once nothing in it is needed",
            )
        for path, name in renamed.items():
            path.rename(name)
        for directory in {path.parent for path in renamed}:
            Disk().fsync_directory(directory)
    return list(renamed.values())
