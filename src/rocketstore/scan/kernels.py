"""The one door to the bulk functions of ``rocketstore.native``, and which parts run compiled."""

import functools
import importlib
import sys
from typing import Final

from rocketstore.events import get_logger
from rocketstore.native import IS_WANTED, SWITCH
from rocketstore.native import columns as _columns
from rocketstore.native import dispatch as _dispatch
from rocketstore.native import index as _index
from rocketstore.native import resync as _resync
from rocketstore.native import walk as _walk

walk, claimed_size = _walk.walk, _walk.claimed_size
resync, last_nonzero = _resync.resync, _resync.last_nonzero
copy_slices, slice_crcs = _columns.copy_slices, _columns.slice_crcs
split_properties = _columns.split_properties
number_queues, list_items = _columns.number_queues, _columns.list_items
list_codes = _columns.list_codes
put_mapped = _dispatch.put_mapped
put_items, follow_items = _index.put_items, _index.follow_items
rebuild_slots = _index.rebuild_slots

COMPILED: Final = "compiled"

_PARTS: Final = (
    "columns", "decode", "dispatch", "group", "index", "log_end", "lookup", "page", "put", "resync",
    "sends", "touch", "walk",
)  # fmt: skip

_log: Final = get_logger(__name__)


@functools.cache
def is_compiled() -> bool:
    """Whether they run compiled in this process."""
    return _state_of("walk") == COMPILED


@functools.cache
def compiled_parts() -> dict[str, str]:
    """Return `COMPILED` for each part that may be compiled, or why it is not."""
    return {f"native.{name}": _state_of(name) for name in _PARTS}


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
    names: dict[str, list[str]] = {}
    for name, state in parts.items():
        names.setdefault(state, []).append(name)
    counted = f"{len(names.pop(COMPILED, []))} of {len(parts)} parts"
    return "; ".join((counted, *(f"{', '.join(which)}: {why}" for why, which in names.items())))


@functools.cache
def note_missing() -> None:
    """Log once per process which parts should be compiled and are not.

    Only parts that are in use are looked at: a store need not load those of a broker to open.
    """
    used = [name for name in _PARTS if f"rocketstore.native.{name}" in sys.modules]
    if IS_WANTED and any(_state_of(name) != COMPILED for name in used):
        _log.warning(
            "parts.not_compiled",
            compiled=compiled_summary(),
            hint="install a C compiler, and the package again; until then it is slower",
        )
