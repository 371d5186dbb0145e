"""Which parts of the package run compiled in this process, and why one does not.

Law: nothing is lost silently. What was not built works, slower: a store that opens says so once.
"""

from __future__ import annotations

import functools
import importlib
from typing import Final

from rocketstore.events import get_logger
from rocketstore.native import IS_WANTED, SWITCH
from rocketstore.scan.kernels import KERNELS

COMPILED: Final = "compiled"

_OTHERS: Final = ("decode", "group", "log_end", "lookup", "page", "put")
"""Sources of ``rocketstore.native`` that are called without the door for bulk functions."""

_log = get_logger(__name__)


@functools.cache
def compiled_parts() -> dict[str, str]:
    """Return of each part that may be compiled `COMPILED`, or why it is not."""
    sources = (f"native.{name}" for name in sorted({*KERNELS.values(), *_OTHERS}))
    return {name: _state_of(name) for name in sources}


def _state_of(name: str) -> str:
    if not IS_WANTED:
        return f"switched off by {SWITCH}"
    try:
        module = importlib.import_module(f"rocketstore.{name}")
    except ImportError as error:
        return f"not built for this Python ({error})"
    is_source = str(module.__file__).endswith(".py")
    return "not built for this Python: runs interpreted" if is_source else COMPILED


def summary() -> str:
    """Return in one line how many parts are compiled, and why the others are not."""
    parts = compiled_parts()
    missing = {name: state for name, state in parts.items() if state != COMPILED}
    counted = f"{len(parts) - len(missing)} of {len(parts)} parts"
    return "; ".join((counted, *(f"{name}: {state}" for name, state in missing.items())))


@functools.cache
def note_missing() -> None:
    """Log once per process what should be compiled and is not."""
    if IS_WANTED and set(compiled_parts().values()) != {COMPILED}:
        _log.warning(
            "parts.not_compiled",
            compiled=summary(),
            hint="install a wheel, or a C compiler and the package again; until then it is slower",
        )
