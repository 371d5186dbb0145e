"""Retention: which files may be deleted, when, and by which rule; and whether a disk is too full.

A CommitLog file is deleted when its last message is old enough (`fileReservedTime`) and the hour is
right (`deleteWhen`), the disk is filling up, or a user asked for it; on a nearly full disk also
before its time. Files of queues and index follow the CommitLog's minimum. Files are deleted whole,
oldest first, a few per round with pauses in between, and the newest of each kind stays.

Law: every deletion is logged with its file and its rule. A file that is not wholly dispatched, or
that a reader holds, stays. A disk whose fullness is unknown counts as not full (K-E8).

How derived: CleanCommitLogService, CleanConsumeQueueService and
MappedFileQueue.deleteExpiredFileByTime of 4.9 (spec B17) without K-E1, K-E4, K-E5, K-E8, K-E10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.config.grammars import parse_delete_hours
from rocketstore.errors import ConfigError
from rocketstore.events import get_logger
from rocketstore.rules.leftovers import TIME_WITNESS_COUNT
from rocketstore.scan.scanner import scan_window
from rocketstore.storage.running_flags import RunningFlag, RunningFlags
from rocketstore.storage.threads import Seldom, StopSign
from rocketstore.units import HOUR_MS, KiB, monotonic_ms

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.queues.queue_table import ConsumeQueueTable

_log: Final = get_logger(__name__)

MANUAL_ROUNDS: Final = 20
"""Rounds in which a manual request may delete (MAX_MANUAL_DELETE_FILE_TIMES)."""

QUEUE_FORCE_AFTER_MS: Final = 60_000
"""How long an expired queue file waits for its readers (ConsumeQueue.deleteExpiredFile)."""

_FIRST_WINDOW_BYTES: Final = 64 * KiB


class RetentionRule(Enum):
    """Why a file was deleted."""

    EXPIRED_AT_HOUR = "older than fileReservedTime, in an hour of deleteWhen"
    EXPIRED_DISK_FILLING = "older than fileReservedTime, disk above diskMaxUsedSpaceRatio"
    EXPIRED_MANUALLY = "older than fileReservedTime, asked for by hand"
    FORCED = "before its time, disk above the ratio of forced deletion"
    HUNG = "its deletion was begun earlier and waited for a reader"
    BELOW_LOG = "every record it knows is gone from the CommitLog"


class DeletedFile(NamedTuple):
    """A deleted file, and the reason."""

    path: Path
    rule: RetentionRule


class DiskUsage(NamedTuple):
    """How full the partitions are, 0.0 to 1.0; None where it is unknown.

    `log` is the least full partition of the CommitLog directories.
    """

    log: float | None
    queues: float | None

    @property
    def highest(self) -> float:
        """The fuller of the two; 0.0 when nothing is known."""
        return max(self.log or 0.0, self.queues or 0.0)


@dataclass
class Retention:
    """Deletes files by the rules.

    `used_ratio` says how full the partition of a directory is. ``deleteWhen`` is in the zone `tz`,
    None being that of this process, as in Java. `pause` waits between two deletions.

    `stopping` lets the round under way end after the file it is at: the store is being closed.
    `full_directories` of the CommitLog are too full for new files (spec F1.1); in the next
    `manual_rounds_left` rounds expired files are deleted at any hour, because a user asked for it.
    """

    _files: MappedFileQueue
    _table: ConsumeQueueTable
    _index: IndexService
    config: StoreConfig
    layout: StoreLayout
    used_ratio: Callable[[Path], float | None]
    flags: RunningFlags
    dispatched_offset: Callable[[], int]
    clock: Callable[[], int]
    monotonic: Callable[[], int] = monotonic_ms
    tz: tzinfo | None = None
    pause: Callable[[float], object] | None = None

    def __post_init__(self) -> None:
        self.full_directories: frozenset[Path] = frozenset()
        self.stopping = StopSign()
        self._wait = self.pause or self.stopping.wait
        self._hours = parse_delete_hours(self.config.delete_when)
        self.manual_rounds_left = 0
        self._cleaned_to = -1
        self._last_hung_try_ms = self.monotonic()
        self._last_times: dict[int, int | None] = {}
        self._filling = Seldom(self.monotonic)

    def check_disk(self) -> DiskUsage:
        """Check how full the partitions are, and set or clear the flag of each (K-E4)."""
        directories = self.layout.commit_log_directories
        ratios = ((path, self.used_ratio(path)) for path in directories)
        known = {path: ratio for path, ratio in ratios if ratio is not None}
        usage = DiskUsage(
            min(known.values(), default=None), self.used_ratio(self.layout.consume_queue)
        )
        limit = self.config.disk_space_clean_forcibly_ratio
        self.full_directories = frozenset(path for path, ratio in known.items() if ratio > limit)
        self._flag(RunningFlag.DISK_FULL, usage.log, "CommitLog")
        self._flag(RunningFlag.QUEUE_DISK_FULL, usage.queues, "queues")
        return usage

    def _flag(self, flag: RunningFlag, ratio: float | None, what: str) -> None:
        limit = self.config.disk_space_warning_level_ratio
        if ratio is not None and ratio > limit:
            if self.flags.set(flag, f"disk of the {what} is {ratio:.0%} full, limit {limit:.0%}"):
                _log.error("disk.full", what=what, used_ratio=ratio, limit_ratio=limit)
        elif self.flags.clear(flag):
            _log.info("disk.has_room", what=what, used_ratio=ratio, limit_ratio=limit)

    def delete_manually(self) -> None:
        """Let the next rounds delete expired files at any hour (executeDeleteFilesManually).

        `ConfigError` where retention is off: there is no next round.
        """
        if not self.config.retention:
            raise ConfigError(
                f"retention is off for {self.layout.root}, so nothing is deleted",
                key="retention",
                value=False,
                hint="open the store with StoreConfig(retention=True)",
            )
        self.manual_rounds_left = MANUAL_ROUNDS

    def run_once(self) -> list[DeletedFile]:
        """Do one round; return the deleted files, in order."""
        usage = self.check_disk()
        if not self.config.retention:
            return []
        deleted = self._delete_log_files(usage)
        deleted += self._retry_hung()
        deleted += self._follow_log()
        for path, rule in deleted:
            # Deleted messages are logged as a warning; queue and index files can be built again.
            say = _log.info if rule is RetentionRule.BELOW_LOG else _log.warning
            say("retention.deleted", path=str(path), rule=rule.name, reason=rule.value)
        return deleted

    def _delete_log_files(self, usage: DiskUsage) -> list[DeletedFile]:
        config = self.config
        rule = self._rule(usage)
        is_nearly_full = usage.highest > config.disk_space_clean_forcibly_ratio
        may_force = is_nearly_full and config.clean_file_forcibly_enable
        forced = RetentionRule.FORCED if may_force else None
        if rule is None and not may_force:
            return []
        _log.info(
            "retention.round",
            rule=None if rule is None else rule.name,
            may_force=may_force,
            used_ratio=usage.highest,
            manual_rounds_left=self.manual_rounds_left,
            files=len(self._files.files),
        )
        deleted: list[DeletedFile] = []
        is_blocked = False
        while len(self._files.files) > 1 and len(deleted) < config.delete_file_batch_max:
            file = self._files.files[0]
            applied = rule if rule is not None and self._is_expired(file) else forced
            if applied is None or file.base + file.size > self.dispatched_offset():
                break
            if deleted:
                self._wait(config.delete_commit_log_files_interval / 1000)
            if self.stopping.is_set():
                break
            went = self._remove_first(applied)
            if not went:
                is_blocked = True
                break
            self._last_times.pop(file.base, None)
            deleted += went
        if rule is RetentionRule.EXPIRED_MANUALLY and not (is_blocked and not deleted):
            # A round that deleted a file counts; a request without files to delete is done (K-E10).
            self.manual_rounds_left = self.manual_rounds_left - 1 if deleted else 0
        is_filling = is_nearly_full or self._is_filling(usage)
        if self._filling.is_due(is_nearly_full if is_filling and not deleted else None):
            _log.warning(
                "retention.nothing_to_delete",
                used_ratio=usage.highest,
                oldest=str(self._files.files[0].path) if self._files.files else None,
                reason="the oldest file is too young, being read, not dispatched, or the only one",
                may_force=config.clean_file_forcibly_enable,
            )
        return deleted

    def _rule(self, usage: DiskUsage) -> RetentionRule | None:
        """Return the rule by which expired files are deleted in this round, or None."""
        moment = datetime.fromtimestamp(self.clock() // 1000, UTC).astimezone(self.tz)
        if moment.hour in self._hours:
            return RetentionRule.EXPIRED_AT_HOUR
        if self._is_filling(usage):
            return RetentionRule.EXPIRED_DISK_FILLING
        return RetentionRule.EXPIRED_MANUALLY if self.manual_rounds_left > 0 else None

    def _is_filling(self, usage: DiskUsage) -> bool:
        return usage.highest > self.config.disk_max_used_space_percent / 100

    def _is_expired(self, file: MappedFile) -> bool:
        """Whether the newest of a file's last readable records is old enough."""
        now_ms, newest, files = self.clock(), None, self._files.files
        for one in files[files.index(file) :]:
            newest = self._last_times.get(one.base, now_ms + 1)
            if newest is not None and newest > now_ms:
                newest = newest_store_time(one, now_ms)
                if one is not files[-1]:  # to which more is written
                    self._last_times[one.base] = newest
            if newest is not None and newest <= now_ms:
                break
            # Nothing of it can be read, or all of it was written while the clock was ahead: before
            # the next file, at least.
        age_limit_ms = self.config.file_reserved_time * HOUR_MS
        return newest is not None and now_ms >= newest + age_limit_ms

    def _retry_hung(self) -> list[DeletedFile]:
        """Try again to delete a first file whose deletion once began (redeleteHangedFile)."""
        interval_ms = self.config.redelete_hanged_file_interval
        files, now_ms = self._files.files, self.monotonic()
        if not files or files[0].is_available or now_ms - self._last_hung_try_ms <= interval_ms:
            return []
        self._last_hung_try_ms = now_ms
        return self._remove_first(RetentionRule.HUNG)

    def _remove_first(self, rule: RetentionRule) -> list[DeletedFile]:
        """Delete the first file of the log; nothing goes where a reader still holds it."""
        wait_ms = self.config.destroy_mapped_file_interval_forcibly
        path = self._files.remove_first(force_after_ms=wait_ms, now_ms=self.monotonic())
        return [] if path is None else [DeletedFile(path, rule)]

    def _follow_log(self) -> list[DeletedFile]:
        """Delete queue and index files that know only records before the CommitLog's minimum."""
        log_min = self._files.min_offset
        if log_min <= self._cleaned_to:
            return []
        gone: list[Path] = []
        is_whole = True
        for queue in self._table.every():
            if self.stopping.is_set():
                is_whole = False
                break
            paths, is_done = queue.delete_expired(
                log_min, force_after_ms=QUEUE_FORCE_AFTER_MS, now_ms=self.monotonic()
            )
            is_whole &= is_done
            gone += paths
            if paths:
                self._wait(self.config.delete_consume_queue_files_interval / 1000)
        gone += self._index.delete_expired(log_min, now_ms=self.monotonic())
        if is_whole:
            self._cleaned_to = log_min
        return [DeletedFile(path, RetentionRule.BELOW_LOG) for path in gone]


def newest_store_time(file: MappedFile, now_ms: int) -> int | None:
    """Return the newest store time in the last readable stretch of a file; None without any.

    Not the modification time, which a copy changes (K-E1), unless the last records are stored in
    the future: then their times are those of a clock that was ahead, maybe in an earlier file.
    """
    window = _FIRST_WINDOW_BYTES
    while True:
        stop = file.write_position
        start = max(stop - window, 0)
        batches = scan_window(
            file.array, base=file.base, start=start, data_stop=stop, check_crc=False
        )
        times = np.concatenate(
            [np.empty(0, np.int64), *(batch.columns.store_timestamp for batch in batches)]
        )
        past = times[times <= now_ms]  # a single later time is a damaged header
        if times.size and np.median(times[-TIME_WITNESS_COUNT:]) > now_ms:
            written_ms = file.path.stat().st_mtime_ns // 1_000_000
            return max(int(past.max(initial=0)), written_ms)
        if past.size or start == 0:
            return int(past.max(initial=0)) or None
        window *= 8
