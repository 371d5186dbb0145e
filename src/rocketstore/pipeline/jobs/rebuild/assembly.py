"""From the manifests of all parts to the tasks that write queues and index.

A queue is even when each record's queue offset is the one before plus one, over all parts: then
every entry's place is known without looking at it. All others are uneven and decided by one task
each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.rebuild.index_files import divide_items, index_names
from rocketstore.pipeline.jobs.rebuild.parts import PartPlace
from rocketstore.pipeline.jobs.rebuild.queue_files import QueueFiles
from rocketstore.pipeline.jobs.rebuild.tasks import (
    IndexFileTask,
    PlaceTask,
    QueueRun,
    RunsOfPart,
    UnevenQueue,
)
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.jobs.rebuild.extraction import QueueName
    from rocketstore.pipeline.jobs.rebuild.parts import PartManifest, QueuePart
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings

PLACE_TASK_BYTES: Final = 64 * MiB
"""Entries and items of one task: some GB of log, since a task costs time before it does
anything."""

_ITEM_BYTES: Final = 20


class _Piece(NamedTuple):
    part: PartPlace
    number: int
    queue: QueuePart


class Assembly:
    """Where everything goes.

    Parameters
    ----------
    manifests
        Of all parts, in the order of the log.
    queues_directory, index_directory
        What is being made.
    """

    def __init__(
        self,
        manifests: Sequence[PartManifest],
        settings: RebuildSettings,
        *,
        queues_directory: str,
        index_directory: str,
    ) -> None:
        self._manifests = manifests
        self._settings = settings
        self._queues_directory = queues_directory
        self._index_directory = index_directory
        self._parts = [PartPlace(one.path, one.entry_count, one.item_count) for one in manifests]
        self.queues: dict[QueueName, list[_Piece]] = {}
        for number, manifest in enumerate(manifests):
            for queue in manifest.queues:
                piece = _Piece(self._parts[number], number, queue)
                self.queues.setdefault(queue.name, []).append(piece)

    def begin_even_queues(self) -> None:
        """Make the first file of each even queue, filled up to its first entry (spec F6)."""
        files = QueueFiles(self._queues_directory, self._settings.queue_file_bytes)
        for name, pieces in self.queues.items():
            if _is_even(pieces):
                first = pieces[0].queue.first_offset
                files.fill(name.directory, first - first % self._settings.entries_per_file, first)
        files.close()

    def place_tasks(self) -> list[PlaceTask]:
        """Return the tasks that write everything."""
        runs: dict[int, list[QueueRun]] = {}
        uneven: list[UnevenQueue] = []
        for name, pieces in self.queues.items():
            if _is_even(pieces):
                for _, number, one in pieces:
                    run = QueueRun(name.directory, one.start, one.count, one.first_offset)
                    runs.setdefault(number, []).append(run)
            else:
                places = tuple((p.part, p.queue.start, p.queue.count) for p in pieces)
                uneven.append(UnevenQueue(name.directory, places))
        tasks = _Packing(self._queues_directory, self._settings.queue_file_bytes)
        for number, found in sorted(runs.items()):
            one_part = RunsOfPart(self._parts[number], tuple(sorted(found, key=_start_of)))
            tasks.add(sum(run.row_count for run in found) * ENTRY_SIZE_BYTES, runs=one_part)
        for queue in uneven:
            size = sum(count for _, _, count in queue.pieces) * 2 * ENTRY_SIZE_BYTES
            tasks.add(size, uneven=queue)
        for file in self._index_tasks():
            tasks.add(sum(count for _, _, count in file.pieces) * _ITEM_BYTES, index_file=file)
        return tasks.packed()

    def _index_tasks(self) -> list[IndexFileTask]:
        counts = [one.item_count for one in self._manifests]
        files = divide_items(counts, self._settings.items_per_file)
        firsts = []
        for ranges in files:
            items = self._parts[ranges[0].part].items(ranges[0].start, 1)
            firsts.append(int(items.store_timestamps[0]))
        return [
            IndexFileTask(
                f"{self._index_directory}/{name}",
                self._settings.layout,
                tuple((self._parts[one.part], one.start, one.item_count) for one in ranges),
            )
            for name, ranges in zip(index_names(firsts), files, strict=True)
        ]


def _start_of(run: QueueRun) -> int:
    return run.start


def _is_even(pieces: Sequence[_Piece]) -> bool:
    following = pieces[0].queue.first_offset
    for _, _, queue in pieces:
        if not queue.is_run or queue.first_offset != following:
            return False
        following += queue.count
    return True


class _Packing:
    """Packs pieces of work into tasks of about `PLACE_TASK_BYTES`."""

    def __init__(self, queues_directory: str, queue_file_bytes: int) -> None:
        self._empty = PlaceTask(queues_directory, queue_file_bytes, (), (), ())
        self._tasks: list[PlaceTask] = []
        self._size = 0

    def add(
        self,
        size_bytes: int,
        *,
        runs: RunsOfPart | None = None,
        uneven: UnevenQueue | None = None,
        index_file: IndexFileTask | None = None,
    ) -> None:
        """Add one piece to the task that is being packed, or to a new one."""
        if not self._tasks or self._size + size_bytes > PLACE_TASK_BYTES:
            self._tasks.append(self._empty)
            self._size = 0
        self._size += size_bytes
        task = self._tasks[-1]
        self._tasks[-1] = task._replace(
            runs=task.runs + ((runs,) if runs else ()),
            uneven=task.uneven + ((uneven,) if uneven else ()),
            index_files=task.index_files + ((index_file,) if index_file else ()),
        )

    def packed(self) -> list[PlaceTask]:
        """Return the tasks."""
        return self._tasks
