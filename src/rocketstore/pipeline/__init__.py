"""The store on Spark: ``spark.read.format("rocketstore").load("data/store")``.

Needs the extra ``pipeline`` and a JDK. Importing this package loads neither PySpark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.pipeline.environment import check_versions, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]

FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting that lets Python data sources see filters; off unless somebody sets it."""


def register(spark: SparkSession, *, pushdown: bool = True) -> None:
    """Make ``format("rocketstore")`` known to a session.

    Spark finds the source by itself where this package is installed; registering it also lets
    filters reach it.

    Parameters
    ----------
    spark
        A session, classic or Spark Connect.
    pushdown
        Whether to set Spark's ``spark.sql.python.filterPushdown.enabled`` for this session, without
        which a filter on ``topic`` or ``storeTimestamp`` is applied only after all rows were sent.

    Raises
    ------
    UnsupportedEnvironmentError
        PySpark or pandas is missing or of a version that does not work.
    """
    check_versions()
    from rocketstore.pipeline.source import StoreDataSource  # noqa: PLC0415 - needs PySpark

    spark.dataSource.register(StoreDataSource)
    if pushdown:
        spark.conf.set(FILTER_PUSHDOWN, "true")
