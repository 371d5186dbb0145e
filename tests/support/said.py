"""What the package logs, as a test reads it: a dict per line, with its event, level and fields."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(
            {
                "event": getattr(record, "event", record.getMessage()),
                "log_level": record.levelname.lower(),
                **getattr(record, "fields", {}),
            }
        )


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Collect what is logged below ``rocketstore``, of every level."""
    logger, collector = logging.getLogger("rocketstore"), _Collector()
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(collector)
    try:
        yield collector.lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(before)
