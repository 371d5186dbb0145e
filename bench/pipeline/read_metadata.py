"""A query over twelve columns of table ``commitlog``: neither bodies nor properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COLUMNS: Final = (
    "topic,flag,queueId,queueOffset,bornTimestamp,storeTimestamp,tags,keys,"
    "physicalOffset,size,sysFlag,reconsumeTimes"
)
"""As many as the first measurements had; those had `bodyCRC` and `preparedTransactionOffset` for
`tags` and `keys`, which are the dearer ones."""


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the query; its rows are counted by Spark's ``noop`` sink and go nowhere."""
    del scratch

    def query() -> None:
        frame = spark.read.format("rocketstore").option("table", "commitlog")
        frame = frame.option("columns", COLUMNS).load(str(store))
        frame.write.format("noop").mode("overwrite").save()

    return query
