"""A query over fourteen columns of table ``messages``: bodies, properties and twelve fields.

These are the columns of the first measurements, which the target for queries with bodies was set
by; there `properties` was one text of each message, here it is a map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COLUMNS: Final = (
    "topic,queueId,queueOffset,physicalOffset,size,bodyCRC,flag,sysFlag,bornTimestamp,"
    "storeTimestamp,reconsumeTimes,preparedTransactionOffset,body,properties"
)


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the query; its rows are counted by Spark's ``noop`` sink and go nowhere."""
    del scratch

    def query() -> None:
        frame = spark.read.format("rocketstore").option("columns", COLUMNS).load(str(store))
        frame.write.format("noop").mode("overwrite").save()

    return query
