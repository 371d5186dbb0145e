"""The restore of the CommitLog alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.pipeline import archive, restore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    """Return the restore of an archive that is made of the store once."""
    kept = scratch.with_name(f"{scratch.name}-log-archive")
    archive(spark, store, kept)

    def job() -> None:
        assert restore(spark, kept, scratch / "back", log_only=True).is_whole

    return job
