"""Prove a store on an object store: compare what is there with what its log calls for.

As for a rebuild, Spark brings the rows of each queue together; but the task that has them makes the
queue's files on a disk of its own, compares them with the objects in place and throws them away.
Index items are compared as rows (`item_turns`).

Law: nothing is written where the store lies, nor anywhere but in directories for temporary files. A
task has one queue, or one turn of the index, at a time, and a file of the queue in memory.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.index_file import is_index_file_name
from rocketstore.format.markers import (
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.pipeline.files import joined, last_name
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.construction import (
    Making,
    build_with,
    damage_of,
    log_end_of,
)
from rocketstore.pipeline.jobs.rebuild.item_turns import (
    IndexObject,
    WantedRows,
    check_index_object,
    compare_turn,
    emit_both,
    plan_turns,
)
from rocketstore.pipeline.jobs.rebuild.proof import (
    PROOF_SCHEMA,
    Difference,
    LogFacts,
    QueueProofTask,
    compare_queues,
    grouped_queues,
    log_facts,
    queue_differences,
)
from rocketstore.pipeline.jobs.rebuild.shuffle import (
    INDEX_TARGET,
    QUEUE_TARGET,
    ROW_SCHEMA,
    FileWriting,
    targets_of,
)
from rocketstore.pipeline.objects import ObjectStore
from rocketstore.pipeline.stores import StorePlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions, Built
    from rocketstore.pipeline.jobs.rebuild.item_turns import Turns
    from rocketstore.pipeline.jobs.rebuild.parts import PartManifest
    from rocketstore.pipeline.jobs.rebuild.runner import Runner
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.pipeline.jobs.rebuild.tasks import LogTask

COMPARED_SCHEMA: Final = "target STRING, entries LONG, refused LONG, items LONG, found BINARY"

_COMPARED: Final = (COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY)


def prove_objects(
    runner: Runner, location: str, options: BuildOptions, *, staging: str | None = None
) -> tuple[Built, list[Difference]]:
    """Compare the store of a URI with what its log calls for.

    Parameters
    ----------
    staging
        Directory of each worker for what is compared; None: where temporary files go.

    Raises
    ------
    StoreError
        Somebody wrote there meanwhile.
    """
    objects = ObjectStore(location)
    before = _states(objects)
    place = StorePlace(location, last_name(location), is_open=False)
    comparison = _Comparison(place, options, staging)
    built = build_with(runner, place, Making(comparison.judge, comparison.compare), options)
    changed = sorted(dict(before.items() ^ _states(objects).items()))
    if changed:
        raise StoreError(
            f"{objects.root}/{changed[0]} changed while the store was compared, and "
            f"{len(changed) - 1} others",
            hint="wait until nobody writes there, and run it again",
        )
    return built, comparison.differences


def _states(objects: ObjectStore) -> dict[str, tuple[int, int | None]]:
    return {
        f"{name}/{path}": state
        for name in _COMPARED
        for path, state in objects.states(f"{objects.root}/{name}").items()
    }


class _Comparison:
    """What is done in the place of writing."""

    def __init__(self, place: StorePlace, options: BuildOptions, staging: str | None) -> None:
        self.differences: list[Difference] = []
        self._place = place
        self._location = place.location
        self._options = options
        self._staging = staging

    def judge(self) -> driver_commit.LogVerdict:
        """See `judge_remote_log`."""
        return driver_commit.judge_remote_log(self._location, now_ms=self._options.now_ms)

    def compare(
        self,
        runner: Runner,
        tasks: Sequence[LogTask],
        manifests: Sequence[PartManifest],
        settings: RebuildSettings,
    ) -> tuple[int, int, int]:
        """Compare everything; return what the log calls for as entries, refused records, items."""
        end = log_end_of(manifests)
        log = log_facts(self._place, end, damage_of(manifests, end))
        files = self._index_files(settings, log)
        turns = files[0].turns if files else plan_turns(self._location, (), settings.layout)
        self._add(runner.run(files, check_index_object, PROOF_SCHEMA))
        rows = [*(WantedRows(task, turns) for task in tasks), *files]
        writing = CompareWriting(self._location, self._staging, settings, log, turns)
        table = runner.exchange(rows, emit_both, ROW_SCHEMA, writing.write, COMPARED_SCHEMA)
        for content in table.column("found"):
            self.differences += msgspec.msgpack.decode(content.as_py(), type=list[Difference])
        self._compare_rest(runner, set(table.column("target").to_pylist()), settings, log)
        entries, refused, items = (
            int(np.sum(table.column(name).to_numpy())) for name in ("entries", "refused", "items")
        )
        return entries, refused, items

    def _index_files(self, settings: RebuildSettings, log: LogFacts) -> list[IndexObject]:
        if not settings.has_index:
            return []
        objects = ObjectStore(self._location)
        entries = [
            one
            for one in objects.files.list(f"{objects.root}/{INDEX_DIRECTORY}")
            if is_index_file_name(one.name) and not one.is_directory
        ]
        layout = settings.layout
        turns = plan_turns(self._location, entries, layout)
        return [
            IndexObject(
                self._location, one.name, one.path, one.size, layout, log.begin, turns,
                self._staging,
            )
            for one in entries
        ]  # fmt: skip

    def _compare_rest(
        self, runner: Runner, targets: set[str], settings: RebuildSettings, log: LogFacts
    ) -> None:
        """Compare the queues that are there although no record calls for them."""
        objects = ObjectStore(self._location)
        sizes: dict[str, int] = {}
        for path, size in objects.sizes(f"{objects.root}/{CONSUME_QUEUE_DIRECTORY}").items():
            topic, _, rest = path.partition("/")
            queue, mark, _ = rest.partition("/")
            name = f"{topic}/{queue}"
            if mark and f"{QUEUE_TARGET}{name}" not in targets:
                sizes[name] = sizes.get(name, 0) + size
        old = joined(self._location, CONSUME_QUEUE_DIRECTORY)
        tasks = [
            QueueProofTask(old, "", settings.queue_file_bytes, names, log)
            for names in grouped_queues(sizes)
        ]
        self._add(runner.run(tasks, compare_queues, PROOF_SCHEMA))

    def _add(self, table: Any) -> None:
        self.differences += [Difference(**row) for row in table.to_pylist()]


class CompareWriting(NamedTuple):
    """Compares the rows of whole targets with what is there.

    Attributes
    ----------
    staging
        Directory for what is compared; None: where temporary files go.
    """

    location: str
    staging: str | None
    settings: RebuildSettings
    log: LogFacts
    turns: Turns

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compare all targets among ordered rows; yield what was found."""
        with tempfile.TemporaryDirectory(prefix="rocketstore-prove-", dir=self.staging) as scratch:
            for target, pieces in targets_of(batches):
                if target.startswith(QUEUE_TARGET):
                    queue = target.removeprefix(QUEUE_TARGET)
                    entries, refused, found = self._compare_queue(Path(scratch), queue, pieces)
                    yield _compared(target, entries, refused, 0, found)
                else:
                    turn = int(target.removeprefix(INDEX_TARGET))
                    found, items = compare_turn(self.log, self.turns, turn, pieces)
                    yield _compared(target, 0, 0, items, found)

    def _compare_queue(
        self, scratch: Path, queue: str, pieces: Iterator[tuple[Any, ...]]
    ) -> tuple[int, int, list[Difference]]:
        new = scratch / CONSUME_QUEUE_DIRECTORY
        new.mkdir()
        writing = FileWriting(str(scratch), str(new), "", self.settings)
        entries, refused = writing.write_queue(queue, pieces)
        old = joined(self.location, CONSUME_QUEUE_DIRECTORY)
        file_bytes = self.settings.queue_file_bytes
        task = QueueProofTask(old, str(new), file_bytes, (queue,), self.log)
        found = queue_differences(task, queue)
        shutil.rmtree(new)
        return entries, refused, found


def _compared(
    target: str, entries: int, refused: int, items: int, found: Sequence[Difference]
) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - only where rows are made

    names = [column.split()[0] for column in COMPARED_SCHEMA.split(", ")]
    counts = [pa.array([count], pa.int64()) for count in (entries, refused, items)]
    content = pa.array([msgspec.msgpack.encode(list(found))], pa.binary())
    return pa.RecordBatch.from_arrays([pa.array([target]), *counts, content], names=names)
