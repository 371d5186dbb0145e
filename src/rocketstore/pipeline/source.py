"""``format("rocketstore")``: the store as a Spark data source, by the Python Data Source API.

Spark makes these objects in several processes: where a query is planned (schema, partitions) and on
executors (read). A reader is pickled before its ``partitions`` is called, so what a task needs to
know travels in its partition. Spark looks this module up by ``pyspark_rocketstore``, so what it
imports at the top is paid by every session: a heavy library is loaded by the method that uses it.

Law: neither this module nor any that executors load imports ``rocketstore.storage``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import check_schema, column_type
from rocketstore.pipeline.environment import check_versions, let_warnings_out, plain_errors
from rocketstore.pipeline.option_table import PLACES
from rocketstore.pipeline.options import ReadOptions, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME: Final = "rocketstore"

let_warnings_out()  # of a worker, whose task may be taken back before it begins


class StoreDataSource(datasource.DataSource):
    """A RocketMQ store as tables; see ``docs/guide/spark.md``."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        with plain_errors():
            check_versions()

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table, and refuse a place that is not a store at once."""
        from rocketstore.pipeline.queues import named_stores  # noqa: PLC0415 - see the module's head
        from rocketstore.pipeline.streaming.stream_options import read_options_of_either  # noqa: PLC0415 - as above

        given = dict(self.options)
        if is_of_catalog := "provider" in given:
            # Beside options, which stand there twice, are what Spark knows and TBLPROPERTIES.
            given = {k: one for k, one in given.items() if k == "path" or f"option.{k}" in given}
        with plain_errors():
            options = read_options_of_either(given)
            named_stores(options)
        # Spark 4.3 keeps the options of a table of its catalog and hands none of them to the reader
        # (decision 0005); it does hand on the columns, with what was noted of them.
        return row_type(options, json.dumps(given) if is_of_catalog else None)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return a reader of the columns in `schema`, which the user may have given."""
        with plain_errors():
            options = parse_options(self._given(schema))
            check_schema(options.columns_of, options.columns, schema)
        return StoreReader(options, schema)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows a store; see ``docs/guide/spark-streaming.md``."""
        from rocketstore.pipeline.streaming.stream_reader import StoreStreamReader  # noqa: PLC0415 - above

        with plain_errors():
            return StoreStreamReader(self._given(schema), schema)

    def _given(self, schema: StructType) -> dict[str, str]:
        """Return the options of a read, which for a table of Spark's catalog are in its schema.

        Where a place is given, the schema may be that of such a table, whose options do not count.
        """
        kept = schema.fields[0].metadata.get(NAME) if schema.fields else None
        given = dict(self.options)
        if kept is not None and given.keys().isdisjoint(PLACES):
            given = json.loads(kept) | given
        if not given:
            what = "Spark passes this table's options to no Python data source"
            hint = "make the table without columns: CREATE TABLE … USING rocketstore OPTIONS …"
            raise ConfigError(what, key="path", hint=hint)
        return given

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return the sink of ``df.write``; see ``docs/guide/spark-sink.md``."""
        from rocketstore.pipeline.sink.spark_sink import BatchSink  # noqa: PLC0415 - as above

        with plain_errors():
            return BatchSink.planned(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> datasource.DataSourceStreamWriter:
        """Return the sink of one micro-batch of ``df.writeStream``."""
        from rocketstore.pipeline.sink.spark_sink import StreamSink  # noqa: PLC0415 - as above

        with plain_errors():
            return StreamSink.planned(dict(self.options), schema, overwrite=overwrite)


def row_type(options: ReadOptions, note: str | None = None) -> StructType:
    """Return the columns of a read, with a note on each; ``fromDDL`` would need a session."""
    from pyspark.sql import types  # noqa: PLC0415 - see the module's head

    text = types.StringType()
    header = types.StructType().add("key", text).add("value", types.BinaryType())
    kinds = {
        "STRING": text,
        "INT": types.IntegerType(),
        "BIGINT": types.LongType(),
        "BINARY": types.BinaryType(),
        "TIMESTAMP": types.TimestampType(),
        "ARRAY<STRING>": types.ArrayType(text),
        "MAP<STRING,STRING>": types.MapType(text, text),
        "ARRAY<STRUCT<key:STRING,value:BINARY>>": types.ArrayType(header),
    }
    noted = None if note is None else {NAME: note}
    columns = [(name, kinds[column_type(options.columns_of, name)]) for name in options.columns]
    return types.StructType([types.StructField(*one, metadata=noted) for one in columns])


class StoreReader(datasource.DataSourceReader):
    """Reads a table; it does not know a query's filters."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.read_options, self.row_schema = options, schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; of an empty list Spark would make one whose value is None."""
        from rocketstore.pipeline.tables import READERS  # noqa: PLC0415 - as above

        with plain_errors():
            tasks = READERS[self.read_options.table].plan(self.read_options)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - as above

        from rocketstore.pipeline.tables import READERS  # noqa: PLC0415 - as above

        if partition.value is None:
            return
        table = READERS[self.read_options.table]
        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        with plain_errors():
            yield from table.read(partition.value, self.read_options, schema)
