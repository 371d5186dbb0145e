"""Rebuilds in this process: the rows of a log in one Arrow table instead of in Spark.

`RowsHere` answers as `LogRows` does; that Spark answers the same is what tests/spark says. All else
is the product: planning, scanning, the verdict, writing, checking, the swap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rocketstore.pipeline.jobs.rebuild import rebuild_job
from rocketstore.pipeline.jobs.rebuild.log_scan import INDEX_TARGET, ScanFacts, scan_log

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_ROWS = 3
"""Blocks that a writer gets at a time."""


class RowsHere:
    """Rows of a log; `change` may spoil the blocks on their way to the writers."""

    change: Callable[[list[dict]], list[dict]] = staticmethod(lambda blocks: blocks)

    def __init__(self, _spark, tasks):
        self._rows = [
            row for task in tasks for batch in scan_log(task) for row in batch.to_pylist()
        ]

    def close(self):
        pass

    def facts(self):
        return [
            msgspec.msgpack.decode(row["facts"], type=ScanFacts)
            for row in self._rows
            if row["facts"] is not None
        ]

    def runs(self, ranges):
        rows = [
            {**row, "count": len(row["data"]) // 20}
            for row in self._rows
            if row["facts"] is None
            and row["target"] != INDEX_TARGET
            and any(start <= row["at"] < stop for start, stop in ranges)
        ]
        rows.sort(key=lambda row: (row["at"], row["ordinal"]))
        names = ("target", "at", "ordinal", "first", "count")
        kinds = [pa.binary(), *[pa.int64()] * 4]
        return pa.table(
            {n: pa.array([row[n] for row in rows], k) for n, k in zip(names, kinds, strict=True)}
        )

    def _kept(self, kept):
        before = dict(zip(kept.starts, kept.items_before, strict=True))
        for row in self._rows:
            if row["facts"] is None and row["piece"] in before:
                yield row, before[row["piece"]] + row["first"], len(row["data"]) // 20

    def write(self, kept, others, write, schema):
        blocks = [
            {"target": one, "at": -1, "ordinal": 0, "first": 0, "data": b"", "crc": 0}
            for one in others
        ]
        for row, item, count in self._kept(kept):
            if row["target"] != INDEX_TARGET:
                blocks.append(row)
                continue
            size = kept.items_per_file
            blocks += [
                {**row, "target": b"i%d" % number, "at": item, "first": item}
                for number in range(item // size, (item + count - 1) // size + 1)
            ]
        blocks = self.change(blocks)
        blocks.sort(key=lambda row: (row["target"], row["at"], row["ordinal"]))
        targets = sorted({row["target"] for row in blocks})
        written = []
        # Two partitions, each in small batches, as a worker gets them.
        for some in (targets[::2], targets[1::2]):
            rows = [row for row in blocks if row["target"] in some]
            table = pa.table(
                {
                    name: pa.array([row[name] for row in rows], kind)
                    for name, kind in (
                        ("target", pa.binary()), ("at", pa.int64()), ("ordinal", pa.int64()),
                        ("first", pa.int64()), ("data", pa.binary()), ("crc", pa.int64()),
                    )
                }
            )  # fmt: skip
            written += list(write(iter(table.to_batches(max_chunksize=BATCH_ROWS))))
        names = [column.split()[0] for column in schema.split(", ")]
        empty = pa.table({name: pa.array([], pa.null()) for name in names})
        return pa.Table.from_batches(written) if written else empty


def rebuilt_here(store, rows=RowsHere, **keywords):
    """Rebuild without Spark; keywords as `rebuild`."""
    taken = rebuild_job.LogRows
    rebuild_job.LogRows = rows
    try:
        return rebuild_job.rebuild(None, store, **keywords)
    finally:
        rebuild_job.LogRows = taken
