"""The one door to the bulk functions of ``rocketstore.native``.

``kernels.walk(…)`` is the walk. Importing this module loads none of them; the first use of a name
loads its module, which takes a millisecond.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

from rocketstore.native import IS_WANTED

__all__ = ["KERNELS", "is_compiled"]

KERNELS: Final[dict[str, str]] = {
    "body_crc": "columns",
    "java_hash": "java_hash",
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


@functools.cache
def is_compiled() -> bool:
    """Whether they run compiled in this process."""
    if not IS_WANTED:
        return False
    walk = importlib.import_module("rocketstore.native.walk")
    return not str(walk.__file__).endswith(".py")


def __getattr__(name: str) -> Any:
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = getattr(importlib.import_module(f"rocketstore.native.{KERNELS[name]}"), name)
    globals()[name] = loaded
    return loaded
