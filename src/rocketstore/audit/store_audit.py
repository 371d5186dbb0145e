"""One full pass over a store: log, queues and index against each other, beside a writer or not.

Verify reports what the pass found; repair plans from it, and runs it again to report what is left.

Law: nothing is written, mapped or locked; files are read with ``pread``, so that a writer may go
on. Only the log is authoritative: queues and index are compared with it, never the other way.
Cost: the log twice (once with checksums), a window of some megabytes of it and of a queue in memory
at a time, and the positions and hashes of all index items.
"""

from __future__ import annotations

import functools
import operator
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from errno import EIO, ENOENT
from typing import TYPE_CHECKING

import numpy as np

from rocketstore.at_once import spread
from rocketstore.config import (
    StoreConfig,
    StoreSizes,
    commit_log_directories,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.config.files import observed_in
from rocketstore.format.file_name import CONSUME_QUEUE_EXT_DIRECTORY, is_directory_name
from rocketstore.format.index_file import FIRST_ITEM, IndexLayout
from rocketstore.locks import Lock
from rocketstore.rules import runs
from rocketstore.rules.batch_entries import entries_called_for
from rocketstore.rules.expectation import delay_array, expected_entries, expected_items
from rocketstore.rules.findings import Finding, LastWriter, StoreCounts, finding
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.rules.log_rules import Chain, LogView, Stretch, log_findings
from rocketstore.rules.queue_kinds import QueueKinds, queue_kinds
from rocketstore.rules.queue_numbers import QueueNumbers
from rocketstore.scan.batch_search import stored_entries
from rocketstore.scan.extension_units import UnitReader
from rocketstore.storage.checkpoint import known_log_end
from rocketstore.storage.files.disk import BadSectors, Disk, hint_of, read_at
from rocketstore.storage.files.log_directories import dledger_directories, refuse_dledger
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles, ReadLogFile, file_lengths
from rocketstore.storage.index.pread_index import listed_index_files
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.reading.pread_log import PreadLog, refuse_no_store
from rocketstore.storage.recovery.log_survey import chain_records, survey_log
from rocketstore.units import QueueKey
from rocketstore.verification import index_rules, queue_rules
from rocketstore.verification.batch_rules import batch_queue_findings
from rocketstore.verification.file_rules import log_file_findings, queue_file_findings, raft_finding
from rocketstore.verification.index_rules import IndexFacts, Lacking
from rocketstore.verification.queue_findings import extension_findings, queue_findings
from rocketstore.verification.queue_rules import QueuePart, QueueView, entries_at

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.native.row import ByteArray
    from rocketstore.rules.expectation import ExpectedEntries, ExpectedItems
    from rocketstore.rules.files import FileFinding
    from rocketstore.rules.runs import Runs
    from rocketstore.rules.table_files import Content
    from rocketstore.scan.batch_search import BatchEntryArray


def find_layout(root: Path, config: StoreConfig) -> tuple[StoreLayout, StoreSizes]:
    """Find a store's directories and learn the sizes of its files: set, or the commonest."""
    layout = StoreLayout(root, *commit_log_directories(config, root))
    refuse_dledger(layout)
    refuse_no_store(layout)
    PreadLog(layout, OpenFiles()).refuse_absent()
    top = layout.consume_queue
    queues = [top / str(key) for key in listed_queues(top)]
    index = listed_index_files(layout.index, []).items()
    log = file_lengths(layout.log_directories)
    return layout, resolve_sizes(config, observed_in(config, log, file_lengths(queues), index))


def find_kinds(layout: StoreLayout, content_of: Callable[[str], Content]) -> QueueKinds:
    """Return which topics are batch topics, and which have queues of the other kind."""
    roots = (layout.consume_queue, layout.batch_consume_queue)
    return queue_kinds(content_of, *map(listed_queues, roots))


@dataclass(slots=True)
class StoreAudit:
    """What a pass found; `log_findings` are the faults of files of the log.

    `log` ends where the comparison of queues ended: at its last intact record, unless the caller
    chose another end. `met` sums up the records before it; `batches` are the queues of batch
    topics.
    """

    layout: StoreLayout
    sizes: StoreSizes
    kinds: QueueKinds
    log_files: list[ReadLogFile]
    log_findings: list[FileFinding[Path]]
    log: LogView
    met: Chain
    queues: list[AuditedQueue]
    batches: StoredQueues
    index_findings: list[Finding]
    unreadable: dict[Path, BadSectors]
    writer: LastWriter
    counts: StoreCounts

    @property
    def entry_count(self) -> int:
        """Places of all queues that are in use."""
        return sum(queue.end - queue.first_offset for queue in self.queues)

    def file_position(self, physical_offset: int) -> tuple[str, int]:
        """Return file and position of a physical offset, ("", offset) where no file is."""
        for file in self.log_files:
            if file.holds(physical_offset):
                return self.below_root(file.path), physical_offset - file.base
        return "", physical_offset

    def below_root(self, path: object) -> str:
        """Return a path relative to the store's root where it lies there."""
        return str(path).removeprefix(f"{self.layout.root}/")

    def findings(self) -> Iterator[Finding]:
        """Yield what was found in log, queues, index and batch queues, in this order."""
        last = self.log_files[-1].base if self.log_files else None
        end = 0 if self.log_files else known_log_end(self.layout.root)
        entries = self.entry_count
        yield from log_file_findings(
            self.log_findings, last, entries, self.below_root, _last_bytes, end
        )
        yield from log_findings(self.log, self.file_position, is_live=self.writer.is_live)
        for file in self.log_files:
            yield from self._unreadable("log-damage", file.path, file.bad, file.base)
        for path, bad in self.unreadable.items():
            is_index = path.is_relative_to(self.layout.index)
            yield from self._unreadable("index-wrong" if is_index else "queue-wrong", path, bad)
        for raft in dledger_directories(self.layout.root):
            yield raft_finding(self.below_root(raft))
        yield from self.kinds.findings
        for queue in self.queues:
            yield from queue_file_findings(queue.key, queue.files.findings, self.below_root)
            yield from map(self.kinds.judged, queue_findings(queue, self.writer))
        yield from extension_findings(
            {queue: list(files.values()) for queue, files in self.extensions().items()}
        )
        yield from self.index_findings
        yield from self.batches.findings(self.log.start, self.writer)

    def _unreadable(
        self, kind: str, path: Path, bad: BadSectors, base: int | None = None
    ) -> Iterator[Finding]:
        for start, stop in runs.pairs(runs.joined([bad.ranges])):
            yield finding(
                kind, self.below_root(path), "unreadable: zeros are taken for it",
                offset=start, size=stop - start, action=hint_of(OSError(EIO, "")),
                physical_offset=None if base is None else base + start,
            )  # fmt: skip

    def extensions(self) -> dict[QueueKey, dict[Path, int]]:
        """Return the files of queue extensions with their lengths."""
        found: dict[QueueKey, dict[Path, int]] = {}
        for key in listed_queues(top := self.layout.consume_queue_ext):
            files = (path for path in (top / str(key)).iterdir() if path.is_file())
            if held := {path: path.stat().st_size for path in files}:
                found[key] = held
        return found


def _last_bytes(path: Path, count: int) -> bytes:
    with Disk().opened(path, writable=False) as descriptor:
        size = os.fstat(descriptor).st_size
        return read_at(descriptor, path, max(0, size - count), count)


def audit_store(  # noqa: PLR0913 - where, how long, by which settings; the rest by name
    layout: StoreLayout, sizes: StoreSizes, kinds: QueueKinds, config: StoreConfig, *, now_ms: int,
    is_live: bool = False, killed: Checkpoint | None = None, spares_unreadable: bool = False,
    ended: Callable[[LogView, Sequence[ReadLogFile]], LogView] | None = None,
    advance: Callable[[int], None] | None = None,
) -> StoreAudit:  # fmt: skip
    """Survey the log, then compare queues and index with its records.

    `is_live`: a writer works on the store, so records that it has not dispatched yet are no fault;
    nor are those that one which was `killed`, and left this checkpoint, lets an opening enter. What
    the disk cannot read is an error, as a repair would take it for lost; with `spares_unreadable`
    it is a finding. `ended` may end the log before its last intact record. `advance` is called with
    how many bytes of the log were surveyed.
    """
    size, open_files = sizes.commit_log_file_bytes, OpenFiles(spares=spares_unreadable)
    batches = StoredQueues(layout, kinds.batch_topics, open_files)
    log = PreadFiles(layout.log_directories, file_size=size)
    files = [ReadLogFile(file, size, spared=spares_unreadable) for file in log.files]
    queue_size = sizes.consume_queue_file_bytes
    queues = QueueAudit(layout.consume_queue, queue_size, kinds.batch_topics, open_files)
    index = IndexAudit(layout.index, sizes.index_layout, open_files, is_live=is_live)
    met = Chain(0, 0)
    # Kernels and reads let other threads run meanwhile.
    each = functools.partial(spread, most=len(os.sched_getaffinity(0)))
    survey = survey_log(
        files, now_ms=now_ms, data_stop=ReadLogFile.data_stop, advance=advance, spread=each
    )
    if ended is not None:
        survey = ended(survey, files)
    spans = [(one.start, min(one.stop, survey.end)) for one in survey.kept if one.record_count]
    held = [(file, [span for span in spans if file.holds(span[0])]) for file in files]
    compare = functools.partial(_compared, now_ms + CLOCK_TOLERANCE_MS, queues, index, config)
    for stretch, parts, called in each(compare, held):
        for chain in stretch.chains:
            met.extend(chain)
        for queue, part in parts.items():
            queue.part = queue_rules.added(queue.part, part)
        for key, content in called.items():
            batches.called[key] += content
    audited = queues.concluded(survey)
    writer = LastWriter(is_live)
    if killed is not None:
        reached = max((queue.dispatched_to for queue in audited), default=-1)
        latest_ms, has_index = now_ms + CLOCK_TOLERANCE_MS, config.message_index_enable
        writer = survey.writer_killed(reached, files, killed, latest_ms, has_index=has_index)
    of_index = index.finish(survey, writer) if config.message_index_enable else []
    counts = survey.counts(
        [met], queue_count=len(audited), index_item_count=index.item_count,
        entry_count=sum(queue.entry_count for queue in audited),
        hole_count=sum(queue.hole_count for queue in audited),
    )  # fmt: skip
    return StoreAudit(
        layout, sizes, kinds, files, log.findings, survey, met, audited, batches, of_index,
        open_files.bad, writer, counts,
    )  # fmt: skip


def _compared(
    latest_ms: int, queues: QueueAudit, index: IndexAudit, config: StoreConfig,
    held: tuple[ReadLogFile, Sequence[tuple[int, int]]],
) -> tuple[Stretch, dict[AuditedQueue, QueuePart], dict[QueueKey, bytearray]]:  # fmt: skip
    """Compare records in spans of a file with queues and index; gather entries of batch queues."""
    file, spans = held
    met = Stretch(file.base, file.base)
    parts: dict[AuditedQueue, QueuePart] = {}
    called = defaultdict[QueueKey, bytearray](bytearray)
    numbers = QueueNumbers(queues.batch_topics)
    delays = delay_array(parse_delay_levels(config.message_delay_level))
    for start, stop in spans:
        for columns in chain_records(file, start, stop) if start < stop else ():
            met.take_records(columns, latest_ms)
            expected = expected_entries(columns, numbers, delays)
            for queue, part in queues.compare(expected, numbers.keys()):
                parts[queue] = queue_rules.added(parts.get(queue), part)
            for key, entry in entries_called_for(columns, numbers):
                called[key] += entry
            if config.message_index_enable:
                first = int(columns.physical_offset[0])
                past = int(columns.physical_offset[-1] + columns.size[-1])
                index.compare(expected_items(columns), first, past)
    return met, parts, called


class AuditedQueue(QueueView):
    """One queue with its files; `units` reads its tags where they stand in its extension."""

    def __init__(self, key: QueueKey, files: PreadFiles, units: UnitReader) -> None:
        self.files = files
        self._units = units
        self.part: QueuePart | None = None
        self.called: list[Runs] = []
        super().__init__(key, files, files.file_size, operator.methodcaller("data_stop"))

    @property
    def extra(self) -> Runs:
        """Queue offsets that records call for which name it as an extra queue."""
        return runs.joined(self.called)

    def compare(self, expected: ExpectedEntries) -> QueuePart:
        """Compare what records call for with what stands there; in any thread."""
        if expected.is_extra.any():
            self.called.append(_extra_places(expected))
        found = entries_at(expected.queue_offset, self._read)
        return queue_rules.compare(expected, found, self._units.tags_codes)


def _extra_places(expected: ExpectedEntries) -> Runs:
    return runs.runs_of(expected.queue_offset[expected.is_extra])


class QueueAudit:
    """All queues of a store, in its directory ``consumequeue``, where no batch topic has one."""

    def __init__(
        self, directory: Path, file_size: int, batch_topics: frozenset[str] = frozenset(),
        open_files: OpenFiles | None = None,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._file_size = file_size
        self._adding = Lock()
        self.batch_topics = batch_topics
        self.open_files = open_files or OpenFiles()
        keys = (key for key in listed_queues(directory) if key.topic not in batch_topics)
        self.queues = {key: self._queue(key) for key in keys}
        self._called_early: defaultdict[QueueKey, list[Runs]] = defaultdict(list)

    def _queue(self, key: QueueKey) -> AuditedQueue:
        # A topic that is not a directory's name must not lead out of this one.
        is_name = is_directory_name(key.topic)
        directories = (self._directory / str(key),) if is_name else ()
        files = PreadFiles(directories, open_files=self.open_files, file_size=self._file_size)
        extension = self._directory.with_name(CONSUME_QUEUE_EXT_DIRECTORY) / str(key)
        units = functools.partial(PreadFiles, (extension,), open_files=self.open_files)
        return AuditedQueue(key, files, UnitReader(units))

    def compare(
        self, expected: ExpectedEntries, keys: Sequence[QueueKey]
    ) -> Iterator[tuple[AuditedQueue, QueuePart]]:
        """Compare a batch of expected entries with what stands in the queues; in any thread."""
        for number, batch in expected.by_queue():
            key = keys[number]
            with self._adding:
                # 4.9 writes extra queues only when that is switched on.
                if key not in self.queues and not batch.is_extra.all():
                    self.queues[key] = self._queue(key)
                queue = self.queues.get(key)
                if queue is None:  # a later record may have it as its own
                    self._called_early[key].append(_extra_places(batch))
            if queue is not None:
                yield queue, queue.compare(batch)

    def concluded(self, log: LogView) -> list[AuditedQueue]:
        """Return the queues in order, after all records were compared."""
        audited = [queue for _, queue in sorted(self.queues.items())]
        for queue in audited:
            queue.called += self._called_early[queue.key]
            queue.conclude([] if queue.part is None else [queue.part], log.bounds())
        self.open_files.close()
        return audited


class StoredQueues:
    """The batch queues of a store as they are read, here and now.

    A live writer adds records before their entries: the log is read later, and the entries that its
    records call for are added to `called`. Cost: 92 bytes of memory per record of a batch topic.

    How derived: BatchConsumeQueue of 5.3.1 (spec F9): an entry per record, in the log's order.
    """

    def __init__(
        self, layout: StoreLayout, batch_topics: frozenset[str], open_files: OpenFiles
    ) -> None:
        self.entries: dict[QueueKey, BatchEntryArray] = {}
        self.called = defaultdict[QueueKey, bytearray](bytearray)
        self._file_findings: list[Finding] = []
        listed = listed_queues(layout.batch_consume_queue)
        for key in (one for one in listed if one.topic in batch_topics):
            directory = layout.batch_consume_queue / str(key)
            files = PreadFiles((directory,), open_files=open_files)
            self._file_findings += queue_file_findings(
                key, files.findings, lambda path: str(path.relative_to(layout.root))
            )
            data = b"".join(files.read(one.base, one.size) or b"" for one in files.files)
            self.entries[key] = stored_entries(data)

    def findings(self, log_min: int, writer: LastWriter) -> Iterator[Finding]:
        """Yield what is wrong with them; records before `log_min` have expired."""
        yield from self._file_findings
        none = stored_entries(b"")
        for key in sorted({*self.entries, *self.called}):
            stored, due = self.entries.get(key, none), stored_entries(self.called[key])
            yield from batch_queue_findings(key, stored, due, log_min, writer)


class IndexAudit:
    """All index files of a store; while it `is_live` a writer may be adding items."""

    def __init__(
        self, directory: Path, layout: IndexLayout, open_files: OpenFiles, *, is_live: bool
    ) -> None:
        self._layout = layout
        passed_over: list[FileFinding[Path]] = []
        listed = listed_index_files(directory, passed_over)
        reason = "no index file's name; it is passed over"
        self._findings = [
            finding("index-extra", f"index/{one.path.name}", reason) for one in passed_over
        ]
        self._files: list[IndexFacts] = []
        offsets, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

        def take(items: npt.NDArray[np.void]) -> None:
            offsets.append(items["physical_offset"].astype(np.int64))
            hashes.append(items["key_hash"].astype(np.int64))

        for path, length in listed.items():
            name = f"index/{path.name}"
            if length != layout.size_bytes:
                reason = f"length: expected {layout.size_bytes} bytes, found {length}"
                self._findings.append(finding("index-length", name, reason))
                continue
            read = functools.partial(_read_at, open_files, path)
            self._files.append(
                index_rules.check_index_file(name, read, layout, is_live=is_live, take=take)
            )
        # Of all files: where they are not in one order, lacking and stray items are not looked for.
        self._offsets, self._hashes = np.concatenate(offsets), np.concatenate(hashes)
        self.item_count = self._offsets.size
        self._matched = np.zeros(self.item_count, dtype=np.bool_)
        self._lacking: list[Lacking] = []
        self._times: dict[int, int | None] = {
            edge: None for facts in self._files for edge in (facts.first, facts.last)
        }

    def compare(self, expected: ExpectedItems, start: int, stop: int) -> None:
        """Compare the keys of the records from `start` up to `stop` with the items there.

        In any thread: no two compare the same entry.
        """
        offsets, hashes, times = expected
        for edge in [one for one in self._times if start <= one < stop]:
            at = int(np.searchsorted(offsets, edge))
            if at < len(offsets) and offsets[at] == edge:
                self._times[edge] = int(times[at])
        begin, end = np.searchsorted(self._offsets, (start, stop)).tolist()
        found = self._offsets[begin:end], self._hashes[begin:end]
        lacking, stray = index_rules.compare_items((offsets, hashes), found)
        self._matched[begin:end] = True
        self._matched[begin + stray] = False
        if lacking.size:
            self._lacking.append(Lacking(lacking.size, int(offsets[lacking[0]])))

    def finish(self, log: LogView, writer: LastWriter) -> list[Finding]:
        """Judge what no record called for, after all records were compared."""
        first = min((one.first for one in self._lacking), default=-1)
        lacking = Lacking(sum(one.key_count for one in self._lacking), first)
        stray, stop = [], 0
        for facts in self._files:
            start, stop = stop, stop + facts.item_count
            offsets = self._offsets[start:stop]
            rows = np.flatnonzero(~self._matched[start:stop] & (offsets >= log.start))
            is_stale = offsets[rows] >= log.end
            for late, chosen in ((False, rows[~is_stale]), (True, rows[is_stale])):
                first = FIRST_ITEM + int(chosen[0]) if chosen.size else 0
                stray.append(index_rules.StrayCount(facts.file, late, chosen.size, first))
        return self._findings + index_rules.index_findings(
            self._files, self._layout, lacking, stray, self._times.get, writer
        )


def _read_at(open_files: OpenFiles, path: Path, position: int, size: int) -> ByteArray:
    content = open_files.read(path, position, size)
    if content is None:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))  # verify looks again
    return np.frombuffer(content, np.uint8)
