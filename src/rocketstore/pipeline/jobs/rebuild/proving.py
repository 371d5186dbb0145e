"""Prove that a store's queues and index are those of its CommitLog, without changing the store.

What a rebuild would make is made somewhere else and compared (`proof`, `index_proof`); for a store
on an object store see `object_proof`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rocketstore.config import StoreConfig
from rocketstore.format.markers import (
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import is_remote
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions, build
from rocketstore.pipeline.jobs.rebuild.index_proof import IndexProofTask, compare_index
from rocketstore.pipeline.jobs.rebuild.job import chosen_plan, local_place
from rocketstore.pipeline.jobs.rebuild.object_job import check_remote
from rocketstore.pipeline.jobs.rebuild.object_proof import prove_objects
from rocketstore.pipeline.jobs.rebuild.proof import (
    LOST,
    PROOF_SCHEMA,
    Difference,
    LogFacts,
    QueueProofTask,
    compare_queues,
    grouped_queues,
    log_facts,
)
from rocketstore.pipeline.jobs.rebuild.runner import SparkRunner
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from rocketstore.pipeline.jobs.execution import Progress
    from rocketstore.pipeline.jobs.rebuild.construction import Built, Plan
    from rocketstore.pipeline.jobs.rebuild.parts import Broken
    from rocketstore.pipeline.jobs.rebuild.runner import Runner
    from rocketstore.pipeline.stores import StorePlace


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
    plan: Plan | None = None,
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
        Directory for what is compared: one that all workers see; for a store on an object store,
        where each worker compares for itself, one that each has. None is the directory for
        temporary files.

    Returns
    -------
    ProofReport
        Every difference, with its reason where one is known.

    Raises
    ------
    StoreLockedError, NotAStoreError, StoreDamagedError
        As for `rebuild`.
    StoreError
        A store on an object store changed meanwhile.
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
    plan: Plan | None = None,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    staging: str | Path | None = None,
    now_ms: int,
) -> ProofReport:
    """Prove with any way of running tasks; parameters as `prove_rebuild`."""
    began = time.perf_counter()
    options = BuildOptions(
        chosen_plan(str(store), plan), config or StoreConfig(), max_split_bytes, now_ms
    )
    if is_remote(str(store)):
        location = str(store)
        check_remote(location, options)
        given = None if staging is None else str(staging)
        built, differences = prove_objects(runner, location, options, staging=given)
    else:
        place = local_place(str(store), options.config)
        location = place.location
        driver_commit.refuse_open(Path(location))
        built, differences = _prove_on_disk(runner, place, options, staging)
    return ProofReport(
        location,
        sum(one.record_count for one in built.manifests),
        built.entry_count,
        built.index_item_count,
        sorted(differences),
        built.damage,
        time.perf_counter() - began,
    )


def _prove_on_disk(
    runner: Runner, place: StorePlace, options: BuildOptions, staging: str | Path | None
) -> tuple[Built, list[Difference]]:
    with tempfile.TemporaryDirectory(prefix="rocketstore-prove-", dir=staging) as scratch:
        made = driver_commit.make_staging(Path(scratch) / "new")
        built = build(runner, place, made, options)
        root = Path(place.location)
        log = log_facts(place, built.log_end, built.damage)
        queues = list(_queue_tasks(root, made, built, log))
        return built, [
            *_rows(runner.run(queues, compare_queues, PROOF_SCHEMA)),
            *_rows(runner.run(_index_tasks(root, made, built, log), compare_index, PROOF_SCHEMA)),
        ]


def _queue_tasks(
    root: Path, made: driver_commit.Staging, built: Built, log: LogFacts
) -> Iterator[QueueProofTask]:
    tops = (root / CONSUME_QUEUE_DIRECTORY, made.queues)
    file_bytes = built.settings.queue_file_bytes
    sizes: dict[str, int] = {}
    for top in tops:
        for path in top.glob("*/*"):
            if path.is_dir():
                name = path.relative_to(top).as_posix()
                size = sum(1 for _ in path.iterdir()) * file_bytes
                sizes[name] = sizes.get(name, ENTRY_SIZE_BYTES) + size
    for names in grouped_queues(sizes):
        yield QueueProofTask(str(tops[0]), str(tops[1]), file_bytes, names, log)


def _index_tasks(
    root: Path, made: driver_commit.Staging, built: Built, log: LogFacts
) -> list[IndexProofTask]:
    if not built.settings.has_index:
        return []
    directories = (str(root / INDEX_DIRECTORY), str(made.index_files))
    return [IndexProofTask(*directories, built.settings.layout, log)]


def _rows(table: Any) -> list[Difference]:
    return [Difference(**row) for row in table.to_pylist()]
