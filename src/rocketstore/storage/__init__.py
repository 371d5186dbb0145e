"""Files and time: a store directory, its one writer and its readers.

Importing this package makes structlog, as long as nobody configured it, write warnings and errors
to standard error: its own default is every event to standard output, where a program's results go.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from structlog import PrintLogger


def _error_logger(*_arguments: object) -> PrintLogger:
    # Looked up at each event: a test, or a daemon, may have replaced the stream meanwhile.
    return structlog.PrintLogger(sys.stderr)


if not structlog.is_configured():
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=_error_logger,
    )
