"""Starting the threads of a store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rocketstore.errors import SystemRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable


def started(run: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread that runs.

    Raises
    ------
    SystemRefusedError
        The process may have no more threads.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise SystemRefusedError(
            f"cannot start the thread {name}: {error}",
            hint="raise the limit of processes and threads (ulimit -u, or the container's)",
        ) from error
    return thread
