"""The audit: every record, queue entry and index item against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.pipeline import SPLIT_BYTES, in_pool
from rocketstore.config import StoreConfig
from rocketstore.pipeline.jobs.audit.facts import Facts, decode, encode
from rocketstore.pipeline.jobs.audit.job import CheckTask, audit, audit_with, check
from rocketstore.pipeline.jobs.audit.places import find_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    def job() -> None:
        report = audit(spark, store, scratch / "report", max_split_bytes=SPLIT_BYTES)
        assert not report.findings, report.findings[0]

    return job


def prepare_plain(store: Path, scratch: Path, cores: int) -> Callable[[], object]:
    del scratch

    def run(tasks: Sequence[CheckTask]) -> Iterator[Facts]:
        for answers in in_pool(_check, tasks, cores):
            yield from map(decode, answers)

    def job() -> None:
        config = StoreConfig()
        places = find_places(str(store), config)
        report = audit_with(run, places, config, max_split_bytes=SPLIT_BYTES)
        assert not report.findings, report.findings[0]

    return job


def _check(task: CheckTask) -> list[bytes]:
    return [encode(one) for one in check(task)]
