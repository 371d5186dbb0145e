"""What the system refuses, said as an error of the store: what, where, and what to do next.

Law: no `OSError` of the system leaves the store as it is. ``FileNotFoundError`` beside retention is
an expected outcome, and is dealt with where a file is read.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError, StoreFullError, SystemRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system answers when there is no room: a full file system, or a used-up quota."""

_HINTS: Final = {
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine (sysctl fs.file-max)",
    errno.ENOMEM: "free memory, or raise the limits of this process (ulimit -v, vm.max_map_count)",
    errno.EIO: "the disk fails: see the log of the system (dmesg), and copy the store elsewhere",
    errno.ENOSPC: "free space on the partition or let retention delete old files",
    errno.EDQUOT: "free space within the quota or raise it",
    errno.EACCES: "fix the permissions, or open the store with read_only=True",
    errno.EPERM: "fix the permissions, or open the store with read_only=True",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EROFS: "mount the file system for writing, or open the store with read_only=True",
}


def system_error(what: str, error: OSError) -> StoreError:
    """Return the error that says what could not be done because of `error`, and what helps.

    One without a number is of a signal handler (a time limit, say), not the system's: it is raised.
    """
    if isinstance(error, StoreError):
        return error
    if error.errno is None:
        raise error
    where = "" if error.filename is None or str(error.filename) in what else f" ({error.filename})"
    message = f"{what}{where}: {error.strerror or error}"
    hint = _HINTS.get(error.errno or 0, "try again; if it stays so, see the system's log (dmesg)")
    if error.errno in NO_SPACE_ERRORS:
        return StoreFullError(message, hint=hint)
    return SystemRefusedError(message, code=error.errno, hint=hint)


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Let an `OSError` out of the block, or out of the function so decorated, as a `StoreError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise system_error(what, error) from error
