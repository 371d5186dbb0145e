"""Repair a store that no process writes: keep evidence, set wrong files aside, recover, verify.

After an audit and a plan files get their lengths, places that no record can fill get fillers, a
wrong index is set aside, and recovery from the log's first byte on does the rest. Under ``salvage``
every intact record stays; under ``compatible`` the log is first cut where 4.9.3 would end it.

Law: nothing is cut before its copy is durable; each step can be repeated, so a repair that was
killed is finished by running it again, one under ``salvage`` also by opening the store. A dry run
is the plan, and writes nothing.

How derived: spec B16 and K-R5, K-R10, K-R11, K-R13, K-I1; see docs/guide/repair.md. Cost: two
passes over the log before, two after, and the one of recovery.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rocketstore.arguments import checked
from rocketstore.at_once import at_once
from rocketstore.audit.repair_plan import RepairReport, lost_for_broker, plan_repair
from rocketstore.audit.store_audit import StoreAudit, audit_store, find_kinds, find_layout
from rocketstore.config import RecoveryPolicy, StoreConfig
from rocketstore.errors import StoreError
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CHECKPOINT_FILE_NAME,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER_BYTES, KEPT_PLACE_BYTES
from rocketstore.rules.findings import INDEX_REBUILT, Finding, Severity
from rocketstore.storage.checkpoint import (
    StoreCheckpoint,
    forget_known_ends,
    mark_in_use,
    read_checkpoint,
    read_known_ends,
)
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.lock import StoreLock, refuse_writer
from rocketstore.storage.files.log_directories import claim, refuse_foreign
from rocketstore.storage.files.mapped_file_queue import refuse_dangling, refuse_one_file
from rocketstore.storage.files.pread_files import ReadLogFile, file_lengths
from rocketstore.storage.files.whole_file import grow_file, small_files
from rocketstore.storage.index.pread_index import listed_index_files
from rocketstore.storage.kinds.batch_topics import BatchQueues
from rocketstore.storage.kinds.resolution import kinds_of
from rocketstore.storage.layout import root_of
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.recovery.evidence import Evidence, cut_log
from rocketstore.storage.recovery.recover import LoadedStore, recover, refuse_lost_log
from rocketstore.storage.recovery.recovery_compatible import compatible_end
from rocketstore.units import system_clock_ms
from rocketstore.verification.batch_rules import UNREACHABLE
from rocketstore.verification.small_files import checkpoint_findings, small_file_findings

if TYPE_CHECKING:
    from rocketstore.audit.repair_plan import QueuePlan, RepairPlan
    from rocketstore.rules.log_rules import LogView
    from rocketstore.storage.queues.topic_kinds import TopicKinds

_REPAIRED: Final = (
    "log-tail", "log-leftover", "log-file-", "queue-file-", "queue-missing", "queue-wrong",
    "queue-unwritten", "queue-gap", "queue-kind", "queue-ext", "checkpoint", *INDEX_REBUILT,
)  # fmt: skip
"""Prefixes of the kinds of findings that a repair removes."""

_RUN_AGAIN: Final = "run it again to complete it"
_ODD_ABORT: Final = "small-file", ABORT_FILE_NAME
"""A directory, say, of this name, which is moved away as the store is marked as stopped."""


@system_errors("cannot repair the store")
def rebuild_store(
    path: Path,
    config: StoreConfig,
    *,
    what: Literal["queues", "index"],
    now_ms: int | None = None,
    disk: Disk | None = None,
) -> RepairReport:
    """Build queues or index again from the CommitLog; what was there is kept in ``repair/<time>/``.

    Entries of records that are no longer in the log become fillers, so queue offsets stay; the
    index starts again at the first record left. Whatever else is wrong is repaired as by
    `repair_store`, whose errors these are.
    """
    repair = _Repair(path, config, disk, now_ms, RecoveryPolicy.SALVAGE)
    with repair.locked():
        # This also raises, before the first file is moved, where a file cannot be read.
        audit = repair.audit()
        repair.refuse_lost_log(audit)
        findings = repair.findings(audit)
        layout = repair.layout
        queues = (layout.consume_queue, layout.consume_queue_ext, layout.batch_consume_queue)
        taken = queues[: 2 if audit.kinds.unsaid else 3] if what == "queues" else [layout.index]
        repair.refuse_unwritable(taken)
        repair.begin()
        for directory in taken:
            repair.evidence.take_tree(directory)
        return repair.report(findings=findings)


@system_errors("cannot repair the store")
@checked
def repair_store(
    path: str | Path, config: StoreConfig | None = None, *,
    policy: RecoveryPolicy | Literal["salvage", "compatible"] = "salvage", dry_run: bool = False,
    now_ms: int | None = None, disk: Disk | None = None,
) -> RepairReport:  # fmt: skip
    """Repair the store at `path`; what is cut off is kept in ``repair/<time>/``.

    Parameters
    ----------
    path
        Directory of the store.
    config
        Settings that the files do not tell.
    policy
        ``salvage`` keeps every intact record, ``compatible`` ends the log where 4.9.3 does.
    dry_run
        Write nothing, not even the lock file.
    now_ms
        The time, which names the directory of copies; None asks the system.
    disk
        The calls that make things durable; a test passes its own.

    Raises
    ------
    StoreLockedError
        A writer has the store.
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        `path` is empty, `config` no `StoreConfig`, or there is no such `policy`.
    StoreDamagedError
        There is no CommitLog file although queues have entries (K-R10).
    """
    chosen = RecoveryPolicy.of(policy)
    repair = _Repair(root_of(path), StoreConfig.of(config), disk, now_ms, chosen)
    if dry_run:
        refuse_writer(repair.layout.lock, hint="stop that writer")
    with nullcontext() if dry_run else repair.locked():
        return repair.report(dry_run=dry_run)


class _Repair:
    def __init__(
        self,
        path: Path,
        config: StoreConfig,
        disk: Disk | None,
        now_ms: int | None,
        policy: RecoveryPolicy,
    ) -> None:
        self.config = config
        self.disk = disk or Disk()
        self.now_ms = system_clock_ms() if now_ms is None else now_ms
        self.policy = policy.value
        self.is_salvage = policy is RecoveryPolicy.SALVAGE
        self.layout, self.sizes = find_layout(path, self.config)
        self.evidence = Evidence(self.layout, self.disk, self.now_ms)
        self.has_begun = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the store; an error after the first change says how to go on."""
        with StoreLock(self.layout.lock, self.layout.written_directories):
            try:
                with system_errors("cannot repair the store"):
                    yield
            except StoreError as error:
                if self.has_begun:
                    error.hint = "; ".join(filter(None, (error.hint, _RUN_AGAIN)))
                raise
            except KeyboardInterrupt as interrupt:
                raise KeyboardInterrupt(_RUN_AGAIN) from interrupt

    def begin(self) -> None:
        """Let an opening after an interrupted repair check and rebuild everything."""
        self.has_begun = True
        if not self.is_salvage:
            return  # its end depends on what this changes, so the repair has to run again
        mark_in_use(self.layout.abort, self.disk)
        if self.layout.checkpoint.exists():
            self._write_checkpoint(Checkpoint())

    def _write_checkpoint(self, times: Checkpoint) -> None:
        """Replace the checkpoint; a bad one is kept."""
        if self._has_bad_checkpoint():
            self.evidence.take_file(self.layout.checkpoint)
        checkpoint = StoreCheckpoint(self.layout.checkpoint, disk=self.disk)
        checkpoint.reset(times)
        checkpoint.flush()

    def report(
        self, *, dry_run: bool = False, findings: list[Finding] | None = None
    ) -> RepairReport:
        """Plan, act, and report what was found, done and left; `findings` where they are known."""
        audit = self.audit()
        self.refuse_lost_log(audit)
        plan = plan_repair(audit, keeps_places=self.is_salvage)
        findings = self.findings(audit) if findings is None else findings
        actions = plan.actions.copy()
        if self.layout.abort.exists():
            actions.append("mark the store as cleanly stopped (checkpoint, abort)")
        if self._has_bad_checkpoint():
            actions.append("checkpoint: move it to repair/ and write a new one")
        if dry_run:
            fixed = {audit.below_root(fix.path) for fix in plan.files}
            later = self.findings(plan.outcome(audit, self.config))
            remaining = [one for one in later if not _is_repaired(one, plan, fixed)]
        else:
            if actions:
                moved = [fix.path for fix in plan.files if not fix.grows]
                self.refuse_unwritable([*moved, *[self.layout.index] * plan.rebuilds_index])
                # After a crash entries of further queues may be missing, which alone are no fault.
                if plan.actions or self.layout.abort.exists():
                    audit = self._act(audit, plan)
                self._mark_clean(audit)
            claim(self.layout, self.disk)
            remaining = self.findings(audit)
        return RepairReport(
            self.policy, dry_run, findings, actions,
            [finding for finding in remaining if finding.severity is not Severity.NOTE],
            lost_for_broker(audit, self.config), audit.counts, self.evidence.directory,
        )  # fmt: skip

    def _has_bad_checkpoint(self) -> bool:
        """Whether the checkpoint states impossible times; a missing one is no fault."""
        found = checkpoint_findings(small_files(self.layout)(CHECKPOINT_FILE_NAME), self.now_ms)
        return any(finding.severity is not Severity.NOTE for finding in found)

    def findings(self, audit: StoreAudit) -> list[Finding]:
        """Return everything that is wrong."""
        read = small_files(self.layout)
        small = small_file_findings(read, self.now_ms, latest_ms=0, was_aborted=False)
        return [*audit.findings(), *small]

    def audit(self) -> StoreAudit:
        """Return an audit of the store, with the end of the log that the policy wants."""
        ended = None if self.is_salvage else self._ended_as_compatible
        kinds = find_kinds(self.layout, small_files(self.layout))
        return audit_store(
            self.layout, self.sizes, kinds, self.config, now_ms=self.now_ms, ended=ended
        )

    def _ended_as_compatible(self, log: LogView, files: Sequence[ReadLogFile]) -> LogView:
        has_abort = self.layout.abort.exists()
        crash = read_checkpoint(self.layout.checkpoint) if has_abort else None
        # 4.9 may take what is damage here; at the end of a log that goes too.
        log = log.cut_at(compatible_end(files, self.config, crash).end)
        # The result is marked as stopped in order: 4.9 then looks at its last three files, which
        # may begin before the file where it began after the crash, and ends the log there.
        while left := [file for file in files if file.base < log.end]:
            again = log.cut_at(compatible_end(left, self.config).end)
            if again.end >= log.end:
                break
            log = again
        return log

    def refuse_lost_log(self, audit: StoreAudit) -> None:
        """Raise where there is no log to rebuild from."""
        # Its disk may be mounted again tomorrow: nothing is made in its place.
        queues = (found for queue in audit.queues for found in queue.files.findings)
        refuse_dangling([*audit.log_findings, *queues])
        refuse_foreign(self.layout)
        refuse_one_file((file for queue in audit.queues for file in queue.files.files), {})
        if not audit.log_files:
            known = read_known_ends(self.layout.root)
            refuse_lost_log(self.layout.root, audit.entry_count, known)

    def refuse_unwritable(self, taken: Sequence[Path]) -> None:
        """Raise, before any change, where a file below `taken` cannot be moved, or another written.

        Recovery, which makes what was moved away again, opens the others for writing.
        """
        for path in self._files()[1]:
            if not any(map(path.is_relative_to, taken)):
                with self.disk.opened(path, writable=True):
                    pass
            elif not os.access(path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))

    def _files(self) -> tuple[list[Path], list[Path]]:
        """Return the directories of queues, and the files there, of the log and of the index."""
        layout = self.layout
        tops = (layout.consume_queue, layout.consume_queue_ext, layout.batch_consume_queue)
        queues = [top / str(key) for top in tops for key in listed_queues(top)]
        lengths = dict(file_lengths([*layout.commit_log_directories, *queues]))
        return queues, [*lengths, *listed_index_files(layout.index, [])]

    def _act(self, audit: StoreAudit, plan: RepairPlan) -> StoreAudit:
        """Do what is planned, and return an audit of the outcome."""
        self.begin()
        if plan.files:
            # Durably; a second run finds nothing to do.
            for fix in plan.files:
                if fix.moves:
                    self.evidence.take_file(fix.path)
                elif fix.grows:
                    grow_file(fix.path, fix.size, self.disk)
                else:
                    self.evidence.shorten_file(fix.path, fix.size)
            audit = self.audit()
            plan = plan_repair(audit, keeps_places=self.is_salvage)
        kinds = self._kinds(audit)
        for name in plan.misplaced:
            self.evidence.take_tree(self.layout.root / name)
        at_once(self._clear, plan.queues)
        for topic in plan.batch_topics:  # without its directory, recovery builds its queues
            self.evidence.take_tree(self.layout.batch_consume_queue / topic)
        if plan.rebuilds_index:
            self.evidence.take_files(self.layout.index)
        self._recover(audit, kinds)
        # `abort` is as it was: a compatible end is looked for from the same file again.
        return self.audit()

    def _clear(self, plan: QueuePlan) -> None:
        """Put fillers, which recovery replaces, at wrong entries of a queue; end it; copy all."""
        for file in plan.queue.files.files:
            path, first = file.path, file.base // ENTRY_SIZE_BYTES
            stop = first + plan.queue.file_entries
            cut = stop if plan.cut_from is None else max(plan.cut_from, first)
            if cut == first > 0:
                self.evidence.take_file(path)
                continue
            if cut >= stop and not _inside(plan.fill + plan.write + plan.keep, first, stop):
                continue
            self.evidence.copy_file(path)
            with self.disk.opened(path, writable=True) as descriptor:
                fillers, kept = (
                    (plan.fill + plan.write, FILLER_BYTES),
                    (plan.keep, KEPT_PLACE_BYTES),
                )
                for places, content in (fillers, kept):
                    for start, after in _inside(places, first, stop):
                        at = (start - first) * ENTRY_SIZE_BYTES
                        self.disk.write_at(descriptor, path, at, content * (after - start))
                at, end = (cut - first) * ENTRY_SIZE_BYTES, (stop - first) * ENTRY_SIZE_BYTES
                self.disk.zero_range(descriptor, path, at, end)
                self.disk.fdatasync(descriptor, path)

    def _kinds(self, audit: StoreAudit) -> TopicKinds:
        """Return the kinds of topics; batch topics that the table has lost stay as they are."""
        kinds = kinds_of(
            self.layout, self.config, self.sizes, disk=self.disk, clock=lambda: self.now_ms,
            keeps_memory=False,
        )  # fmt: skip
        batch = kinds.known["batch"]
        if audit.kinds.unsaid:
            batch = kinds.known["batch"] = BatchQueues(self.layout, {})
        else:
            batch.refuse_unsaid(audit.kinds.batch_topics)
        kinds.update(dict.fromkeys(audit.kinds.batch_topics, batch))
        return kinds

    def _recover(self, audit: StoreAudit, kinds: TopicKinds) -> None:
        """Let recovery make everything from the log's first byte on."""
        # Records whose queue offset cannot be.
        forged = frozenset(at for queue in audit.queues for _, at in queue.impossible)
        with ExitStack() as stack:
            parts = LoadedStore(
                self.layout, self.sizes,
                msgspec.structs.replace(self.config, check_crc_on_recover=True), disk=self.disk,
                clock=lambda: self.now_ms, drop_later=stack.callback, kinds=kinds, forged=forged,
            )  # fmt: skip
            if not self.is_salvage:
                cut_log(parts.log_files, audit.log.end, evidence=self.evidence, now_ms=self.now_ms)
            recover(
                parts,
                clean=False,
                now_ms=self.now_ms,
                policy=RecoveryPolicy.SALVAGE,
                keeps_places=self.is_salvage,
                evidence=self.evidence,
            )

    def _mark_clean(self, audit: StoreAudit) -> None:
        """Record that everything is on the disk, so that the next opening need not recover."""
        layout, newest = self.layout, audit.met.last_ms
        # 4.9 gives the numbers of a lost end again, and so does a compatible repair.
        forget_known_ends(layout.root, keep_queues=self.is_salvage, disk=self.disk)
        # A dead writer may have left bytes in the page cache only, where audits read them.
        queues, files = self._files()
        at_once(self._sync, files)
        above = dict.fromkeys(queue.parent for queue in queues)
        directories = filter(Path.is_dir, (*layout.written_directories, *above, *queues))
        at_once(self.disk.fsync_directory, [*directories])
        self._write_checkpoint(Checkpoint(newest, newest, newest))
        if layout.abort.is_file():
            self.disk.unlink(layout.abort)
            self.disk.fsync_directory(layout.root)
        elif layout.abort.exists():
            self.evidence.take_file(layout.abort)

    def _sync(self, path: Path) -> None:
        with self.disk.opened(path, writable=True) as descriptor:
            self.disk.fdatasync(descriptor, path)


def _is_repaired(one: Finding, plan: RepairPlan, fixed: set[str]) -> bool:
    """Whether a repair removes a finding; `fixed` are the files that it moves or gives a length."""
    if one.file.startswith(f"{BATCH_CONSUME_QUEUE_DIRECTORY}/"):
        return one.topic in plan.batch_topics and one.kind != UNREACHABLE
    if "-file-" in one.kind and one.kind != "queue-file-missing":  # which is made again
        return one.file in fixed
    return one.kind.startswith(_REPAIRED) or (one.kind, one.file) == _ODD_ABORT


def _inside(ranges: list[tuple[int, int]], first: int, stop: int) -> list[tuple[int, int]]:
    parts = [(max(at, first), min(after, stop)) for at, after in ranges]
    return [(at, after) for at, after in parts if at < after]
