"""The modules of this package that are C: optional twins of plain functions.

They are built with the package where there is a C compiler (``setup.py``), and left out
elsewhere or with ``ROCKETSTORE_KERNELS=off``.

Law: a twin gives what the plain function gives, or leaves the case to it (property tests).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# The switch of scan.kernels, on which nothing here may depend.
_SWITCH = "ROCKETSTORE_KERNELS"
_OFF = frozenset({"off", "0", "no", "false"})


def compiled_module(name: str) -> Any:
    """Return a compiled module of ``rocketstore.format``, None where there is none to be used."""
    if os.environ.get(_SWITCH, "on").strip().lower() in _OFF:
        return None
    try:
        return importlib.import_module(f"rocketstore.format.{name}")
    except ImportError:
        return None
