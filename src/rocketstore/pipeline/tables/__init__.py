"""The tables of the data source, one module each.

A table's module has two functions. ``plan(options)`` runs where the query is planned
and returns the tasks; ``read(task, options, schema)`` runs on an executor and yields
Arrow batches of the schema. A task is a value that can be pickled.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from rocketstore.pipeline.options import ReadOptions

_MODULES: Final = {
    "messages": "records",
    "commitlog": "records",
    "consumequeue": "consumequeue",
    "index": "index",
    "segments": "segments",
    "queues": "queue_bounds",
    "topics": "topic_totals",
    "consumers": "consumer_lag",
    "damage": "damage",
}


class Table(Protocol):
    """What a table's module offers."""

    def plan(self, options: ReadOptions) -> list[Any]:
        """Return the tasks of a read."""
        ...

    def read(
        self,
        task: Any,
        options: ReadOptions,
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        ...


def table_named(name: str) -> Table:
    """Return the module of a table; loaded only when a query uses it."""
    module: Any = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    table: Table = module
    return table
