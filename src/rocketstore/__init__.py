"""Apache RocketMQ 4.9's message store in Python, byte-compatible on disk.

The public names, which stand in ``__init__.pyi``, are loaded when they are first used, so that
``import rocketstore`` costs next to nothing and loads neither kernels nor Arrow.
``rocketstore.pipeline`` has the jobs on Spark.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    # Puts, pages and statistics rely on it (decision 0022).
    raise ImportError(
        "rocketstore needs Python's global lock, which this free-threaded Python runs without: "
        "start it with PYTHON_GIL=1, or use an ordinary build of Python"
    )

__version__: Final = "0.1.0"
_PLACES: Final[dict[str, str]] = {}


def _places() -> dict[str, str]:
    """Return the module of each public name, as type checkers read it."""
    if _PLACES:
        return _PLACES
    import re  # noqa: PLC0415 - here and below: a quick import of this package

    try:
        # By the loader, which also reads an archive that a program was packed into.
        stub = __loader__.get_data(__file__.removesuffix("c").removesuffix(".py") + ".pyi").decode()
    except OSError as error:
        raise ImportError(
            "rocketstore was packed without __init__.pyi, which lists its public names: pass "
            "--collect-all rocketstore to PyInstaller, or what keeps data files to other packers"
        ) from error
    places, module = {}, ""
    for begun, name in re.findall(r"^from (\S+) import|\b(\w+) as \2\b", stub, re.MULTILINE):
        module = begun or module
        if name:
            places[name] = module
    _PLACES.update(places)  # at once: other threads may look
    return _PLACES


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_places())
    place = _places().get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_places()})
