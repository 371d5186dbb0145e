"""Lets Spark find ``format("rocketstore")`` by itself: it looks for modules named ``pyspark_…``."""

from rocketstore.pipeline.environment import needed

with needed():
    from rocketstore.pipeline.source import StoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
