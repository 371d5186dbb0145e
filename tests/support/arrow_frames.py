"""DataFrames in this process, as far as jobs use them: what Spark does in one partition, by DuckDB.

For tests of what a job concludes from many small stores; that Spark comes to the same is tested on
Spark (``tests/spark``).
"""

from __future__ import annotations

import functools
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema


class Frame:
    """An Arrow table with the methods of a Spark DataFrame."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def sparkSession(self) -> Frames:  # noqa: N802 - Spark's name
        return Frames()

    def persist(self) -> Frame:
        return self

    def unpersist(self) -> Frame:
        return self

    def repartition(self, *_: Any) -> Frame:
        return self

    repartitionById = repartition  # noqa: N815 - Spark's name

    def sortWithinPartitions(self, *names: str) -> Frame:  # noqa: N802 - Spark's name
        return self._query(f"SELECT * FROM rows ORDER BY {', '.join(names)}")  # noqa: S608 - tests' own

    def sort(self, *names: str) -> Frame:
        return self.sortWithinPartitions(*names)

    def orderBy(self, name: str, *, ascending: bool) -> Frame:  # noqa: N802 - Spark's name
        direction = "ASC" if ascending else "DESC"
        return self._query(f"SELECT * FROM rows ORDER BY {name} {direction}")  # noqa: S608 - above

    def select(self, *names: str) -> Frame:
        return Frame(self._table.select(list(names)))

    def distinct(self) -> Frame:
        return self._query("SELECT DISTINCT * FROM rows")

    def limit(self, count: int) -> Frame:
        return Frame(self._table.slice(0, count))

    def filter(self, condition: str) -> Frame:
        return self._query(f"SELECT * FROM rows WHERE {condition}")  # noqa: S608 - as above

    def unionByName(self, other: Frame) -> Frame:  # noqa: N802 - Spark's name
        both = [self._table, other._table.select(self._table.column_names)]
        return Frame(pa.concat_tables(both, promote_options="permissive"))

    def mapInArrow(self, work: Any, schema: Any) -> Frame:  # noqa: N802 - Spark's name
        columns = to_arrow_schema(schema, timezone="UTC")
        batches = [batch.select(columns.names).cast(columns) for batch in work(self._batches())]
        return Frame(pa.Table.from_batches(batches, columns))

    def groupBy(self, *names: str) -> Grouped:  # noqa: N802 - Spark's name
        return Grouped(self, names)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._table

    def _batches(self) -> Any:
        return iter(self._table.to_batches(max_chunksize=100))

    def _query(self, query: str) -> Frame:
        connection = _connection()
        connection.register("rows", self._table)
        try:
            return Frame(connection.sql(query).to_arrow_table())
        finally:
            connection.unregister("rows")


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Make the connection of this process: one for each query would take longer than the query."""
    return duckdb.connect(config={"threads": 1})


class Grouped:
    """Groups of a frame."""

    def __init__(self, frame: Frame, names: tuple[str, ...]) -> None:
        self._frame, self._names = frame, names

    def agg(self, sums: dict[str, str]) -> Frame:
        chosen = [
            f'{what}({name}){cast} AS "{what}({"1" if name == "*" else name})"'
            for name, what in sums.items()
            for cast in ["" if what == "min" else "::BIGINT"]
        ]
        names = ", ".join(self._names)
        query = f"SELECT {names}, {', '.join(chosen)} FROM rows GROUP BY {names}"  # noqa: S608 - above
        return self._frame._query(query)


class Frames:
    """A session that makes such frames."""

    def createDataFrame(  # noqa: N802 - Spark's name
        self, table: pa.Table, schema: Any = None
    ) -> Frame:
        assert table.num_rows or schema, "Spark Connect takes no empty table without its schema"
        return Frame(table)
