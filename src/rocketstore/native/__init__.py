"""The loops that must be fast, one source each: compiled by the build, or run as they are.

Each source is plain Python; the ``.pxd`` beside it gives C types to its functions, and Cython makes
a module of both (``setup.py``). Where there was no compiler, or with ``ROCKETSTORE_KERNELS=off``,
the same source runs interpreted, a hundred times slower.

Law: compiled code trusts nothing. Every length read from a file is compared with what remains
before it is used, and nothing outside the arrays that were given is read or written.
Law: a source knows bytes and numbers, no file and no store; ``group`` knows threads. Only ``view``,
and the locks of ``group``, have two forms: inline functions of C or of a ``.pxd``, and Python.

Classes are imported from their modules, bulk functions through ``scan.kernels``::

    >>> from rocketstore.native.resync import last_nonzero
    >>> last_nonzero(b"orders" + bytes(58), 0, 64)
    5

How to add one: write ``name.py`` and ``name.pxd`` with a signature for each function. A number
above 2^31 - 1 is a typed constant of the module, since Cython takes such a literal for an object.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import Final

SWITCH: Final = "ROCKETSTORE_KERNELS"
"""Environment variable; ``off`` runs everything interpreted."""

IS_WANTED: Final = os.environ.get(SWITCH, "on").strip().lower() not in {"off", "0", "no", "false"}
"""Whether compiled code may be used in this process."""

if not IS_WANTED:
    # Python would take a compiled module before its source.
    sys.path_importer_cache[__path__[0]] = FileFinder(
        __path__[0], (SourceFileLoader, SOURCE_SUFFIXES)
    )
