"""What a job over a store costs: CPU seconds of the whole process tree per GB of log.

A scenario is a module of this package with ``prepare(spark, store, scratch)``, which returns the
job as a function. ``python -m bench.pipeline`` runs it, beside another checkout if one is named;
see bench/README.md.

CPU seconds, not wall time, because they do not depend on what else the machine does: the driver,
the JVM, its Python workers, and every process that ended meanwhile and was waited for.
"""

from __future__ import annotations

import os
import pkgutil
from typing import TYPE_CHECKING, Any, Final, Protocol

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.pipeline.planning import SplitTask, cut
from rocketstore.places.files import opened
from rocketstore.places.log_files import Segment, list_segments
from rocketstore.places.stores import StorePlace
from rocketstore.scan.scanner import scan_window
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GB: Final = 1_000_000_000
SPLIT_BYTES: Final = 256 * MiB
TOPIC_COUNT: Final = 8
QUEUES_PER_TOPIC: Final = 4
BATCH_MESSAGES: Final = 256
LEAST_OVERHEAD_BYTES: Final = 150
"""Of a record: its header, topic and properties, rounded down."""


class Scenario(Protocol):
    """What a module of this package offers."""

    def prepare(self, spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
        """Return the job; it may be called often, and `scratch` is empty before each call.

        What it returns as a dictionary are figures of its own, which are shown and saved.
        """
        ...


# --- the store ----------------------------------------------------------------------------------


def build_store(root: Path, log_bytes: int, *, body_bytes: int = 1024) -> None:
    """Make a store whose log has at least so many bytes: queues and index as dispatch makes them.

    Every message has a tag, a key and a unique key, as a producer's client sends them.
    """
    body = os.urandom(body_bytes + 256)
    count = log_bytes // (body_bytes + LEAST_OVERHEAD_BYTES) + BATCH_MESSAGES
    config = StoreConfig(retention=False)
    with MessageStore.open(root, config) as store:
        for first in range(0, count, BATCH_MESSAGES):
            queue = first // BATCH_MESSAGES
            store.put_batch(
                list(_messages(first, body, body_bytes, queue % TOPIC_COUNT)),
                queue_id=queue // TOPIC_COUNT % QUEUES_PER_TOPIC,
            )
        store.wait_dispatched()


def _messages(first: int, body: bytes, body_bytes: int, topic: int) -> Iterator[Message]:
    for number in range(first, first + BATCH_MESSAGES):
        at = number % 256
        yield Message(
            topic=f"BenchTopic{topic}",
            body=body[at : at + body_bytes],
            tags=f"Tag{number % 5}",
            keys=(f"order-{number:09d}",),
            properties={"UNIQ_KEY": f"7F00000100002A9F0000{number:012X}"},
        )


def written_bytes(store: Path) -> int:
    """Return how many bytes of a store's log were written."""
    return sum(stop_of(segment) for segment in list_segments(str(store)))


def stop_of(segment: Segment) -> int:
    """Return where what was written of a file ends."""
    with opened(segment.path, segment.path) as file:
        return file.data_stop(segment.size)


def splits_of(store: Path, split_bytes: int = SPLIT_BYTES) -> list[SplitTask]:
    """Return the written ranges of a log, as jobs cut them."""
    place = StorePlace(str(store), "", is_open=False)
    whole = [SplitTask(place, one, 0, stop_of(one)) for one in list_segments(place)]
    return [part for one in whole for part in cut(one, split_bytes)]


def scan_alone(store: Path) -> int:
    """Scan every range in this process, checksums included: what every job does at least."""
    count = 0
    for split in splits_of(store):
        with opened(split.store.location, split.segment.path) as file:
            batches = scan_window(
                file,
                base=split.segment.base,
                size=split.segment.size,
                start=split.start,
                stop=split.stop,
            )
            count += sum(len(batch.columns) for batch in batches)
    return count


def scenario_names() -> list[str]:
    """Return the names of the scenarios there are."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))
