"""What a worker process of Spark needs from the code that runs in it.

Law: any other process, the driver above all, is left as it is.
"""

from __future__ import annotations

import gc
import logging
import sys

from rocketstore.events import ROOT

__all__ = ["is_worker", "let_warnings_out", "spare_collections"]

_module_count = 0
"""Modules this process had when its objects were last set aside."""


def is_worker() -> bool:
    """Whether Spark started this process to run Python for it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def let_warnings_out() -> None:
    """Let what this package warns of reach a worker's stderr, which Spark keeps for its readers.

    Nobody else sets up logging in such a process; where somebody did, it is left at that.
    """
    last_resort = logging.lastResort
    if last_resort is not None and is_worker() and not logging.getLogger().handlers:
        ROOT.addHandler(last_resort)  # once: a handler that is there is not added again


def spare_collections() -> None:
    """Keep the garbage collector from walking what loaded libraries made, task after task.

    A worker collects all generations after every task (``pyspark.daemon``): with NumPy, Numba,
    Arrow and pandas loaded that is 0.05 s of processor time, more than all else that an empty task
    costs it. What is alive after the first task lives as long as the worker, so it is set aside;
    again only when more was loaded, so that garbage of later tasks is collected as ever.
    """
    global _module_count  # noqa: PLW0603 - of the process, as the collector is
    if not is_worker() or len(sys.modules) == _module_count:
        return
    _module_count = len(sys.modules)
    gc.collect()
    gc.freeze()
