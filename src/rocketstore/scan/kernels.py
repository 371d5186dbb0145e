"""The one door to the bulk functions: compiled by Numba, or their plain-Python references.

``kernels.walk(…)`` is the compiled walk, or with the environment variable
``ROCKETSTORE_KERNELS=off`` the reference of the same name and signature. Importing this module
loads neither Numba nor a kernel; the first use of a kernel's name does, or ``load()``.

Law: compiled and reference take the same arguments and give the same answer; property tests hold
them together.

To add a kernel: write ``compiled/<module>.py`` and ``reference/<module>.py``, and add one line to
``KERNELS``.
"""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Final

from rocketstore.scan.columns import COLUMN_COUNT, Column, StopReason

__all__ = ["COLUMN_COUNT", "KERNELS", "Column", "StopReason", "cache_root", "load", "warm"]

KERNELS: Final[dict[str, str]] = {
    # kernel: module below compiled/ and reference/
    "body_crc": "crc",
    "java_hash": "java_hash",
    "walk": "walk",
    "resync": "resync",
    "last_nonzero": "resync",
    "copy_slices": "slices",
    "slice_crcs": "slices",
    "split_properties": "properties",
    "follow": "dispatch",
    "number_queues": "entries",
    "list_items": "entries",
    "put_items": "index",
    "find_items": "index",
    "rebuild_slots": "index",
    "gather": "gather",
    "find_hits": "hits",
    "write_batch": "batch",
    "list_extra_queues": "audit",
    "follow_items": "audit",
}
"""Every kernel and the module it lives in."""

SWITCH: Final = "ROCKETSTORE_KERNELS"
"""Environment variable that turns compiled kernels off; read when a kernel is first used."""


def is_compiled() -> bool:
    """Whether kernels are the compiled ones in this process."""
    return os.environ.get(SWITCH, "on").strip().lower() not in {"off", "0", "no", "false"}


def is_loaded(name: str) -> bool:
    """Whether a kernel is there already: its next use neither compiles nor loads it."""
    return name in globals()


def load(name: str) -> Any:
    """Return a kernel, compiling it or loading it from the cache when it is first asked for.

    Raises
    ------
    KeyError
        No kernel has that name.
    """
    flavour = "compiled" if is_compiled() else "reference"
    module = importlib.import_module(f"rocketstore.scan.{flavour}.{KERNELS[name]}")
    loaded = getattr(module, name)
    globals()[name] = loaded
    return loaded


def warm() -> float:
    """Compile every kernel, or load it from the cache, and return the seconds it took."""
    began = time.perf_counter()
    for name in KERNELS:
        load(name)
    return time.perf_counter() - began


def __getattr__(name: str) -> Any:
    if name in KERNELS:
        return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def cache_root() -> Path | None:
    """Directory that compiled kernels are kept in, made if need be; None when none can be written.

    ``NUMBA_CACHE_DIR`` when set, else the user's cache, else a temporary directory of this user.
    """
    for candidate in _cache_candidates():
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Root may write anywhere but to a read-only mount: only writing tells.
            with tempfile.TemporaryFile(dir=candidate):
                pass
            if candidate.stat().st_uid == os.getuid():
                return candidate
        except OSError:
            continue
    warnings.warn(
        "no directory can hold compiled kernels, so every start compiles them anew; "
        "set NUMBA_CACHE_DIR to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _cache_candidates() -> list[Path]:
    candidates = []
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        candidates.append(Path(given) / "rocketstore")
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        candidates.append(Path(xdg) / "rocketstore" / "numba")
    else:
        home = os.environ.get("HOME")
        if home:
            candidates.append(Path(home) / ".cache" / "rocketstore" / "numba")
    candidates.append(Path(tempfile.gettempdir()) / f"rocketstore-numba-{os.getuid()}")
    return candidates
