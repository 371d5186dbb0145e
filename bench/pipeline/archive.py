"""The archive: every byte of the log to a Delta table, sorted, by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.pipeline import archive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    def job() -> None:
        result = archive(spark, store, scratch / "archive")
        assert result.records, "the store has messages"

    return job
