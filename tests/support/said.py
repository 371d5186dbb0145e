"""What the package logs, as a test reads it: a dict per line, with its event, level and fields."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Collector(logging.Handler):
    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self._slow = slow

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", record.getMessage())
        if self._slow or not event.endswith("slow"):
            fields = getattr(record, "fields", {})
            self.lines.append({"event": event, "log_level": record.levelname.lower(), **fields})


@contextmanager
def capture_logs(*, slow: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Collect what is logged below ``rocketstore``, of every level.

    Only with `slow` also what took more than half a second: a busy machine makes anything slow.
    """
    logger, collector = logging.getLogger("rocketstore"), _Collector(slow=slow)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(collector)
    try:
        yield collector.lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(before)
