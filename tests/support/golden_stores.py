"""Every golden store that Java read back, under one name each, with its manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.golden import CASES, CRASH_CASES, golden_case

if TYPE_CHECKING:
    from pathlib import Path

EXPIRED_VARIANTS = ("base", "files_removed", "files_and_cq_removed", "deleted_by_store")

STORES = (
    *(case for case in CASES if case != "expired"),
    *(f"expired/{variant}" for variant in EXPIRED_VARIANTS),
    *(f"crash/{variant}" for variant in CRASH_CASES),
)
"""Of the crash cases it is the store after Java's recovery."""


def golden_store(name: str) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a store in `STORES`, shared by all tests, and its manifest."""
    case, _, variant = name.partition("/")
    directory = golden_case(case)
    if case == "expired":
        store, described = directory / variant, directory / f"{variant}.manifest.json"
    elif case == "crash":
        store, described = directory / variant / "out", directory / variant / "manifest.json"
    else:
        store, described = directory / "store", directory / "manifest.json"
    loaded: dict[str, Any] = json.loads(described.read_text("utf-8"))
    return store, loaded
