"""A query over all of table ``messages`` as it is by default: 21 columns with bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the query; its rows are counted by Spark's ``noop`` sink and go nowhere."""
    del scratch

    def query() -> None:
        frame = spark.read.format("rocketstore").load(str(store))
        frame.write.format("noop").mode("overwrite").save()

    return query
