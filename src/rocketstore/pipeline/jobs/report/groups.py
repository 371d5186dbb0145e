"""Tables of groups: what is counted of a store, and how counts of two parts are put together.

A record is a group of one. So the same function makes groups of records, in a task, and groups of
groups, in a task and on the driver; sums, least and greatest are the same whatever the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute

from rocketstore.pipeline.jobs.report.buckets import next_width_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

pa: Any = pyarrow
pc: Any = pyarrow.compute


class Shape(NamedTuple):
    """What a table is grouped by, and its measures with the function that joins two of them."""

    keys: tuple[str, ...]
    measures: tuple[tuple[str, str], ...]


_TRAFFIC: Final = (("messages", "sum"), ("bytes", "sum"))
_TIMES: Final = (("firstStoreMs", "min"), ("lastStoreMs", "max"))

SHAPES: Final[dict[str, Shape]] = {
    "queues": Shape(
        ("brokerName", "topic", "queueId"),
        (
            *_TRAFFIC,
            ("bodyBytes", "sum"),
            ("minQueueOffset", "min"),
            ("maxQueueOffset", "max"),
            *_TIMES,
        ),
    ),
    "tags": Shape(("topic", "tags"), _TRAFFIC),
    "keys": Shape(("topic", "key"), (("messages", "sum"),)),
    "seconds": Shape(("startMs", "topic"), _TRAFFIC),
    "traffic": Shape(("startMs", "topic"), _TRAFFIC),
    "minutes": Shape(("startMs",), _TRAFFIC),
    "sizes": Shape(
        ("topic", "bucket"),
        (("messages", "sum"), ("leastBytes", "min"), ("mostBytes", "max")),
    ),
    "latencies": Shape(
        ("topic", "way", "bucket"), (("messages", "sum"), ("leastMs", "min"), ("mostMs", "max"))
    ),
    "exactSizes": Shape(("topic", "value"), (("messages", "sum"),)),
    "exactLatencies": Shape(("topic", "value"), (("messages", "sum"),)),
    "delays": Shape(
        ("brokerName", "level"),
        (
            *_TRAFFIC,
            ("waiting", "sum"),
            ("overdue", "sum"),
            ("firstDueMs", "min"),
            ("lastDueMs", "max"),
        ),
    ),
    "retries": Shape(("topic", "reconsumeTimes"), (*_TRAFFIC, *_TIMES)),
    "files": Shape(
        ("brokerName", "file"),
        (
            ("messages", "sum"),
            ("messageBytes", "sum"),
            ("damagedRanges", "sum"),
            ("damagedBytes", "sum"),
            ("dataEnd", "max"),
        ),
    ),
    "cells": Shape(("brokerName", "file", "cell"), (("damagedBytes", "sum"),)),
}
"""Every table that is put together from groups; ``damage`` is a list."""


def grouped(rows: Any, shape: Shape) -> Any:
    """Return one row for each combination of the keys."""
    measures = [name for name, _ in shape.measures]
    groups = rows.group_by(list(shape.keys), use_threads=False).aggregate(list(shape.measures))
    names = [*shape.keys, *(f"{name}_{function}" for name, function in shape.measures)]
    return groups.select(names).rename_columns([*shape.keys, *measures])


class Groups:
    """A table of groups that grows: parts are put together when they have become many rows."""

    GROUP_ROWS: Final = 65_536

    def __init__(self, name: str) -> None:
        self.shape = SHAPES[name]
        self._parts: list[Any] = []
        self._row_count = 0
        self._is_open = False

    def add(self, rows: Any) -> None:
        """Add groups; some may be of the same keys."""
        if rows.num_rows:
            self._is_open = True
            self._parts.append(rows)
            self._row_count += rows.num_rows
            if self._row_count > self.GROUP_ROWS and len(self._parts) > 1:
                self.settle()

    def settle(self) -> Any | None:
        """Put all parts together and return the table; None when nothing was ever added."""
        if self._is_open:
            self.replace(grouped(pa.concat_tables(self._parts), self.shape))
        return self._parts[0] if self._parts else None

    def replace(self, rows: Any) -> None:
        """Set the whole table, in which no two groups are of the same keys."""
        self._is_open = False
        self._parts = [rows]
        self._row_count = rows.num_rows


class TimeGroups(Groups):
    """Groups by time, in buckets that grow wider when there are too many.

    A width is given up only when one part alone has more than `row_limit` rows at it, and then the
    whole has as well: the final width does not depend on how the work was cut.
    """

    def __init__(self, name: str, width_ms: int, row_limit: int) -> None:
        super().__init__(name)
        self.width_ms = width_ms
        self.row_limit = row_limit

    def add(self, rows: Any) -> None:
        """Add groups that begin at any narrower bucket's start."""
        super().add(_starting_at(rows, self.width_ms) if rows.num_rows else rows)

    def settle(self) -> Any | None:
        """Put all parts together in buckets wide enough for the limit."""
        rows = super().settle()
        while rows is not None and rows.num_rows > self.row_limit:
            wider = next_width_ms(self.width_ms)
            if wider is None:
                break
            rows = self.widen(wider)
        return rows

    def widen(self, width_ms: int) -> Any | None:
        """Put all parts together in buckets of a width of the ladder, if they are narrower."""
        self.width_ms = max(self.width_ms, width_ms)
        rows = super().settle()
        if rows is None:
            return None
        self.replace(grouped(_starting_at(rows, self.width_ms), self.shape))
        return self._parts[0]


def _starting_at(rows: Any, width_ms: int) -> Any:
    starts = rows["startMs"].to_numpy() // width_ms * width_ms
    return rows.set_column(rows.schema.get_field_index("startMs"), "startMs", pa.array(starts))


class ExactGroups(Groups):
    """Values of each topic with their counts, as long as a topic has few different ones.

    Of a topic with more than `value_limit` one row is left, whose value is null. A topic that has
    too many in one part has too many in the whole, so the order of the work cannot show.
    """

    def __init__(self, name: str, value_limit: int) -> None:
        super().__init__(name)
        self.value_limit = value_limit

    def settle(self) -> Any | None:
        """Put all parts together and give up the values of topics that have too many."""
        rows = super().settle()
        if rows is None:
            return None
        topics = rows["topic"].combine_chunks().dictionary_encode()
        numbers = topics.indices.to_numpy()
        is_given_up = np.bincount(numbers) > self.value_limit
        is_given_up[numbers[pc.is_null(rows["value"]).to_numpy()]] = True
        if is_given_up.any():
            mask = pa.array(is_given_up[numbers])
            values = pc.if_else(mask, pa.scalar(None, pa.int64()), rows["value"])
            at = rows.schema.get_field_index("value")
            self.replace(grouped(rows.set_column(at, "value", values), self.shape))
        return self._parts[0]


class FrequentGroups(Groups):
    """The groups with most messages of any number of groups, in bounded memory.

    Exact while there are not more than `capacity`. Of more, the count of the first one too many is
    taken from all, and those left with nothing go (Misra and Gries; the merge of Agarwal et al.):
    a count is then too low by at most `missed_at_most`, which is at most all messages divided by
    the capacity.
    """

    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(name)
        self.capacity = capacity
        self.missed_at_most = 0

    def settle(self) -> Any | None:
        """Put all parts together and keep at most `capacity` groups."""
        rows = super().settle()
        if rows is None or rows.num_rows <= self.capacity:
            return rows
        kept, messages = self.frequent(rows["messages"].to_numpy())
        at = rows.schema.get_field_index("messages")
        self.replace(rows.take(pa.array(kept)).set_column(at, "messages", pa.array(messages)))
        return self._parts[0]

    def frequent(
        self, messages: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return which of some groups are kept, at most `capacity`, and their counts then."""
        if len(messages) <= self.capacity:
            return np.arange(len(messages)), messages
        position = len(messages) - self.capacity - 1
        surplus = int(np.partition(messages, position)[position])
        self.missed_at_most += surplus
        kept = np.flatnonzero(messages > surplus)
        return kept, messages[kept] - surplus


def as_bytes(rows: Any) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def from_bytes(stream: bytes) -> Any:
    """Return the table of an Arrow stream."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def concatenated(parts: Sequence[Any]) -> Any:
    """Return tables of one schema as one."""
    return pa.concat_tables(parts).combine_chunks()
