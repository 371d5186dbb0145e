"""The scan alone, in the driver's process: reading and checksums, what every job does at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.pipeline import scan_alone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def prepare(spark: Any, store: Path, scratch: Path) -> Callable[[], object]:
    del spark, scratch
    return lambda: scan_alone(store)
