"""Spark's daemon of Python workers, with less to import in each: ``python -m`` this module.

Spark puts the zip of its Python part first on the path, and each worker compiled again what it
imports from there: 0.6 s of processor time. Where the same package was installed it lies unpacked
and compiled. What starts no thread is imported before workers are forked.
"""

import importlib
import sys

from rocketstore.pipeline.environment import WorkerErrors

if __name__ == "__main__":
    sys.stderr = WorkerErrors(sys.stderr)  # of workers that run nothing of this package too
    places = {one: one.partition("/pyspark/python/lib/") for one in sys.path}
    sys.path[:] = [one for one, at in places.items() if not at[1] or at[0] not in places]
    for name in (sys.argv[1], "rocketstore.scan.scanner"):
        importlib.import_module(name)
    importlib.import_module("pyspark.daemon").manager()
