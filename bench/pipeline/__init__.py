"""What a job over a store costs: CPU seconds of the whole process tree per GB of log.

A scenario is a module of this package with ``prepare(spark, store, scratch)``, which returns the
job as a function, and, where the same work can be done without Spark, ``prepare_plain(store,
scratch)``. ``python -m bench.pipeline`` runs it beside the scan alone; see bench/README.md.

CPU seconds, not wall time, because they do not depend on what else the machine does: this process,
the JVM, its Python workers, and every process that ended meanwhile and was waited for.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import statistics
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import psutil

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import Segment, list_segments
from rocketstore.scan.split import SegmentFile, Split, plan_splits
from rocketstore.scan.window import scan_window
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
        """Return the job; it may be called often, and `scratch` is empty before each call."""
        ...


class Figure(NamedTuple):
    """What the runs of one job cost; CPU seconds and wall seconds of each run after the first."""

    name: str
    log_bytes: int
    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]

    @property
    def cpu_s_per_gb(self) -> float:
        """The least CPU seconds per GB of log: what disturbs can only add."""
        return min(self.cpu_s) * GB / self.log_bytes

    @property
    def spread(self) -> float:
        """Largest by smallest CPU time."""
        return max(self.cpu_s) / min(self.cpu_s)

    def row(self) -> str:
        """Return a line of the table."""
        wall = statistics.median(self.wall_s)
        return (
            f"{self.name:<24} {self.cpu_s_per_gb:8.2f} CPU s/GB   spread {self.spread:4.2f}   "
            f"wall {wall:6.1f} s = {self.log_bytes / wall / GB:5.2f} GB/s"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the form that is saved."""
        return self._asdict() | {"cpu_s_per_gb": self.cpu_s_per_gb, "spread": self.spread}


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process, its descendants and those that were waited for."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measure(
    name: str, job: Callable[[], object], *, log_bytes: int, repeats: int, clear: Callable[[], None]
) -> Figure:
    """Run a job once to warm it up, then `repeats` times, and return what those cost."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(repeats + 1):
        clear()
        before, began = tree_cpu_s(), time.perf_counter()
        job()
        wall.append(time.perf_counter() - began)
        cpu.append(tree_cpu_s() - before)
    return Figure(name, log_bytes, tuple(cpu[1:]), tuple(wall[1:]))


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
    return sum(_stop_of(segment) for segment in list_segments(str(store)))


def _stop_of(segment: Segment) -> int:
    files, _ = files_at(segment.path)
    with opened(files, segment.path) as file:
        return file.data_stop(segment.size)


def splits_of(store: Path, split_bytes: int = SPLIT_BYTES) -> list[Split]:
    """Return the written ranges of a log, as jobs cut them."""
    splits = []
    for segment in list_segments(str(store)):
        stop = _stop_of(segment)
        file = SegmentFile(segment.path, segment.base, segment.size)
        cut = plan_splits([file], split_bytes)
        splits += [one._replace(stop=min(one.stop, stop)) for one in cut if one.start < stop]
    return splits


# --- what a job is compared with ----------------------------------------------------------------


def scan_split(split: Split) -> int:
    """Scan a range with checksums, read piece by piece; return how many records it has."""
    files, _ = files_at(split.file.path)
    with opened(files, split.file.path) as file:
        return sum(
            len(batch.columns)
            for batch in scan_window(
                file,
                base=split.file.base,
                size=split.file.size,
                start=split.start,
                stop=split.stop,
            )
        )


def scan_alone(splits: Sequence[Split]) -> int:
    """Scan every range in this process."""
    return sum(map(scan_split, splits))


def in_pool(work: Callable[[Any], Any], tasks: Sequence[Any], processes: int) -> list[Any]:
    """Do the tasks in a plain pool of processes, forked anew."""
    with get_context("fork").Pool(processes) as pool:
        done = list(pool.imap_unordered(work, tasks))
        pool.close()
        pool.join()  # so that their CPU time counts as this process's children's
    return done


def scenario_names() -> list[str]:
    """Return the names of the scenarios there are."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))


def scenario(name: str) -> Any:
    """Return the module of a scenario."""
    return importlib.import_module(f"{__name__}.{name}")
