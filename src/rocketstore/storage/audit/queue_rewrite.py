"""Write a repair's entries into ConsumeQueue files, place by place.

Law: an entry goes to its own place or nowhere; files are made whole (with all blocks) before a byte
is written, never shrunk, and synced before the repair says it is done. Doing it twice writes the
same bytes twice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER_BYTES, KEPT_PLACE_BYTES
from rocketstore.storage.files.new_file import make_file
from rocketstore.verification import runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.storage.audit.repair_plan import QueuePlan
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.recovery.evidence import Evidence
    from rocketstore.units import QueueKey
    from rocketstore.verification.expectation import ExpectedEntries

    Int64Array: TypeAlias = npt.NDArray[np.int64]


class QueueRewrite:
    """Applies the queue plans of a repair.

    Parameters
    ----------
    plans
        What each queue needs.
    directory
        ``consumequeue`` of the store.
    file_size
        Bytes of a queue file.
    evidence
        Keeps copies of what is written over.
    """

    def __init__(
        self,
        plans: Sequence[QueuePlan],
        directory: Path,
        file_size: int,
        *,
        disk: Disk,
        evidence: Evidence,
    ) -> None:
        self._plans = {plan.key: plan for plan in plans}
        self._directory = directory
        self._file_size = file_size
        self._disk = disk
        self._evidence = evidence
        self._wanted = {plan.key: plan.write for plan in plans}
        self._written = {plan.key: runs.no_runs() for plan in plans}
        self._open: dict[Path, int] = {}

    def keep_evidence(self) -> None:
        """Copy every file that is written over, once, before anything changes."""
        for plan in self._plans.values():
            for path in sorted(self._queue_directory(plan.key).glob("*")):
                base = parse_file_name(path.name)
                if base is not None and path.is_file() and self._touches(plan, base):
                    self._evidence.copy_range(path, 0, path.stat().st_size)

    def _touches(self, plan: QueuePlan, base: int) -> bool:
        first, behind = base // ENTRY_SIZE_BYTES, (base + self._file_size) // ENTRY_SIZE_BYTES
        if plan.cut_from is not None and plan.cut_from < behind:
            return True
        kept = [] if plan.keep is None else [plan.keep]
        touched = plan.fill + plan.write + kept
        return any(start < behind and stop > first for start, stop in touched)

    # --- writing --------------------------------------------------------------------------------

    def fill_and_cut(self) -> None:
        """Put the fillers, and end the queues that end too late."""
        for plan in self._plans.values():
            if plan.cut_from is not None:
                self._cut(plan.key, plan.cut_from)
            if plan.keep is not None:
                start, stop = plan.keep
                self._write(plan.key, start, KEPT_PLACE_BYTES * (stop - start))
            for start, stop in plan.fill:
                self._write(plan.key, start, FILLER_BYTES * (stop - start))

    def take(self, expected: ExpectedEntries, keys: Sequence[QueueKey]) -> None:
        """Write those entries of a batch of records that their queues lack.

        Of two records that claim one place the earlier gets it, as if the queue were dispatched
        anew.
        """
        for number, batch in expected.by_queue():
            key = keys[number]
            if key not in self._wanted:
                continue
            own = np.flatnonzero(~batch.is_extra)
            breaks = np.flatnonzero(np.diff(batch.queue_offset[own]) != 1) + 1
            for rows in np.split(own, breaks):
                if rows.size:
                    self._write_run(key, batch, rows)

    def _write_run(self, key: QueueKey, batch: ExpectedEntries, rows: Int64Array) -> None:
        """Write entries of neighbouring places, as far as they are wanted and not written yet."""
        first = int(batch.queue_offset[rows[0]])
        stop = first + len(rows)
        for begin, end in self._wanted[key]:
            low, high = max(begin, first), min(end, stop)
            if low >= high:
                continue
            for start, behind in runs.pairs(runs.gaps(self._written[key], low, high)):
                content = batch.entries[rows[start - first : behind - first]].tobytes()
                self._write(key, start, content)
            self._written[key] = runs.joined([self._written[key], [(low, high)]])

    def finish(self) -> None:
        """Make everything durable."""
        for path, descriptor in self._open.items():
            self._disk.fdatasync(descriptor, path)
            os.close(descriptor)
        self._open.clear()

    def _queue_directory(self, key: QueueKey) -> Path:
        return self._directory / key.topic / str(key.queue_id)

    def _write(self, key: QueueKey, queue_offset: int, content: bytes) -> None:
        at = queue_offset * ENTRY_SIZE_BYTES
        while content:
            base = at - at % self._file_size
            room = base + self._file_size - at
            path = self._queue_directory(key) / file_name(base)
            descriptor = self._descriptor(path, at - base)
            self._disk.write_at(descriptor, path, at - base, content[:room])
            at, content = at + room, content[room:]

    def _descriptor(self, path: Path, first_position: int) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            return descriptor
        if len(self._open) >= _OPEN_FILES:
            self.finish()
        is_new = not path.exists()
        if is_new:
            self._disk.make_directory(path.parent)
            descriptor, _ = make_file(path, self._file_size, disk=self._disk, sync=False)
        else:
            descriptor = self._disk.open_file(path, writable=True)
            self._disk.allocate(descriptor, path, self._file_size)
        if is_new:
            # Spec F6: a queue's first file is filled up to its first entry; a later one has none
            # missing in front, because its places are written in order.
            is_first = not any(p.name < path.name for p in path.parent.glob("*") if p.is_file())
            if is_first and first_position:
                content = FILLER_BYTES * (first_position // ENTRY_SIZE_BYTES)
                self._disk.write_at(descriptor, path, 0, content)
            self._disk.fdatasync(descriptor, path)
            self._disk.fsync_directory(path.parent)
        self._open[path] = descriptor
        return descriptor

    def _cut(self, key: QueueKey, queue_offset: int) -> None:
        at = queue_offset * ENTRY_SIZE_BYTES
        directory = self._queue_directory(key)
        for path in sorted(directory.glob("*"), reverse=True):
            base = parse_file_name(path.name)
            if base is None or not path.is_file():
                continue
            if base >= at and base > 0:
                self._disk.unlink(path)
                self._disk.fsync_directory(directory)
            elif base <= at < base + self._file_size:
                descriptor = self._disk.open_file(path, writable=True)
                try:
                    self._disk.zero_range(descriptor, path, at - base, self._file_size)
                    self._disk.fdatasync(descriptor, path)
                finally:
                    os.close(descriptor)


_OPEN_FILES = 256
