"""The two threads of retention: one looks at the disks, one deletes.

They are two so that a slow deletion never delays the moment at which a full disk stops puts (K-E3).

How derived: the scheduled jobs of DefaultMessageStore.addScheduleTask of 4.9 (spec B1, B17).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.storage.bell import StopSign
from rocketstore.storage.threads import started

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from rocketstore.storage.retention import Retention

_log: Final = get_logger(__name__)

FIRST_CLEAN_AFTER_S: Final = 60.0
DISK_CHECK_INTERVAL_S: Final = 10.0
FIRST_DISK_CHECK_AFTER_S: Final = 1.0


class RetentionService:
    """Runs a `Retention` in the background.

    Parameters
    ----------
    retention
        What runs.
    interval_s
        Time between two rounds (``cleanResourceInterval``).
    """

    def __init__(self, retention: Retention, *, interval_s: float) -> None:
        self.retention = retention
        self._interval_s = interval_s
        self._stopping = StopSign()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start both threads."""
        self._stopping.clear()
        jobs = (
            ("rocketstore-disk-check", self._check_disk, FIRST_DISK_CHECK_AFTER_S,
             DISK_CHECK_INTERVAL_S),
            ("rocketstore-retention", self._clean, FIRST_CLEAN_AFTER_S, self._interval_s),
        )  # fmt: skip
        for name, job, first_s, interval_s in jobs:
            run = functools.partial(self._run, job, first_s, interval_s)
            self._threads.append(started(run, name))

    def stop(self) -> None:
        """Stop both threads; a round under way ends after the file it is at."""
        self._stopping.set()
        self.retention.stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _check_disk(self) -> None:
        self.retention.check_disk()

    def _clean(self) -> None:
        self.retention.run_once()

    def _run(self, job: Callable[[], None], first_s: float, interval_s: float) -> None:
        pause_s = first_s
        while not self._stopping.wait(pause_s):
            pause_s = interval_s
            try:
                job()
            except Exception:  # noqa: BLE001 - the next round tries again (K-R4)
                _log.exception("retention.failed")
