"""Recovery: what a store does with its files before it takes the first message.

After a clean stop the end of the log is compared with the queues; after a crash the log is checked
and dispatched again from a safe file on (`crash_start`). The policy ``compatible`` ends where 4.9.3
ends; ``salvage`` keeps every intact record.

Law: recovery only ever cuts after the last record that it keeps, and only after a copy. Doing it
again changes nothing, so it may be interrupted anywhere.

How derived: DefaultMessageStore.recover, CommitLog.recoverNormally and recoverAbnormally of 4.9.3
(spec B16), without K-R1 to K-R10 and K-C2, K-I1, K-I8, K-S1. See docs/how-it-works/recovery.md.
Cost: one pass over the part that is not known to be safe, two where records follow damage (0015).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketstore.config import RecoveryPolicy, StoreConfig, StoreSizes, parse_delay_levels
from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.rules.extra_queues import has_light_queues
from rocketstore.rules.files import FileFinding, lost_log
from rocketstore.rules.findings import Finding, Severity, offsets_text
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.rules.log_rules import LogView, log_findings
from rocketstore.scan import kernels
from rocketstore.storage.checkpoint import promise_nothing
from rocketstore.storage.dispatch.dispatcher import Dispatcher, SteppedOver
from rocketstore.storage.files.mapped_file import MappedFile, MappedFiles
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.queues.queue_extension import QueueExtensions
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.storage.recovery.evidence import Evidence, cut_log, relative_name
from rocketstore.storage.recovery.log_survey import crash_start, store_time_of, survey_log
from rocketstore.storage.recovery.lost_files import LostFiles
from rocketstore.storage.recovery.queue_recovery import QueueRecovery
from rocketstore.storage.recovery.recovery_compatible import compatible_end, compatible_queue_end
from rocketstore.units import ByteRange, MiB, QueueKey, counted

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.format.known_ends import KnownEnds
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.queues.topic_kinds import TopicKinds

_log: Final = get_logger(__name__)

_LACKING: Final = "queues lack entries of records that the checkpoint calls safe"

CLEAN_TAIL_BYTES: Final = 8 * MiB
"""How much of the log's end is compared with the queues after a clean stop: a millisecond's work.

An orderly end has put everything on the disk, and `known-ends` tells how much there was of it.
"""


class LoadedStore:
    """The files of a store as they were loaded, before anything is written.

    `drop_later` gets a call that releases each part, before the part has any file; `problems` are
    faults that were passed over or tolerated. Records at `forged` get no entry.
    """

    def __init__(  # noqa: PLR0913 - by name, what differs between an opening and a repair
        self, layout: StoreLayout, sizes: StoreSizes, config: StoreConfig, *, disk: Disk,
        clock: Callable[[], int], drop_later: Callable[[Callable[[], None]], object],
        kinds: TopicKinds, after_crash: bool = True, forged: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.layout, self.config, self.disk, self.clock = layout, config, disk, clock
        self.log_files = log = MappedFileQueue(
            layout.commit_log_directories,
            sizes.commit_log_file_bytes,
            disk=disk,
            read_only_directories=layout.read_only_directories,
            mapped_files=MappedFiles(),
        )
        extensions = None
        if config.enable_consume_queue_ext:
            place = layout.consume_queue_ext
            extensions = QueueExtensions(place, config, disk, self.newest_time_ms)
        self.queues = ConsumeQueueTable(
            layout.consume_queue,
            sizes.consume_queue_file_bytes,
            disk=disk,
            log_min_offset=lambda: log.min_offset,
            make_extension=extensions,
            kinds=kinds,
        )
        self.index = IndexService(
            layout.index,
            sizes.index_layout,
            disk=disk,
            clock=clock,
            is_enabled=config.message_index_enable,
        )
        for part in (self.log_files, self.queues, self.index):
            drop_later(part.drop)
        self.problems = list(self._load(after_crash=after_crash))
        self.dispatcher = Dispatcher(
            self.log_files, self.queues, self.index, readable_limit=self.readable_limit,
            delays_ms=parse_delay_levels(config.message_delay_level), lmq=has_light_queues(config),
            forged=forged, clock=clock,
        )  # fmt: skip

    def _load(self, *, after_crash: bool) -> Iterator[FileFinding[Path]]:
        yield from self.log_files.load()
        yield from self.queues.load(after_crash=after_crash)
        for kind in self.queues.kinds.on_disk():
            yield from kind.load(self.log_files, after_crash=after_crash)
        yield from self.index.load()

    def readable_limit(self) -> int:
        """Return up to where the dispatching thread may go; there is none before recovery."""
        return 0

    def newest_time_ms(self) -> int:
        """Return the time now, or the newest store time where that is later."""
        return self.clock()


class RecoveryReport(NamedTuple):
    """What recovery did, and where the store continues.

    Attributes
    ----------
    start, end
        Physical offsets: the log was checked from the first, and ends at the second; everything
        before is dispatched.
    last_store_timestamp_ms
        Of the last record that was looked at, never much later than now; 0 without records.
    evidence
        Directory below the root with copies of what was cut, None when nothing was.
    """

    policy: RecoveryPolicy
    was_clean: bool
    start: int
    end: int
    queue_offsets: dict[QueueKey, int]
    last_store_timestamp_ms: int
    findings: list[Finding]
    evidence: str | None


def recover(  # noqa: PLR0913 - what is loaded; by name, what is known besides
    parts: LoadedStore,
    *,
    clean: bool,
    now_ms: int,
    policy: RecoveryPolicy | None = None,
    keeps_places: bool = True,
    checkpoint: Checkpoint | None = None,
    known_ends: KnownEnds | None = None,
    evidence: Evidence | None = None,
) -> RecoveryReport:
    """Make log, queues and index of a loaded store agree.

    `clean`: the last writer ended in order (there was no ``abort``). A `policy` of None is that of
    the settings. `keeps_places`: under ``salvage`` numbers given out to records that are lost with
    the log's end stay given; 4.9 gives them again. Without a `checkpoint` nothing is promised. In a
    repair `evidence` keeps what is cut, and ``abort`` and checkpoint stay as the repair wrote them.
    Raises `StoreDamagedError` where the CommitLog has no file although queues have entries (K-R10),
    `StoreFullError` where there is no space for a copy of what has to be cut.
    """
    policy = policy or parts.config.recovery_policy
    is_compatible = policy is RecoveryPolicy.COMPATIBLE
    keeps_places = keeps_places and not is_compatible
    recovery = _Recovery(
        parts, clean, now_ms, keeps_places, checkpoint or Checkpoint(), known_ends, evidence
    )
    if not parts.log_files.files:
        entry_count = sum(parts.queues.next_offsets().values())
        refuse_lost_log(parts.layout.root, entry_count, known_ends)
        start = end = 0
    else:
        start, end = recovery.compatible() if is_compatible else recovery.salvage()
    if not clean:
        recovery.queues.distrust(start)
        for queue in parts.queues.all():
            if queue.extension is not None:
                queue.extension.settle(now_ms=now_ms)
    newest_ms = parts.dispatcher.last_store_timestamp_ms
    if newest_ms > now_ms + CLOCK_TOLERANCE_MS:
        newest_ms = now_ms  # a damaged header, whose time would stay
    recovery.settle_kinds(start, end)
    offsets, kept_in = parts.queues.next_offsets(), recovery.copies.directory
    found = recovery.findings
    report = RecoveryReport(policy, clean, start, end, offsets, newest_ms, found, kept_in)
    parts.dispatcher.start_at(end, last_store_timestamp_ms=newest_ms)
    _log.info(
        "store.recovered", policy=policy.value, was_clean=clean, start=start, end=end,
        findings=len(found), evidence=kept_in,
    )  # fmt: skip
    return report


def refuse_lost_log(root: Path, entry_count: int, known: KnownEnds | None) -> None:
    """Raise where queues have entries, or there was a log, and the log has no file."""
    known_end = 0 if known is None else known.log_end
    if entry_count or known_end > 0:
        more = f", and known-ends knows of a log up to {known_end}" if known_end > 0 else ""
        said = f": its queues have {counted(entry_count, 'entry', 'entries')}{more}"
        raise lost_log(root, StoreDamagedError, said)


@dataclass
class _Recovery:
    parts: LoadedStore
    clean: bool
    now_ms: int
    keeps_places: bool
    checkpoint: Checkpoint
    known_ends: KnownEnds | None
    evidence: Evidence | None

    def __post_init__(self) -> None:
        parts = self.parts
        self.findings: list[Finding] = []
        self._follows = parts.config.follows_master and self.evidence is None
        # A repair hands over its own, which has copies already.
        self.copies = self.evidence or Evidence(parts.layout, parts.disk, self.now_ms)
        self.queues = QueueRecovery(
            parts.log_files, parts.queues, self.copies, self.findings, self.now_ms
        )
        self._kept: dict[QueueKey, tuple[int, int]] = {}
        # Looked up before anything is mapped: pages read through a mapping look like data.
        self._data_stop = functools.cache(MappedFile.data_stop)
        known = parts.queues.max_physical_offset
        file = parts.log_files.find(known) if self.clean else None
        if file is not None and self._data_stop(file) > known - file.base + CLEAN_TAIL_BYTES:
            file.forget(known - file.base)  # zeros that openings or a backup brought into memory
            self._data_stop.cache_clear()
        data_stop = self._data_limit()
        self.lost = LostFiles(
            parts.log_files, parts.queues, parts.index, self.known_ends, self._promise_nothing,
            self.copies, self.findings, self.clean, data_stop,
        )  # fmt: skip

    def _promise_nothing(self) -> None:
        """Let an opening after an interruption check everything."""
        if self.evidence is None:
            promise_nothing(self.parts.layout, self.parts.disk)

    # --- salvage --------------------------------------------------------------------------------

    def salvage(self) -> tuple[int, int]:
        """Recover keeping every intact record; return where it began and where the log ends."""
        parts = self.parts
        start = self._take_lost_away(self._clean_start() if self.clean else self._crash_start())
        if self._follows:  # an earlier file that is missing comes from the master again
            pairs = pairwise(parts.log_files.files)
            start = min(
                [start, *(one.base for one, two in pairs if one.base + one.size < two.base)]
            )
        known = parts.queues.next_offsets()
        known_end = parts.queues.max_physical_offset
        end = self._settle(start)
        if self.clean and known_end > end:
            self._note_lost_end(end, f"queues knew records up to {known_end}")
        promised_ms = self.checkpoint.physic_ms
        if 0 < parts.dispatcher.last_store_timestamp_ms < promised_ms <= self.now_ms:
            self._note_lost_end(end, f"the checkpoint knew a record of {promised_ms} ms")
        # Cases in which the checkpoint could not promise: a Java broker's store, or deleted queues.
        begin = parts.log_files.min_offset
        if self.queues.foreign or (start > begin and self.queues.has_gap(known)):
            start = begin
            self._note_rebuild(_LACKING)
            self.lost.take_foreign(self.queues.foreign, now_ms=self.now_ms)
            self.queues.drop_late(known)
            end = self._settle(start)
        if self.keeps_places:
            self._kept |= self.lost.keep_given(now_ms=self.now_ms)
        self._note_kept_places()
        return start, end

    def _take_lost_away(self, start: int, *, judges_entries: bool = True) -> int:
        """Set aside files that lost entries or items; return from where to make them again."""
        if self.parts.queues.has_short_files:
            self._note_rebuild(_LACKING)
            start = self.parts.log_files.min_offset
        if self.lost.is_of_another_log:
            self._note_rebuild("known-ends is damaged, of another log, or of an earlier release")
            start = self.parts.log_files.min_offset
        judges_entries &= start > self.parts.log_files.min_offset  # else all are put right
        return self.lost.take_away(start, judges_entries=judges_entries, now_ms=self.now_ms)

    def _settle(self, start: int) -> int:
        """Let log, queues and index agree from `start` on; return where the log ends."""
        limit = max(start, self._data_limit())
        index_start = start if self.parts.index.is_enabled else limit  # else nothing is put again
        if not self.clean or self.lost.is_of_another_log:
            self._truncate_index(index_start)
        stepped = self._dispatch(start, limit)
        damaged, leftovers = [over.range for over in stepped], []
        end = self._plain_end(stepped, limit)
        if end is None:
            survey = self._survey(start)
            end = survey.end
            # Leftovers of an old log were never records of this one, so they are no damage.
            damaged = [ByteRange(one.start, one.stop) for one in survey.damage if one.start < end]
            leftovers = [ByteRange(chain.start, chain.stop) for chain in survey.leftovers]
        self._cut(end, leftovers)
        if leftovers:
            self._truncate_index(index_start)
            self._dispatch(start, end)
        self.queues.settle(start, end, damaged)
        return end

    def _cut(self, end: int, leftovers: list[ByteRange]) -> None:
        index = self.parts.index
        # Queues first: the records that show an entry to be an earlier log's come after the end.
        self._kept |= self.queues.end_at(
            end, clean_after=not self.clean, keeps_places=self.keeps_places, old=leftovers
        )
        # Past the end they go with the tail; their entries must go in either case.
        leftovers = [one for one in leftovers if one.start < end]
        self.findings += cut_log(
            self.parts.log_files, end, leftovers=leftovers, evidence=self.copies,
            now_ms=self.now_ms, data_stop=self._data_stop,
        )  # fmt: skip
        if index.files and index.end_physical_offset >= end:
            self._truncate_index(end)

    def _truncate_index(self, physical_offset: int) -> None:
        store_time = functools.partial(store_time_of, self.parts.log_files)
        self.parts.index.truncate_to(physical_offset, store_time, now_ms=self.now_ms)

    def _dispatch(self, start: int, limit: int, *, force: bool = True) -> list[SteppedOver]:
        """Dispatch [start, limit) with checksums; return the ranges that could not be read."""
        dispatcher = self.parts.dispatcher
        dispatcher.stepped_over.clear()
        check_crc, copy = self.parts.config.check_crc_on_recover, self.copies.copy_range
        if start < limit:
            dispatcher.dispatch_range(start, limit, force=force, check_crc=check_crc, copy=copy)
        return list(dispatcher.stepped_over)

    def _plain_end(self, stepped: list[SteppedOver], limit: int) -> int | None:
        """Return the log's end if no record that was read comes after a break; else None."""
        if not stepped:
            return max(limit, min(self.parts.dispatcher.dispatched_offset, self._files_stop()))
        nexts = [*(over.range.start for over in stepped[1:]), limit]
        is_one_tail = all(
            over.reason is not None and over.range.stop >= following
            for over, following in zip(stepped, nexts, strict=True)
        )
        return stepped[0].range.start if is_one_tail else None

    def _survey(self, start: int) -> LogView:
        """Find the end where records follow breaks, and report them."""
        files = self.parts.log_files.files
        survey = survey_log(files, now_ms=self.now_ms, start=start, data_stop=self._data_stop)
        lost = [one.start for one in survey.damage] + [start for start, _ in survey.holes]
        if lost and self._follows:  # the master has what is lost, and all after it
            survey = survey.cut_at(min(lost))
        # As if it were live: a finding about the tail is made when it is cut.
        for one in log_findings(survey, self._position_of, is_live=True):
            is_left = one.kind == "log-leftover"
            action = "copied to repair/ and zeroed" if is_left else one.action
            self.findings.append(msgspec.structs.replace(one, action=action))
        return survey

    def _position_of(self, physical_offset: int) -> tuple[str, int]:
        file = self.parts.log_files.find(physical_offset)
        if file is None:
            return "commitlog", physical_offset
        return relative_name(file.path), physical_offset - file.base

    def _note_lost_end(self, end: int, witness: str) -> None:
        reason = f"{witness}, but the log ends here"
        action = "the numbers that queues gave out after it are kept and not given again"
        where = self._position_of(end)
        self.findings.append(Finding(Severity.WARNING, "log-end-lost", *where, 0, reason, action))

    def _note_kept_places(self) -> None:
        for key, (first, stop) in sorted(self._kept.items()):
            name = f"{self.parts.queues.directory.name}/{key}"
            at, size = first * ENTRY_SIZE_BYTES, (stop - first) * ENTRY_SIZE_BYTES
            reason = f"{offsets_text(first, stop)}: given out to what was lost with the log's end"
            action = f"they stay as places of lost records; the next message gets {stop}"
            found = Finding(Severity.DAMAGE, "queue-kept", name, at, size, reason, action)
            self.findings.append(found)

    def _note_rebuild(self, reason: str) -> None:
        """Have the log dispatched from its first byte on, also after an interruption."""
        action, name = "the whole log is dispatched again", self.parts.queues.directory.name
        self.findings.append(Finding(Severity.WARNING, "queue-gap", name, 0, 0, reason, action))
        self._promise_nothing()

    def settle_kinds(self, start: int, end: int) -> None:
        """Let queues of each kind agree with the log, whose end is known now."""
        parts = self.parts
        # A repair removed the faults, so the rest is as after a clean stop.
        clean = self.clean or self.evidence is not None

        def dispatch(begin: int, stop: int) -> None:
            self._dispatch(max(begin, parts.log_files.min_offset), stop, force=False)
            parts.dispatcher.stepped_over.clear()  # which was reported before

        for kind in parts.queues.kinds.on_disk():
            topics = parts.queues.kinds.of(kind.name)
            known = self.lost.known_batches
            kind.recover(topics, start, end, clean=clean, known=known, dispatch=dispatch)

    # --- where to begin -------------------------------------------------------------------------

    def _clean_start(self) -> int:
        """Return a record's start close to the end of the log."""
        parts, last = self.parts, self._last_with_data()
        known = parts.queues.max_physical_offset
        if known < last.base:
            # The queues end in an earlier file: the missing entries begin there.
            file = parts.log_files.find(known)
            return parts.log_files.min_offset if file is None else file.base
        stop = self._data_stop(last)
        position = min(known, last.base + stop) - CLEAN_TAIL_BYTES - last.base
        if position <= 0:
            return last.base
        found = kernels.resync(last.array, position, stop, last.base, last.size)
        return last.base + max(int(found), 0)

    def _crash_start(self) -> int:
        parts, last = self.parts, self._last_with_data()
        files = [file for file in parts.log_files.files if file.base <= last.base]
        return crash_start(
            files, self.checkpoint, index_enabled=parts.config.message_index_enable,
            has_index=bool(parts.index.files), now_ms=self.now_ms,
        )  # fmt: skip

    def _last_with_data(self) -> MappedFile:
        files = self.parts.log_files.files
        return next((file for file in reversed(files) if self._data_stop(file)), files[0])

    def _data_limit(self) -> int:
        """Return the physical offset from which on all files are zeros."""
        if not self.parts.log_files.files:
            return 0
        last = self._last_with_data()
        return last.base + self._data_stop(last)

    def _files_stop(self) -> int:
        last = self.parts.log_files.files[-1]
        return last.base + last.size

    # --- compatible -----------------------------------------------------------------------------

    def compatible(self) -> tuple[int, int]:
        """Recover as 4.9.3 does; return where it began and where the log ends."""
        parts = self.parts
        files = parts.log_files.files
        lost_from = self._take_lost_away(self._files_stop(), judges_entries=False)
        for queue in parts.queues.all():
            held = [(file.base, file.array) for file in queue.files.files]
            stop = compatible_queue_end(held) // ENTRY_SIZE_BYTES
            if stop < queue.max_offset:
                queue.truncate(stop, self.copies.copy_range, now_ms=self.now_ms)
        crash = None if self.clean else self.checkpoint
        start, end, why = compatible_end(files, parts.config, crash)
        if end < self._data_limit() or why not in {"unwritten", "the last file is full"}:
            size = max(self._files_stop() - end, 0)
            why_and_how = f"4.9.3 ends here: {why}", "what follows is copied to repair/ and cut"
            where = self._position_of(end)
            self.findings.append(Finding(Severity.WARNING, "log-end", *where, size, *why_and_how))
        self._cut(end, [])
        if self.clean:
            start = min(max(parts.queues.max_physical_offset, parts.log_files.min_offset), end)
        start = min(start, lost_from)
        if not self.clean:
            self._truncate_index(start if parts.index.is_enabled else end)
        self._dispatch(start, end)
        return start, end
