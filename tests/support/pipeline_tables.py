"""Read a table of the data source without Spark: plan, pickle as Spark does, read, collect."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa

from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.tables import READERS

ARROW_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "ARRAY<STRING>": pa.list_(pa.field("element", pa.string())),
    "MAP<STRING,STRING>": pa.map_(pa.string(), pa.string()),
}


def placed(path: str | Path, given: dict[str, str]) -> dict[str, str]:
    """Return options with the path of a store, unless they name several by `paths`."""
    return given if "paths" in given else {"path": str(path), **given}


def plan_table(path: str | Path, **options: Any) -> list[Any]:
    """Return the tasks of a read as an executor gets them."""
    parsed = parse_options(placed(path, _texts(options)))
    return pickle.loads(pickle.dumps(READERS[parsed.table].plan(parsed)))  # noqa: S301


def read_table(path: str | Path, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a table in the order of its tasks."""
    return rows_of_plan(plan_table(path, **options), path, **options)


def rows_of_plan(plan: list[Any], path: str | Path, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a plan that was made before."""
    parsed = parse_options(placed(path, _texts(options)))
    table = READERS[parsed.table]
    schema = pa.schema([(name, ARROW_TYPES[TABLES[parsed.table][name]]) for name in parsed.columns])
    batches = []
    for task in plan:
        for batch in table.read(task, parsed, schema):
            batch.validate(full=True)
            assert batch.schema.equals(schema)
            batches.append(batch)
    return pa.Table.from_batches(batches, schema=schema).to_pylist()


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def planned_bytes(path, **options):
    """Return how many bytes the tasks of a read cover."""
    return sum(part.byte_count for task in plan_table(path, **options) for part in task)
