"""The tables of the data source; see `Table`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from rocketstore.pipeline.options import ReadOptions

_MODULES: Final = {
    "messages": "log_tables",
    "commitlog": "log_tables",
    "segments": "log_tables",
    "damage": "log_tables",
    "consumequeue": "entry_tables",
    "index": "entry_tables",
    "queues": "queue_tables",
    "topics": "queue_tables",
    "consumers": "queue_tables",
}


class Table(NamedTuple):
    """A table: two functions, between which its tasks are pickled.

    Attributes
    ----------
    plan
        Returns the tasks of a read, where the query is planned.
    read
        Yields the rows of one task as batches of a schema, on an executor.
    """

    plan: Callable[[ReadOptions], list[Any]]
    read: Callable[[Any, ReadOptions, pa.Schema], Iterator[pa.RecordBatch]]


def table_named(name: str) -> Table:
    """Return a table; its module is loaded only when a query uses it."""
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    table: Table = module.TABLES[name]
    return table
