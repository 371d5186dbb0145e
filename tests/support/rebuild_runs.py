"""Rebuilds in this process: the rows of a log in one Arrow table instead of in Spark.

`RowsHere` answers as `LogRows` does; that Spark answers the same is what tests/spark says. All else
is the product: planning, scanning, the verdict, writing, checking, the swap.
"""

import itertools
import os
from collections.abc import Callable
from operator import itemgetter

import msgspec
import pyarrow as pa

from rocketstore.pipeline.jobs.rebuild import rebuild_job
from rocketstore.pipeline.jobs.rebuild.log_blocks import (
    FACTS_TARGET,
    INDEX_TARGET,
    QUEUE_TARGET,
    ROW_SCHEMA,
    ScanFacts,
    scan_log,
)
from rocketstore.pipeline.jobs.rebuild.rebuild_job import EMPTY_BLOCK, numbered_pieces
from rocketstore.pipeline.jobs.rebuild.rebuilt_files import WRITTEN_SCHEMA, items_per_file

NAMES = [column.split()[0] for column in ROW_SCHEMA.split(", ")]
BATCH_ROWS = 3
"""Blocks that a writer gets at a time."""


class RowsHere:
    """Rows of a log; `change` may spoil the blocks on their way to the writers."""

    change: Callable[[list[dict]], list[dict]] = staticmethod(lambda blocks: blocks)

    def __init__(self, _spark, tasks):
        rows = [row for task in tasks for batch in scan_log(task) for row in batch.to_pylist()]
        self._facts = [row["data"] for row in rows if row["target"] == FACTS_TARGET]
        self._blocks = [row for row in rows if row["target"] != FACTS_TARGET]

    def close(self):
        pass

    def facts(self):
        return [msgspec.msgpack.decode(one, type=ScanFacts) for one in self._facts]

    def runs(self, start, stop):
        rows = [
            row
            for row in self._blocks
            if row["target"] != INDEX_TARGET and start <= row["piece"] < stop
        ]
        return as_table(sorted(rows, key=in_order))

    def write(self, pieces, old, writing):
        items, entries = items_per_file(writing.sizes), writing.part_entries
        before = {row["piece"]: row["before"] for row in numbered_pieces(pieces).to_pylist()}
        kept = [row for row in self._blocks if row["piece"] in before and row["count"] >= 0]
        past_of = long_queues([row for row in kept if row["target"] != INDEX_TARGET], entries)
        whole = {QUEUE_TARGET + os.fsencode(name) for name in old} - past_of.keys()
        blocks = [EMPTY_BLOCK | {"target": target, "data": b""} for target in whole]
        for row in kept:
            target, past = row["target"], past_of.get(row["target"])
            if target == INDEX_TARGET:
                first, size, after = before[row["piece"]] + row["first"], items, b"%d"
            elif past is not None:
                first, size, after = row["first"], entries, b"\0%d\0"
            else:
                blocks.append(row)
                continue
            for at in range(first // size, (first + row["count"] - 1) // size + 1):
                is_last = past is not None and past <= (at + 1) * size
                part = target + after % at + b"last" * is_last
                blocks.append({**row, "target": part, "first": first})
        blocks = self.change(blocks)
        blocks.sort(key=lambda row: (row["target"], in_order(row)))
        targets = sorted({row["target"] for row in blocks})
        written = []
        # Two partitions, each in small batches, as a worker gets them.
        for some in (targets[::2], targets[1::2]):
            table = as_table([row for row in blocks if row["target"] in some])
            written += list(writing.write(iter(table.to_batches(max_chunksize=BATCH_ROWS))))
        names = [column.split()[0] for column in WRITTEN_SCHEMA.split(", ")]
        empty = pa.table({name: pa.array([], pa.null()) for name in names})
        return pa.Table.from_batches(written) if written else empty


def long_queues(blocks, part_entries):
    """Return what Spark finds to be queues of several parts, each with one past its last number."""
    found = {}
    key = itemgetter("target")
    for target, rows in itertools.groupby(
        sorted(blocks, key=lambda row: (key(row), in_order(row))), key
    ):
        spans = [(row["first"], row["first"] + row["count"]) for row in rows]
        goes_on = all(one[1] == after[0] for one, after in itertools.pairwise(spans))
        if goes_on and spans[-1][1] - spans[0][0] > part_entries:
            found[target] = spans[-1][1]
    return found


def in_order(row):
    return row["piece"], row["ordinal"]


def as_table(rows):
    kinds = {"target": pa.binary(), "data": pa.binary()}
    return pa.table(
        {name: pa.array([row[name] for row in rows], kinds.get(name, pa.int64())) for name in NAMES}
    )


def rebuilt_here(store, rows=RowsHere, **keywords):
    """Rebuild without Spark; keywords as `rebuild`."""
    taken = rebuild_job.LogRows
    rebuild_job.LogRows = rows
    try:
        return rebuild_job.rebuild(None, store, **keywords)
    finally:
        rebuild_job.LogRows = taken
