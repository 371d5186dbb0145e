"""Spark's daemon of Python workers, with less to import in each: ``python -m`` this module.

Spark puts the zip of its Python part first on the path, and each worker compiled anew what it
imports from there: 0.6 s of processor time. Where the same package was installed it lies unpacked
and compiled. What starts no thread is imported before workers are forked.
"""

import importlib
import sys

_ZIPS = "/pyspark/python/lib/"


def unpacked(paths: list[str]) -> list[str]:
    """Return places of modules without the zips of a package that lies unpacked in one of them.

    Examples
    --------
    >>> unpacked(["/venv/pyspark/python/lib/pyspark.zip", "/venv"])
    ['/venv']
    >>> unpacked(["/spark/pyspark/python/lib/pyspark.zip", "/venv"])
    ['/spark/pyspark/python/lib/pyspark.zip', '/venv']
    """
    return [one for one in paths if _ZIPS not in one or one.partition(_ZIPS)[0] not in paths]


if __name__ == "__main__":
    sys.path[:] = unpacked(sys.path)
    for name in (sys.argv[1], "rocketstore.scan.scanner"):
        importlib.import_module(name)
    importlib.import_module("pyspark.daemon").manager()
