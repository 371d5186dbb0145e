"""Lines with fields that a store logs: through ``logging``, below the logger ``rocketstore``.

Law: nothing global is configured. The host switches these lines off, formats and routes them as it
does with any library's: ``logging.getLogger("rocketstore")``. Unless it does, nothing is printed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

ROOT: Final = logging.getLogger("rocketstore")
ROOT.addHandler(logging.NullHandler())

_OF_LOGGING: Final = ("exc_info", "stack_info", "stacklevel")

_UNFORESEEN: Final = "the traceback says why; report it where the cause is not on this machine"
"""What to do about a line with a traceback, unless the line says it."""


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs an event and its fields: ``_log.warning("put.slow", took_ms=700)``.

    The line reads ``put.slow took_ms=700``; the record carries both apart, as ``record.event`` and
    ``record.fields``, for formatters that write JSON.
    """

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging gave it
        """Whether the level is logged; ``disabled`` of ``rocketstore`` silences all below."""
        return not ROOT.disabled and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Put the fields into the line, and beside it."""
        passed = {name: kwargs.pop(name) for name in _OF_LOGGING if name in kwargs}
        if passed.get("exc_info"):
            kwargs.setdefault("hint", _UNFORESEEN)
        fields = dict(kwargs)
        text = " ".join([msg, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        return text, {**passed, "extra": {"event": msg, "fields": fields}}


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module: ``get_logger(__name__)``."""
    return EventLogger(logging.getLogger(name))


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(text) & set(" \"'=") else repr(text)
