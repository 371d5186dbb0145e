"""Recovery: what a store does with its files before it takes the first message.

After a clean stop the end of the log is looked at and compared with the queues. After a crash
everything from a safe file on is checked and dispatched anew: the log's end is found, what lies
behind is copied and zeroed, queue entries are rewritten, entries behind the end are dropped. The
policy ``compatible`` ends where 4.9.3 ends; ``salvage`` keeps every intact record.

Law: recovery only ever cuts behind the last record that it keeps, and only after a copy. Doing it
again changes nothing, so it may be interrupted anywhere.

The safe file is the newest one whose first record is older, by three seconds, than everything the
checkpoint promises: log, queues and index hold all before it. What it cannot promise (a store that
a Java broker wrote, a queue directory that somebody deleted) shows as a gap in some queue, and then
everything is dispatched from the first file on.

How derived: DefaultMessageStore.recover, CommitLog.recoverNormally and recoverAbnormally of 4.9.3
(spec B16), without K-R1 to K-R10 and K-C2, K-I1, K-I8, K-S1. See docs/how-it-works/recovery.md.
Cost: one pass over what is not known to be safe: a thread walks, with checksums, while this one
enters records into queues and index (decision 0015); a second one only where damage has records
behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.config import RecoveryPolicy
from rocketstore.errors import StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.scan import kernels
from rocketstore.storage.checkpoint import promise_nothing
from rocketstore.storage.recovery.evidence import Evidence
from rocketstore.storage.recovery.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.storage.recovery.log_cut import cut_leftovers, cut_log, relative_name
from rocketstore.storage.recovery.log_survey import LogSurvey, survey_log, written_stop
from rocketstore.storage.recovery.lost_files import LostFiles
from rocketstore.storage.recovery.queue_recovery import CheckedLog, QueueRecovery
from rocketstore.storage.recovery.recovery_compatible import (
    compatible_queue_end,
    find_compatible_end,
    start_after_clean_stop,
    start_after_crash,
)
from rocketstore.storage.recovery.recovery_start import crash_start, store_time_at
from rocketstore.units import ByteRange, MiB
from rocketstore.verification.findings import Finding, Severity

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.storage.dispatch.dispatcher import Dispatcher, SteppedOver
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.known_ends import KnownEnds
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable
    from rocketstore.units import QueueKey

_log: Final = get_logger(__name__)

CLEAN_TAIL_BYTES: Final = 32 * MiB
"""How much of the log's end is compared with the queues after a clean stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryParts:
    """The loaded parts of a store, before anything is written."""

    layout: StoreLayout
    config: StoreConfig
    log: MappedFileQueue
    queues: ConsumeQueueTable
    index: IndexService
    dispatcher: Dispatcher
    checkpoint: Checkpoint
    known_ends: KnownEnds | None = None
    disk: Disk


class RecoveryReport(NamedTuple):
    """What recovery did, and what the store goes on from.

    Attributes
    ----------
    start
        Physical offset from which the log was checked.
    end
        Where it ends; everything before is dispatched.
    queue_offsets
        Offset of the next message of each queue.
    last_store_timestamp_ms
        Of the last record that was looked at, never much later than now; 0 without records.
    findings
        What was wrong, and what was done about it.
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


def recover(
    parts: RecoveryParts, *, clean: bool, now_ms: int, policy: RecoveryPolicy | None = None
) -> RecoveryReport:
    """Bring log, queues and index of a loaded store into agreement.

    Parameters
    ----------
    parts
        Loaded, not running.
    clean
        Whether the last writer ended in order (there was no ``abort``).
    now_ms
        The time.
    policy
        None takes the one of the settings.

    Raises
    ------
    StoreDamagedError
        The CommitLog has no file although queues have entries (K-R10).
    StoreFullError
        There is no room for a copy of what has to be cut.
    """
    policy = policy or parts.config.recovery_policy
    recovery = _Recovery(parts, clean=clean, now_ms=now_ms)
    if not parts.log.files:
        _refuse_lost_log(parts)
        start = end = 0
    elif policy is RecoveryPolicy.COMPATIBLE:
        start, end = recovery.compatible()
    else:
        start, end = recovery.salvage()
    if not clean:
        recovery.queues.distrust(start)
    report = RecoveryReport(
        policy,
        clean,
        start,
        end,
        parts.queues.next_offsets(),
        recovery.last_store_timestamp_ms(),
        recovery.findings,
        recovery.evidence.directory,
    )
    parts.dispatcher.start_at(end, last_store_timestamp_ms=report.last_store_timestamp_ms)
    _log.info(
        "store.recovered", policy=policy.value, was_clean=clean, start=start, end=end,
        findings=len(report.findings), evidence=report.evidence,
    )  # fmt: skip
    return report


def _refuse_lost_log(parts: RecoveryParts) -> None:
    """Without a log 4.9 deletes every queue, and consumers' offsets point far beyond (K-R10)."""
    entries = sum(offset for offset in parts.queues.next_offsets().values())
    if entries:
        raise StoreDamagedError(
            f"{parts.layout.commit_log_directories[0]} has no CommitLog file, but the queues have "
            f"{entries} entries",
            hint="bring the files back, or move consumequeue away to begin an empty store",
        )


class _Recovery:
    """One run of recovery."""

    def __init__(self, parts: RecoveryParts, *, clean: bool, now_ms: int) -> None:
        self.parts = parts
        self.clean = clean
        self.now_ms = now_ms
        self.findings: list[Finding] = []
        self.evidence = Evidence(parts.layout, parts.disk, now_ms)
        self.queues = QueueRecovery(parts.log, parts.queues, now_ms=now_ms)
        self._damaged: list[ByteRange] = []
        self._leftovers: list[ByteRange] = []
        self._kept: dict[QueueKey, tuple[int, int]] = {}
        self._stops: dict[int, int] = {}
        if parts.log.files:
            # Before anything is mapped: reading a hole through a map makes it look like data.
            self._last_with_data()
        self.lost = LostFiles(
            parts, self.evidence, clean=clean, now_ms=now_ms, store_time_of=self._store_time_of
        )

    def last_store_timestamp_ms(self) -> int:
        """Return the newest store time; one far from now is a damaged header and would stay."""
        newest = self.parts.dispatcher.last_store_timestamp_ms
        return newest if newest <= self.now_ms + CLOCK_TOLERANCE_MS else self.now_ms

    # --- salvage --------------------------------------------------------------------------------

    def salvage(self) -> tuple[int, int]:
        """Recover keeping every intact record; return where it began and where the log ends."""
        parts = self.parts
        start = self._take_lost_away(self._clean_start() if self.clean else self._crash_start())
        known = parts.queues.next_offsets()
        known_end = parts.queues.max_physical_offset
        end = self._salvage_from(start)
        if self.clean and known_end > end:
            self._note_lost_end(end, f"queues knew records up to {known_end}")
        promised_ms = parts.checkpoint.physic_ms
        if 0 < parts.dispatcher.last_store_timestamp_ms < promised_ms <= self.now_ms:
            self._note_lost_end(end, f"the checkpoint knew a record of {promised_ms} ms")
        if start > parts.log.min_offset and self.queues.has_gap(known):
            start = parts.log.min_offset
            self._note_rebuild()
            promise_nothing(parts.layout, parts.disk)
            self.queues.drop_late(known)
            end = self._salvage_from(start)
        self._kept |= self.lost.keep_given()
        self._note_kept_places()
        return start, end

    def _take_lost_away(self, start: int) -> int:
        """Find files that lost entries or items; return from where these are to be made again."""
        parts = self.parts
        if parts.queues.has_short_files:
            self._note_rebuild()
            promise_nothing(parts.layout, parts.disk)
            start = parts.log.min_offset
        start = self.lost.take_away(self._data_limit(0), start)
        self.findings += self.lost.findings
        return start

    def _salvage_from(self, start: int) -> int:
        limit = self._data_limit(start)
        if not self.clean:
            self._truncate_index(start)
        stepped = self._dispatch(start, limit)
        self._damaged = [over.range for over in stepped]
        end = self._plain_end(stepped, limit)
        if end is None:
            end = self._judged_end(start)
        self._cut(end, keep_places=True)
        self.queues.drop_stale_ends(CheckedLog(start, end, self._damaged))
        self.queues.fill_unwritten(start)
        return end

    def _cut(self, end: int, *, keep_places: bool) -> None:
        """Let log, queues and index end at `end`."""
        parts = self.parts
        clean_behind = not self.clean
        # Queues first: what shows that an entry is an earlier log's stands behind the end.
        if keep_places:
            old = self._leftovers
            self._kept |= self.queues.keep_places_behind(end, clean_behind=clean_behind, old=old)
        else:
            self.queues.end_at(end, clean_behind=clean_behind)
        self.findings += cut_log(
            parts.log,
            end,
            evidence=self.evidence,
            now_ms=self.now_ms,
            data_stop=self._stop,
        )
        if parts.index.files and parts.index.end_physical_offset >= end:
            self._truncate_index(end)

    def _truncate_index(self, physical_offset: int) -> None:
        self.parts.index.truncate_to(
            physical_offset, now_ms=self.now_ms, store_time_of=self._store_time_of
        )

    def _dispatch(self, start: int, limit: int) -> list[SteppedOver]:
        """Dispatch [start, limit) with checksums; return what could not be read."""
        dispatcher = self.parts.dispatcher
        dispatcher.stepped_over.clear()
        if start < limit:
            dispatcher.dispatch_range(
                start, limit, force=True, check_crc=self.parts.config.check_crc_on_recover
            )
        return list(dispatcher.stepped_over)

    def _plain_end(self, stepped: list[SteppedOver], limit: int) -> int | None:
        """Return the log's end if nothing that was read stands behind a break; else None."""
        if not stepped:
            return max(limit, min(self.parts.dispatcher.dispatched_offset, self._files_stop()))
        places = [over.range for over in stepped]
        is_one_tail = places[-1].stop >= limit and all(
            before.stop == after.start for before, after in pairwise(places)
        )
        has_files = all(over.reason is not None for over in stepped)
        return places[0].start if is_one_tail and has_files else None

    def _judged_end(self, start: int) -> int:
        """Find the end where records stand behind breaks, and put away what an old log left."""
        parts = self.parts
        files = [file for file in parts.log.files if file.base + file.size > start]
        survey = survey_log(
            files, now_ms=self.now_ms, start=start, data_stop=lambda file: self._stop(file.base)
        )
        self._report(survey)
        leftovers = [chain for chain in survey.leftovers if chain.record_count]
        if leftovers:
            # Behind the end they go with the tail; their entries must go in either case.
            inside = [ByteRange(c.start, c.stop) for c in leftovers if c.start < survey.end]
            self._leftovers = [ByteRange(c.start, c.stop) for c in leftovers]
            self._cut(survey.end, keep_places=True)
            self.findings += cut_leftovers(parts.log, inside, evidence=self.evidence)
            self._truncate_index(start)
            self._dispatch(start, survey.end)
        # What an old log left was never a record of this one, so it is no damage.
        self._damaged = [damage.range for damage in survey.damage_before_end()] + survey.holes
        return survey.end

    def _report(self, survey: LogSurvey) -> None:
        for damage in survey.damage_before_end():
            self._note_damage(damage.range, damage.reason.value, damage.evidence)
        for hole in survey.holes:
            if hole.start < survey.end:
                self._note_damage(hole, "missing file", "the files around it are there")
        for chain in survey.doubtful + survey.leftovers:
            assert chain.judgement is not None
            kind = chain.judgement.verdict.value
            self.findings.append(
                self._finding(
                    Severity.WARNING,
                    f"log-{kind}",
                    ByteRange(chain.start, chain.stop),
                    f"{chain.record_count} records: {chain.judgement.reason}",
                    "kept as messages" if chain.is_kept else "copied to repair/ and zeroed",
                )
            )

    def _note_damage(self, place: ByteRange, reason: str, evidence: str) -> None:
        action = "left as it is; entries of lost records keep their places"
        self.findings.append(
            self._finding(Severity.DAMAGE, "log-damage", place, f"{reason}: {evidence}", action)
        )

    def _finding(
        self, severity: Severity, kind: str, place: ByteRange, reason: str, action: str
    ) -> Finding:
        file = self.parts.log.find(place.start)
        name, offset = (
            ("commitlog", place.start)
            if file is None
            else (relative_name(file.path), place.start - file.base)
        )
        return Finding(severity, kind, name, offset, place.size, reason, action)

    # --- where to begin -------------------------------------------------------------------------

    def _clean_start(self) -> int:
        """Return a record's start close to the end of the log."""
        parts = self.parts
        last = self._last_with_data()
        known = parts.queues.max_physical_offset
        if known < last.base:
            # The queues end in an earlier file: what they lack begins there.
            file = parts.log.find(known)
            return parts.log.min_offset if file is None else file.base
        position = min(known, last.base + self._stop(last.base)) - CLEAN_TAIL_BYTES - last.base
        if position <= 0:
            return last.base
        stop = self._stop(last.base)
        found = kernels.resync(last.array, position, stop, last.base, last.size)
        return last.base + max(int(found), 0)

    def _crash_start(self) -> int:
        parts = self.parts
        last = self._last_with_data()
        return crash_start(
            [file for file in parts.log.files if file.base <= last.base],
            parts.checkpoint,
            index_enabled=parts.config.message_index_enable,
            has_index=bool(parts.index.files),
            now_ms=self.now_ms,
        )

    def _store_time_of(self, physical_offset: int) -> int | None:
        file = self.parts.log.find(physical_offset)
        return None if file is None else store_time_at(file, physical_offset - file.base)

    def _note_lost_end(self, end: int, witness: str) -> None:
        """Say that the log was longer once than it is now."""
        self.findings.append(
            self._finding(
                Severity.WARNING,
                "log-end-lost",
                ByteRange(end, end),
                f"{witness}, but the log ends here",
                "the numbers that queues gave out behind it are kept and not given again",
            )
        )

    def _note_kept_places(self) -> None:
        for key, (first, stop) in sorted(self._kept.items()):
            self.findings.append(
                Finding(
                    Severity.DAMAGE,
                    "queue-kept",
                    f"{self.parts.queues.directory.name}/{key.topic}/{key.queue_id}",
                    first * ENTRY_SIZE_BYTES,
                    (stop - first) * ENTRY_SIZE_BYTES,
                    f"queue offsets {first} to {stop - 1} were given out, but their records are "
                    "lost behind the log's end",
                    f"they stay as places of lost records; the next message gets {stop}",
                )
            )

    def _note_rebuild(self) -> None:
        self.findings.append(
            Finding(
                Severity.WARNING,
                "queue-gap",
                self.parts.queues.directory.name,
                0,
                0,
                "queues lack entries of records that the checkpoint calls safe",
                "the whole log is dispatched again",
            )
        )

    # --- compatible -----------------------------------------------------------------------------

    def compatible(self) -> tuple[int, int]:
        """Recover as 4.9.3 does; return where it began and where the log ends."""
        parts = self.parts
        files = parts.log.files
        lost_from = self._take_lost_away(self._files_stop())
        self._end_queues_as_java()
        if self.clean:
            number = start_after_clean_stop(len(files))
        else:
            counts = parts.config.message_index_enable and parts.config.message_index_safe
            number = start_after_crash(files, parts.checkpoint, index_counts=counts)
        found = find_compatible_end(files, number, check_crc=parts.config.check_crc_on_recover)
        self._note_compatible_end(found.end, found.reason)
        self._cut(found.end, keep_places=False)
        start = files[number].base
        if self.clean:
            start = min(max(parts.queues.max_physical_offset, parts.log.min_offset), found.end)
        start = min(start, lost_from)
        if not self.clean:
            self._truncate_index(start)
        self._dispatch(start, found.end)
        return start, found.end

    def _end_queues_as_java(self) -> None:
        for queue in self.parts.queues.all():
            files = [(file.base, file.array) for file in queue.files.files]
            end = compatible_queue_end(files) // ENTRY_SIZE_BYTES
            if end < queue.max_offset:
                queue.truncate(end, now_ms=self.now_ms)

    def _note_compatible_end(self, end: int, reason: str) -> None:
        if end < self._data_limit(end) or reason not in {"unwritten", "the last file is full"}:
            self.findings.append(
                self._finding(
                    Severity.WARNING,
                    "log-end",
                    ByteRange(end, max(end, self._files_stop())),
                    f"4.9.3 ends here: {reason}",
                    "what lies behind is copied to repair/ and cut",
                )
            )

    # --- places ---------------------------------------------------------------------------------

    def _stop(self, base: int) -> int:
        """Return the position in a file behind which it is known to be zeros."""
        known = self._stops.get(base)
        if known is None:
            file = self.parts.log.find(base)
            assert file is not None
            known = self._stops[base] = written_stop(file, file.fd)
            file.close_descriptor()
        return known

    def _last_with_data(self) -> MappedFile:
        files = self.parts.log.files
        return next((file for file in reversed(files) if self._stop(file.base)), files[0])

    def _data_limit(self, start: int) -> int:
        """Return the physical offset behind which all files are zeros."""
        last = self._last_with_data()
        return max(start, last.base + self._stop(last.base))

    def _files_stop(self) -> int:
        last = self.parts.log.files[-1]
        return last.base + last.size
