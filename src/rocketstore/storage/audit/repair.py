"""Repair a store that nobody writes to: plan, keep copies, cut, rebuild, and look again.

Under ``salvage`` every intact record stays, wherever it stands; under ``compatible`` the log ends
where 4.9.3 would end it. Then every queue entry is made to point at an intact record of its topic,
queue and offset, or to keep the place of a lost one, and the index is made anew if anything in it
is wrong.

Law: nothing is cut before its copy is durable; each step can be repeated, so a repair that was
killed is finished by running it again, one under ``salvage`` also by opening the store. A dry run
repairs a stand-in (`rehearsal`), so that it reports what a repair would, and writes nothing.

How derived: spec B16 and K-R5, K-R10, K-R11, K-R13, K-I1; see docs/guide/repair.md. Cost: two
passes over the log before, two after, one more where queues or index are written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.errors import StoreDamagedError
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.markers import CHECKPOINT_FILE_NAME
from rocketstore.storage.audit.broker_view import lost_for_broker
from rocketstore.storage.audit.queue_audit import QueueAudit
from rocketstore.storage.audit.queue_rewrite import QueueRewrite
from rocketstore.storage.audit.rehearsal import Rehearsal, RehearsalDisk, RehearsalEvidence
from rocketstore.storage.audit.repair_files import (
    FileFix,
    apply_file_fixes,
    file_fixes,
    log_file_fixes,
)
from rocketstore.storage.audit.repair_plan import RepairPlan, plan_repair
from rocketstore.storage.audit.repair_report import RepairReport
from rocketstore.storage.audit.store_audit import (
    StoreAudit,
    StorePlaces,
    audit_store,
    delay_array,
    find_places,
)
from rocketstore.storage.audit.verify import audit_findings, small_files
from rocketstore.storage.checkpoint import StoreCheckpoint, read_checkpoint
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import StoreLock, refuse_writer
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.pread_files import DANGLING_HINT, FileProblem, PreadFiles
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.known_ends import forget_known_ends
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.storage.recovery.evidence import Evidence
from rocketstore.storage.recovery.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.storage.recovery.log_cut import cut_leftovers, cut_log
from rocketstore.storage.recovery.log_survey import chain_records
from rocketstore.storage.recovery.recovery_compatible import (
    find_compatible_end,
    start_after_clean_stop,
    start_after_crash,
)
from rocketstore.verification.expectation import expected_entries
from rocketstore.verification.findings import Finding, Severity
from rocketstore.verification.queue_numbers import QueueNumbers
from rocketstore.verification.small_files import checkpoint_findings, table_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.storage.audit.store_audit import ReadLogFile
    from rocketstore.units import ByteRange

_MOST_ROUNDS: Final = 4
"""A round may uncover what the one before hid, such as places between rebuilt entries."""


def rebuild_store(
    path: str | Path,
    *,
    what: Literal["queues", "index"],
    now_ms: int,
    config: StoreConfig | None = None,
    disk: Disk | None = None,
) -> RepairReport:
    """Make queues or index anew from the CommitLog; what was there is kept in ``repair/<time>/``.

    Entries of records that are no longer in the log become fillers, so queue offsets stay; the
    index begins anew at the first record left. Whatever else is wrong is repaired as by
    `repair_store`, whose errors these are.
    """
    config = config or StoreConfig()
    places = find_places(Path(path), config)
    repair = _Repair(places, config, disk or Disk(), now_ms, "salvage")
    lock = StoreLock.acquire(repair.layout.lock)
    try:
        repair.refuse_lost_log()
        repair.begin()
        repair.set_aside(repair.layout.consume_queue if what == "queues" else repair.layout.index)
        return repair.report()
    finally:
        lock.release()


def repair_store(
    path: str | Path,
    *,
    now_ms: int,
    policy: Literal["salvage", "compatible"] = "salvage",
    dry_run: bool = False,
    config: StoreConfig | None = None,
    disk: Disk | None = None,
) -> RepairReport:
    """Repair the store at `path`.

    Parameters
    ----------
    path
        Directory of the store.
    now_ms
        The time; names the directory of copies.
    policy
        ``salvage`` keeps every intact record, ``compatible`` ends the log where 4.9.3 does.
    dry_run
        Write nothing, not even the lock file.
    config
        Settings that the files do not tell.
    disk
        How files are written; a test's own may fail.

    Raises
    ------
    StoreLockedError
        A writer has the store.
    NotAStoreError
        There is no CommitLog directory.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10).
    """
    config = config or StoreConfig()
    places = find_places(Path(path), config)
    if dry_run:
        refuse_writer(places.layout.lock, hint="stop that writer")
        return _rehearse(places, config, now_ms, policy)
    lock = StoreLock.acquire(places.layout.lock)
    try:
        return _Repair(places, config, disk or Disk(), now_ms, policy).report()
    finally:
        lock.release()


def _rehearse(places: StorePlaces, config: StoreConfig, now_ms: int, policy: str) -> RepairReport:
    """Repair a stand-in, and report what the store itself would get."""
    with Rehearsal(places) as stand_in:
        try:
            report = _RehearsedRepair(
                stand_in.places, config, RehearsalDisk(), now_ms, policy
            ).report()
        except StoreDamagedError as error:
            raise StoreDamagedError(stand_in.real_text(error.message), hint=error.hint) from error
        return report._replace(
            dry_run=True,
            findings=stand_in.real_findings(report.findings),
            actions=[stand_in.real_text(action) for action in report.actions],
            remaining=stand_in.real_findings(report.remaining),
            lost_for_broker=stand_in.real_losses(report.lost_for_broker),
            evidence=None,
        )


class _Repair:
    """One repair."""

    def __init__(
        self, places: StorePlaces, config: StoreConfig, disk: Disk, now_ms: int, policy: str
    ) -> None:
        self.config = config
        self.disk = disk
        self.now_ms = now_ms
        self.policy = policy
        self.places = places
        self.layout = self.places.layout
        self.evidence = Evidence(self.layout, disk, now_ms)
        self._zeroed: list[ByteRange] = []

    def begin(self) -> None:
        """Let an opening after an interrupted repair check and rebuild everything.

        Without this it would take half of the queues, or of the index, for all of it. A compatible
        end depends on what this changes, so such a repair has to be started again instead.
        """
        if self.policy != "salvage":
            return
        if not self.layout.abort.exists():
            os.close(self.disk.create_file(self.layout.abort))
        self.disk.fsync_directory(self.layout.root)
        if self._has_bad_checkpoint():
            self.evidence.take_file(self.layout.checkpoint)
        elif self.layout.checkpoint.exists():
            checkpoint = StoreCheckpoint(self.layout.checkpoint, disk=self.disk)
            checkpoint.reset(Checkpoint())
            checkpoint.flush()

    def set_aside(self, directory: Path) -> None:
        """Move every file below `directory` to the copies."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.evidence.take_file(path)

    def report(self) -> RepairReport:
        """Plan, act, and say what was found, done and left."""
        fixes = self._file_fixes()
        actions = [fix.action(self.layout.root) for fix in fixes]
        audit = self._audit()
        self._refuse_dangling_links(audit)
        self._refuse_lost_log(audit)
        findings = [*audit_findings(audit), *self._other_findings()]
        plan = self._plan(audit)
        actions += plan.actions()
        if self._has_bad_checkpoint():
            actions.append("checkpoint: move it to repair/ and write it anew")
        if fixes or plan.changes_content:
            self.begin()
        apply_file_fixes(fixes, disk=self.disk, evidence=self.evidence)
        if fixes:
            audit = self._audit()
            plan = self._plan(audit)
        audit = self._act(audit, plan)
        remaining = [*audit_findings(audit), *self._other_findings()]
        return RepairReport(
            self.policy,
            False,  # noqa: FBT003 - a field of the report: this was done
            findings,
            actions,
            [finding for finding in remaining if finding.severity is not Severity.NOTE],
            lost_for_broker(audit, check_crc=self.config.check_crc_on_recover),
            audit.counts,
            self.evidence.directory,
        )

    def _plan(self, audit: StoreAudit) -> RepairPlan:
        return plan_repair(
            audit,
            has_abort=self.layout.abort.exists(),
            keeps_places=self.policy == "salvage",
        )

    def _has_bad_checkpoint(self) -> bool:
        """Whether the checkpoint says what cannot be; that there is none is no fault."""
        found = checkpoint_findings(small_files(self.layout)(CHECKPOINT_FILE_NAME), self.now_ms)
        return any(finding.severity is not Severity.NOTE for finding in found)

    def _other_findings(self) -> list[Finding]:
        read = small_files(self.layout)
        checkpoint = checkpoint_findings(read(CHECKPOINT_FILE_NAME), self.now_ms)
        return [*checkpoint, *table_findings(read)]

    def _audit(self) -> StoreAudit:
        end_of: Callable[[Sequence[ReadLogFile]], int] | None = None
        if self.policy == "compatible":
            end_of = self._compatible_end
        return audit_store(
            self.places,
            self.config,
            now_ms=self.now_ms,
            end_of=end_of,
            zeroed=self._zeroed,
        )

    def _compatible_end(self, files: Sequence[ReadLogFile]) -> int:
        if self.layout.abort.exists():
            counts = self.config.message_index_enable and self.config.message_index_safe
            checkpoint = read_checkpoint(self.layout.checkpoint)
            start = start_after_crash(files, checkpoint, index_counts=counts)
        else:
            start = start_after_clean_stop(len(files))
        check_crc = self.config.check_crc_on_recover
        end = find_compatible_end(files, start, check_crc=check_crc).end
        # What is left is marked as stopped in order: 4.9 then looks at its last three files, which
        # may begin before the file where it began after the crash, and ends the log there.
        while left := [file for file in files if file.base < end]:
            start = start_after_clean_stop(len(left))
            again = find_compatible_end(left, start, check_crc=check_crc).end
            if again >= end:
                break
            end = again
        return end

    def refuse_lost_log(self) -> None:
        """Raise where there is nothing to rebuild from."""
        audit = self._audit()
        self._refuse_dangling_links(audit)
        self._refuse_lost_log(audit)

    def _refuse_dangling_links(self, audit: StoreAudit) -> None:
        # Its disk may be there tomorrow: nothing is to be made in its place.
        queues = (found for queue in audit.queues for found in queue.files.findings)
        for found in (*audit.log_findings, *queues):
            if found.problem is FileProblem.DANGLING_LINK:
                raise StoreDamagedError(
                    f"{found.path}: expected {found.expected}, found {found.found}",
                    hint=DANGLING_HINT,
                )

    def _refuse_lost_log(self, audit: StoreAudit) -> None:
        entries = audit.entry_count
        if not audit.log_files and entries:
            raise StoreDamagedError(
                f"{self.layout.root} has no CommitLog file, but its queues have {entries} entries",
                hint="bring the files back, or move consumequeue away to begin an empty store",
            )

    # --- files ----------------------------------------------------------------------------------

    def _file_fixes(self) -> list[FileFix]:
        sizes = self.places.sizes
        log = PreadFiles(self.layout.commit_log_directories, file_size=sizes.commit_log_file_bytes)
        fixes = log_file_fixes(log)
        queues = QueueAudit(self.layout.consume_queue, sizes.consume_queue_file_bytes)
        for queue in queues.queues.values():
            fixes += file_fixes(queue.files.findings, sizes.consume_queue_file_bytes)
        queues.close()
        return fixes

    # --- acting ---------------------------------------------------------------------------------

    def _act(self, audit: StoreAudit, plan: RepairPlan) -> StoreAudit:
        for _ in range(_MOST_ROUNDS):
            if not plan.changes_content:
                break
            self._cut_log(plan)
            if plan.queues:
                self._rewrite_queues(audit, plan)
            if plan.rebuild_index:
                self._rebuild_index(plan.log_end)
            # `abort` is still there: a compatible end is looked for from the same file again.
            audit = self._audit()
            plan = self._plan(audit)
        if plan.remove_abort or self.evidence.kept or self._has_bad_checkpoint():
            self._mark_clean(audit)
        return audit

    def _log(self) -> MappedFileQueue:
        log = MappedFileQueue(
            self.layout.commit_log_directories,
            self.places.sizes.commit_log_file_bytes,
            disk=self.disk,
            read_only_directories=self.layout.read_only_directories,
        )
        log.load()
        return log

    def _cut_log(self, plan: RepairPlan) -> None:
        if not (plan.tail or plan.leftovers):
            return
        log = self._log()
        cut_log(log, plan.log_end, evidence=self.evidence, now_ms=self.now_ms)
        cut_leftovers(log, plan.leftovers, evidence=self.evidence)
        log.drop()

    def _rewrite_queues(self, audit: StoreAudit, plan: RepairPlan) -> None:
        rewrite = QueueRewrite(
            plan.queues,
            self.layout.consume_queue,
            self.places.sizes.consume_queue_file_bytes,
            disk=self.disk,
            evidence=self.evidence,
        )
        rewrite.keep_evidence()
        rewrite.fill_and_cut()
        if any(queue.write for queue in plan.queues):
            numbers, delays = QueueNumbers(), delay_array(self.config)
            for file, found in zip(audit.log_files, audit.survey.files, strict=True):
                for chain in found.chains:
                    stop = min(chain.stop, plan.log_end)
                    if not (chain.record_count and chain.is_kept and chain.start < stop):
                        continue
                    for columns in chain_records(file, chain.start, stop):
                        rewrite.take(expected_entries(columns, numbers, delays), numbers.keys())
        rewrite.finish()

    def _rebuild_index(self, log_end: int) -> None:
        """Make the index anew from the log; what was there is kept."""
        if self.layout.index.is_dir():
            for path in sorted(self.layout.index.iterdir()):
                if path.is_file():
                    self.evidence.take_file(path)
        log = self._log()
        log.truncate_after(log_end, now_ms=self.now_ms)
        queues = ConsumeQueueTable(
            self.layout.consume_queue,
            self.places.sizes.consume_queue_file_bytes,
            disk=self.disk,
            log_min_offset=lambda: log.min_offset,
        )
        queues.load()
        index = IndexService(
            self.layout.index, self.places.index_layout, disk=self.disk, clock=lambda: self.now_ms
        )
        index.load()
        dispatcher = Dispatcher(
            log,
            queues,
            index,
            readable_limit=lambda: log_end,
            delays_ms=parse_delay_levels(self.config.message_delay_level),
        )
        dispatcher.dispatch_range(log.min_offset, log_end, force=False, check_crc=True)
        queues.flush()
        index.flush()
        for part in (log, queues, index):
            part.drop()

    def _mark_clean(self, audit: StoreAudit) -> None:
        """Say that everything is on the disk, so that the next opening need not recover."""
        newest = audit.last_store_timestamp_ms
        if newest > self.now_ms + CLOCK_TOLERANCE_MS:
            # Said by a damaged record, or a clock that went ahead: an earlier time is always true.
            newest = self.now_ms
        newest = max(newest, 0)
        # 4.9 gives the numbers of a lost end again, and so does a compatible repair.
        keeps_numbers = self.policy == "salvage"
        forget_known_ends(self.layout.root, keep_queues=keeps_numbers, disk=self.disk)
        self._sync_everything()
        if self._has_bad_checkpoint():
            self.evidence.take_file(self.layout.checkpoint)
        checkpoint = StoreCheckpoint(self.layout.checkpoint, disk=self.disk)
        checkpoint.reset(Checkpoint(newest, newest, newest))
        checkpoint.flush()
        if self.layout.abort.exists():
            self.disk.unlink(self.layout.abort)
            self.disk.fsync_directory(self.layout.root)

    def _sync_everything(self) -> None:
        """Make durable what a dead writer may have left in the page cache: audits read that."""
        layout = self.layout
        tops = (*layout.commit_log_directories, layout.consume_queue, layout.index)
        paths = [path for top in tops if top.is_dir() for path in (top, *top.rglob("*"))]
        for path in [layout.root, *paths]:
            if path.is_dir():
                self.disk.fsync_directory(path)
                continue
            descriptor = self.disk.open_file(path, writable=True)
            try:
                self.disk.fdatasync(descriptor, path)
            finally:
                os.close(descriptor)


class _RehearsedRepair(_Repair):
    """A repair of a stand-in: log bytes are not zeroed, and no index is made, but taken for so."""

    def __init__(
        self, places: StorePlaces, config: StoreConfig, disk: Disk, now_ms: int, policy: str
    ) -> None:
        super().__init__(places, config, disk, now_ms, policy)
        self.evidence = self._noted = RehearsalEvidence(self.layout, disk, now_ms)
        self._has_new_index = False

    def _audit(self) -> StoreAudit:
        audit = super()._audit()
        if self._has_new_index:
            audit.index_findings = []
            audit.counts = audit.counts._replace(index_item_count=audit.expected_item_count)
        return audit

    def _cut_log(self, plan: RepairPlan) -> None:
        for place in plan.tail + plan.leftovers:
            self._zeroed.append(place)
            self._noted.note_range(Path(self.layout.root), place.size)
        log = PreadFiles(
            self.layout.commit_log_directories,
            file_size=self.places.sizes.commit_log_file_bytes,
        )
        for file in log.files:
            if file.base >= plan.log_end and plan.tail and file.base > log.files[0].base:
                self.disk.unlink(file.path)

    def _rebuild_index(self, log_end: int) -> None:  # noqa: ARG002 - there is no log to end
        self._has_new_index = True
        self._noted.note_range(self.layout.index, 0)

    def _sync_everything(self) -> None:
        pass
