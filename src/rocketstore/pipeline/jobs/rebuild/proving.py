"""Prove that a store's queues and index are those of its CommitLog, without changing the store.

What a rebuild would make is made somewhere else and compared (`proof`, `index_proof`).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from rocketstore.config import StoreConfig
from rocketstore.format.markers import (
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions, build
from rocketstore.pipeline.jobs.rebuild.index_proof import IndexProofTask, compare_index
from rocketstore.pipeline.jobs.rebuild.job import local_root
from rocketstore.pipeline.jobs.rebuild.proof import (
    LOST,
    PROOF_SCHEMA,
    Difference,
    LogFacts,
    QueueProofTask,
    compare_queues,
)
from rocketstore.pipeline.jobs.rebuild.runner import SparkRunner
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.pipeline.stores import list_segments
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.jobs.rebuild.construction import Built, Plan
    from rocketstore.pipeline.jobs.rebuild.parts import Broken
    from rocketstore.pipeline.jobs.rebuild.runner import Runner

PROOF_TASK_BYTES: Final = 256 * MiB
"""Queue files of one task."""


class ProofReport(NamedTuple):
    """What was compared, and every difference.

    Attributes
    ----------
    damage
        Damaged ranges of the log.
    """

    store: str
    record_count: int
    entry_count: int
    index_item_count: int
    differences: list[Difference]
    damage: list[Broken]
    seconds: float

    @property
    def findings(self) -> list[Difference]:
        """Differences for which there is no good reason."""
        return [one for one in self.differences if not one.is_explained and one.kind != LOST]

    @property
    def is_damaged(self) -> bool:
        """Whether records of the log are lost."""
        return bool(self.damage)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "store": self.store,
            "recordCount": self.record_count,
            "entryCount": self.entry_count,
            "indexItemCount": self.index_item_count,
            "isSame": not self.differences,
            "differences": [one.to_dict() for one in self.differences],
            "damage": [msgspec.structs.asdict(one) for one in self.damage],
            "seconds": round(self.seconds, 3),
        }


def prove_rebuild(  # noqa: PLR0913 - keywords, each a choice of the caller
    spark: SparkSession,
    store: str | Path,
    *,
    plan: Plan = "posix",
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    staging: str | Path | None = None,
    progress: Progress | None = None,
) -> ProofReport:
    """Compare a store's queues and index with what `rebuild` would make of its CommitLog.

    Parameters
    ----------
    spark, store, plan, config, max_split_bytes, progress
        As for `rebuild`.
    staging
        Directory that all workers see, for what is compared; None is this machine's directory for
        temporary files.

    Returns
    -------
    ProofReport
        Every difference, with its reason where one is known.

    Raises
    ------
    StoreLockedError, NotAStoreError, StoreDamagedError
        As for `rebuild`.
    """
    return prove_with(
        SparkRunner(spark, progress),
        store,
        plan=plan,
        config=config,
        max_split_bytes=max_split_bytes,
        staging=staging,
        now_ms=time.time_ns() // 1_000_000,
    )


def prove_with(  # noqa: PLR0913 - keywords, each a choice of the caller
    runner: Runner,
    store: str | Path,
    *,
    plan: Plan = "posix",
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    staging: str | Path | None = None,
    now_ms: int,
) -> ProofReport:
    """Prove with any way of running tasks; parameters as `prove_rebuild`."""
    began = time.perf_counter()
    root = local_root(str(store))
    driver_commit.refuse_open(root)
    with tempfile.TemporaryDirectory(prefix="rocketstore-prove-", dir=staging) as scratch:
        made = driver_commit.make_staging(Path(scratch) / "new")
        options = BuildOptions(plan, config or StoreConfig(), max_split_bytes, now_ms)
        built = build(runner, root, made, options)
        log = _log_facts(root, built)
        differences = [
            *_rows(
                runner.run(list(_queue_tasks(root, made, built, log)), compare_queues, PROOF_SCHEMA)
            ),
            *_rows(runner.run(_index_tasks(root, made, built, log), compare_index, PROOF_SCHEMA)),
        ]
    return ProofReport(
        str(root),
        sum(one.record_count for one in built.manifests),
        built.entry_count,
        built.index_item_count,
        sorted(differences),
        built.damage,
        time.perf_counter() - began,
    )


def _log_facts(root: Path, built: Built) -> LogFacts:
    segments = list_segments(str(root))
    return LogFacts(
        str(root / COMMIT_LOG_DIRECTORY),
        max((one.file_size for one in segments), default=1),
        segments[0].base if segments else 0,
        built.log_end,
        tuple((one.start, one.stop) for one in built.damage),
    )


def _queue_tasks(
    root: Path, made: driver_commit.Staging, built: Built, log: LogFacts
) -> Iterator[QueueProofTask]:
    """Yield tasks of about `PROOF_TASK_BYTES`, each some whole queues."""
    tops = (root / CONSUME_QUEUE_DIRECTORY, made.queues)
    sizes: dict[str, int] = {}
    for top in tops:
        for path in top.glob("*/*"):
            if path.is_dir():
                name = path.relative_to(top).as_posix()
                size = sum(1 for _ in path.iterdir()) * built.settings.queue_file_bytes
                sizes[name] = sizes.get(name, ENTRY_SIZE_BYTES) + size
    group: list[str] = []
    for name in sorted(sizes):
        if group and sum(sizes[one] for one in group) + sizes[name] > PROOF_TASK_BYTES:
            yield _queue_task(tops, built, group, log)
            group = []
        group.append(name)
    if group:
        yield _queue_task(tops, built, group, log)


def _queue_task(
    tops: tuple[Path, Path], built: Built, names: Sequence[str], log: LogFacts
) -> QueueProofTask:
    file_bytes = built.settings.queue_file_bytes
    return QueueProofTask(str(tops[0]), str(tops[1]), file_bytes, tuple(names), log)


def _index_tasks(
    root: Path, made: driver_commit.Staging, built: Built, log: LogFacts
) -> list[IndexProofTask]:
    if not built.settings.has_index:
        return []
    directories = (str(root / INDEX_DIRECTORY), str(made.index_files))
    return [IndexProofTask(*directories, built.settings.layout, log)]


def _rows(table: Any) -> list[Difference]:
    return [Difference(**row) for row in table.to_pylist()]
