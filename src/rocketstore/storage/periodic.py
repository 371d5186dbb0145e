"""A thread that does one thing again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.storage.bell import StopSign
from rocketstore.storage.threads import started

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_log: Final = get_logger(__name__)


class Periodic:
    """Calls a job at an interval until it is stopped; an error is logged and the next turn comes.

    Parameters
    ----------
    name
        Of the thread.
    job
        What is done.
    interval_s
        Pause before each turn.
    """

    def __init__(self, name: str, job: Callable[[], object], interval_s: float) -> None:
        self._name = name
        self._job = job
        self._interval_s = interval_s
        self._stopping = StopSign()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = started(self._run, self._name)

    def stop(self) -> None:
        """Stop the thread after the turn it is in."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._job()
            except Exception:  # noqa: BLE001 - one bad turn does not end the service (K-R4)
                _log.exception("service.failed", service=self._name)
