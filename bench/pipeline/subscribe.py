"""One topic of a hundred, where each was written in one go and where all were written in turn.

Its figures are the bytes that are asked of the store's files, as parts of the log: counted in this
process, since a worker of Spark reads its own modules as well. Zeros after the end of the log are
left out: a query looks through them once. The stores are its own, as large as the given one, and
1 GiB at most.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline import stop_of, written_bytes
from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.tables import READERS
from rocketstore.places import files
from rocketstore.places.log_files import list_segments
from rocketstore.units import GiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPICS: Final = 100
MOST_BYTES: Final = GiB
BODY_BYTES: Final = 1024
RECORD_BYTES: Final = 1200
PUT_AT_ONCE: Final = 100


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return a query of one topic of each store, counted by Spark."""
    count = min(written_bytes(store), MOST_BYTES) // RECORD_BYTES // TOPICS
    stores = {
        "in stretches": _filled(scratch.with_name("stretches"), _stretches(count)),
        "in turn": _filled(scratch.with_name("turns"), _turns(count)),
    }

    def query() -> dict[str, float]:
        for path in stores.values():
            frame = spark.read.format("rocketstore").option("subscribe", "Topic50").load(str(path))
            assert frame.count() == count
        return {
            f"{name}: bytes read": round(_bytes_read(path) / written_bytes(path), 4)
            for name, path in stores.items()
        }

    return query


def _stretches(count: int) -> Iterator[tuple[str, int]]:
    for topic in range(TOPICS):
        for first in range(0, count, PUT_AT_ONCE):
            yield f"Topic{topic:02d}", min(PUT_AT_ONCE, count - first)


def _turns(count: int) -> Iterator[tuple[str, int]]:
    for number in range(count * TOPICS):
        yield f"Topic{number % TOPICS:02d}", 1


def _filled(root: Path, batches: Iterator[tuple[str, int]]) -> Path:
    if not root.exists():
        body = os.urandom(BODY_BYTES)
        with MessageStore.open(root, StoreConfig(retention=False)) as store:
            for topic, size in batches:
                store.put_batch([Message(topic=topic, body=body)] * size, queue_id=0)
            store.wait_dispatched()
    return root


def _bytes_read(store: Path) -> int:
    """Return how many bytes a read of the topic asks of the files of a store."""
    from pyarrow import schema, string  # noqa: PLC0415 - as the package itself

    options = parse_options({"path": str(store), "subscribe": "Topic50", "columns": "topic"})
    ends = {one.path: stop_of(one) for one in list_segments(str(store))}
    asked = []
    read_into, read = files.LocalFile.read_into, files.LocalFile.read

    def counted_into(self: files.LocalFile, position: int, view: memoryview) -> int:
        asked.append(len(view) * (position < ends.get(self.path, GiB)))
        return read_into(self, position, view)

    def counted(self: files.LocalFile, position: int, size: int) -> bytes:
        asked.append(size * (position < ends.get(self.path, GiB)))
        return read(self, position, size)

    changed: Any = files.LocalFile
    changed.read_into, changed.read = counted_into, counted
    try:
        table = READERS["messages"]
        for task in table.plan(options):
            for _ in table.read(task, options, schema([("topic", string())])):
                pass
    finally:
        changed.read_into, changed.read = read_into, read
    return sum(asked)
