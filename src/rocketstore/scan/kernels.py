"""The one door to the bulk functions of ``rocketstore.native``, and which parts run compiled.

``kernels.walk(…)`` is the walk. Importing this module loads none of them; the first use of a name
loads its module, which takes a millisecond.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

from rocketstore.events import get_logger
from rocketstore.native import IS_WANTED, SWITCH

__all__ = ["KERNELS", "is_compiled"]

KERNELS: Final[dict[str, str]] = {
    "walk": "walk",
    "resync": "resync",
    "last_nonzero": "resync",
    "copy_slices": "columns",
    "slice_crcs": "columns",
    "split_properties": "columns",
    "number_queues": "columns",
    "list_items": "columns",
    "put_items": "index",
    "rebuild_slots": "index",
    "list_extra_queues": "columns",
    "follow_items": "index",
}
"""Every bulk function, and the module of ``rocketstore.native`` that it lives in."""


COMPILED: Final = "compiled"

_OTHERS: Final = ("decode", "group", "log_end", "lookup", "page", "put")
"""Sources of ``rocketstore.native`` that are called without this door."""

_log: Final = get_logger(__name__)


@functools.cache
def is_compiled() -> bool:
    """Whether they run compiled in this process."""
    return _state_of("walk") == COMPILED


@functools.cache
def compiled_parts() -> dict[str, str]:
    """Return of each part that may be compiled `COMPILED`, or why it is not."""
    return {f"native.{name}": _state_of(name) for name in sorted({*KERNELS.values(), *_OTHERS})}


def _state_of(name: str) -> str:
    if not IS_WANTED:
        return f"switched off by {SWITCH}"
    try:
        module = importlib.import_module(f"rocketstore.native.{name}")
    except ImportError as error:
        return f"not built for this Python ({error})"
    is_source = str(module.__file__).endswith(".py")
    return "not built for this Python: runs interpreted" if is_source else COMPILED


def compiled_summary() -> str:
    """Return in one line how many parts are compiled, and why the others are not."""
    parts = compiled_parts()
    missing = {name: state for name, state in parts.items() if state != COMPILED}
    counted = f"{len(parts) - len(missing)} of {len(parts)} parts"
    return "; ".join((counted, *(f"{name}: {state}" for name, state in missing.items())))


@functools.cache
def note_missing() -> None:
    """Log once per process what should be compiled and is not: nothing is lost silently."""
    if IS_WANTED and set(compiled_parts().values()) != {COMPILED}:
        _log.warning(
            "parts.not_compiled",
            compiled=compiled_summary(),
            hint="install a wheel, or a C compiler and the package again; until then it is slower",
        )


def __getattr__(name: str) -> Any:
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = getattr(importlib.import_module(f"rocketstore.native.{KERNELS[name]}"), name)
    globals()[name] = loaded
    return loaded
