"""The kernels that Numba compiles; reach them through ``rocketstore.scan.kernels``.

Law: a kernel trusts nothing. Numba checks no bounds, so every length read from a file is compared
with what remains before it is used, and no kernel reads or writes outside the arrays it was given.

Law: every kernel has a twin of the same name and signature in ``rocketstore.scan.reference``.

How to write one: decorate the entry with ``@kernel(signature)`` (compiled, or taken from the
cache, when its module is imported) and what only kernels call with ``@inner``. Declare a buffer
that is only read as ``BYTES``: that type takes read-only and writable arrays alike. Keep numbers
``int64`` throughout (``memory`` loads nothing else), since Numba turns ``int64`` mixed with
``uint64`` into a float. No default arguments: Numba never finds such a function in its cache.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numba
import numba.extending
import numpy.ma  # noqa: F401 - Numba asks for it at its first call: 20 ms in the midst of work

from rocketstore.scan.kernels import cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

types: Any = numba.types
"""Numba's types; its annotations know only some of them."""

BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
"""A contiguous byte array that is only read; a writable one is accepted too."""

WRITABLE_BYTES: Final = types.Array(types.uint8, 1, "C")
"""A contiguous byte array that the kernel writes to."""

COLUMNS: Final = types.Array(types.int64, 2, "C")
"""The matrix of ``rocketstore.scan.columns``."""

NUMBERS: Final = types.Array(types.int64, 1, "C")
"""State shared with Python: a contiguous int64 array that the kernel may write to."""

_PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]
_IMPORTED = re.compile(r"^(?:from|import)\s+rocketstore\.([\w.]+)", re.MULTILINE)


def kernel(signature: object) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature now, or load it from the cache; it drops the GIL."""

    def decorate(function: Callable[..., Any]) -> Any:
        return _compiled(function, signature)

    return decorate


def inner(function: Callable[..., Any]) -> Any:
    """Make a function callable from kernels, which contain its code wherever they call it.

    An array is passed as seven words: calls were a third of dispatch, and a fifth of the walk.
    """
    return _compiled(function, None)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function whose code is given as LLVM instructions.

    Numba's own; its annotations count the typing context among the caller's arguments.
    """
    return numba.extending.intrinsic(function)


def _compiled(function: Callable[..., Any], signature: object) -> Any:
    # No kernel makes an array, and the caller holds those it passes: Numba need not count
    # references. The atomic counts of every row that is passed on were a third of dispatch.
    with _cache_directory(function.__module__) as is_cached:
        njit: Any = numba.njit  # its annotations know no _nrt
        decorate = njit(
            signature,
            nogil=True,
            error_model="numpy",
            cache=is_cached,
            forceinline=signature is None,
            _nrt=False,
        )
        return decorate(function)


_CACHE_SETTING: Final = threading.RLock()
"""Held while Numba's setting is ours: it is one for the whole process, and two threads may load
kernels at once."""


@contextmanager
def _cache_directory(module_name: str) -> Iterator[bool]:
    """Point Numba at the cache of this version of a module, and back afterwards.

    Numba looks only at the file a function stands in; a kernel also contains the functions it calls
    and the constants it names. The directory therefore carries a digest of all these sources.
    """
    root = cache_root()
    if root is None:
        yield False
        return
    settings: Any = numba.config
    tail = module_name.rpartition(".")[2]
    directory = str(root / f"{tail}-{_source_digest(module_name)}")
    with _CACHE_SETTING:
        before, settings.CACHE_DIR = settings.CACHE_DIR, directory
        try:
            yield True
        finally:
            settings.CACHE_DIR = before


@functools.cache
def _source_digest(module_name: str) -> str:
    """Digest of a module's source and of every module of this package that it imports."""
    pending = [module_name.removeprefix("rocketstore.")]
    sources: dict[str, str] = {}
    while pending:
        name = pending.pop()
        if name in sources:
            continue
        path = _PACKAGE_ROOT.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        sources[name] = file.read_text(encoding="utf-8") if file.exists() else ""
        pending += _IMPORTED.findall(sources[name])
    text = "\0".join(f"{name}\0{sources[name]}" for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
