"""Run a stream as Spark runs it, without Spark: offsets as JSON, a checkpoint, tasks pickled."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rocketstore.pipeline.source import row_type
from rocketstore.pipeline.streaming.stream_options import (
    UNLIMITED,
    BatchLimits,
    parse_stream_options,
)
from rocketstore.pipeline.streaming.stream_reader import StoreStreamReader
from support.pipeline_tables import placed

MODES: dict[str, dict[str, Any]] = {"log": {}, "queues": {"subscribePattern": "Topic.*"}}
"""Options of either way to follow a store."""


class Checkpoint:
    """What Spark keeps: the offset each batch ends at, written before the batch is run."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.committed = 0

    def copy(self) -> Checkpoint:
        other = Checkpoint()
        other.offsets, other.committed = list(self.offsets), self.committed
        return other


class StreamRun:
    """One run of a query, from its start to its stop or crash.

    A batch whose offset was written but that was not committed is run again first, with the offset
    as it was written, and Spark asks for the initial offset again where no batch was committed.
    """

    def __init__(
        self,
        path: Path,
        checkpoint: Checkpoint | None = None,
        *,
        available_now: bool = False,
        clock: Any = time.monotonic,
        **options: Any,
    ) -> None:
        given = {name: str(value) for name, value in options.items()}
        self.options = parse_stream_options(placed(path, given))
        schema = row_type(self.options.read)
        self.reader = StoreStreamReader(placed(path, given), schema)
        self.reader.clock = clock
        self.kind = self.reader.kind
        self.checkpoint = Checkpoint() if checkpoint is None else checkpoint
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def start_text(self, number: int) -> str:
        if number:
            return self.checkpoint.offsets[number - 1]
        return json.dumps(self.reader.initialOffset())

    def plan_next(self, limits: BatchLimits | None = None) -> bool:
        """Write the next batch's offset; False when there is nothing to do."""
        done = self.checkpoint.committed
        if len(self.checkpoint.offsets) > done:
            return True
        text = self.start_text(done)
        limits = self.options.limits if limits is None else limits
        self.reader.stream_options = replace(self.options, limits=limits)
        limit = ReadAllAvailable() if limits == UNLIMITED else ReadMaxRows(1)
        end_text = json.dumps(self.reader.latestOffset(json.loads(text), limit))
        if done and end_text == text:
            return False
        self.checkpoint.offsets.append(end_text)
        return True

    def run_planned(self) -> list[dict[str, Any]]:
        """Return the rows of the batch whose offset was written last, without committing it."""
        number = self.checkpoint.committed
        start = json.loads(self.start_text(number))
        end = json.loads(self.checkpoint.offsets[number])
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))  # noqa: S301
        return [row for task in tasks for one in self.reader.read(task) for row in one.to_pylist()]

    def commit(self) -> None:
        self.checkpoint.committed += 1

    def batch(self, limits: BatchLimits | None = None) -> list[dict[str, Any]] | None:
        """Run one whole batch; None when there is nothing to do."""
        if not self.plan_next(limits):
            return None
        rows = self.run_planned()
        self.commit()
        return rows

    def drain(self, limits: BatchLimits | None = None) -> list[list[dict[str, Any]]]:
        """Run batches until there is nothing to do."""
        found = []
        while (rows := self.batch(limits)) is not None:
            found.append(rows)
            assert len(found) < 10_000
        return found


def places_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["physicalOffset"] for row in rows]


def flat(batches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for rows in batches for row in rows]


def sorted_places(batches: list[list[dict[str, Any]]]) -> list[int]:
    return sorted(places_of(flat(batches)))
