"""The sink: every message of a store written into a new one, through Spark.

The cost of reading them is part of it; ``read_bodies`` says how much that is.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COLUMNS: Final = "topic,queueId,flag,sysFlag,bornTimestamp,bornHost,body,properties"


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the write."""

    def write() -> None:
        shutil.rmtree(scratch / "copy", ignore_errors=True)
        frame = spark.read.format("rocketstore").option("columns", COLUMNS).load(str(store))
        frame.write.format("rocketstore").mode("append").save(str(scratch / "copy"))

    return write
