"""Every golden store that Java read back, under one name each, with its manifest."""

from pathlib import Path
from typing import Any

import msgspec

from support.golden import CASES, CRASH_CASES, golden_case

EXPIRED_VARIANTS = ("base", "files_removed", "files_and_cq_removed", "deleted_by_store")

STORES = (
    *(case for case in CASES if case != "expired"),
    *(f"expired/{variant}" for variant in EXPIRED_VARIANTS),
    *(f"crash/{variant}" for variant in CRASH_CASES),
)
"""Of the crash cases it is the store after Java's recovery."""

SAME_LOG = {
    "expired/files_and_cq_removed": "expired/files_removed",
    **dict.fromkeys(
        ("crash/checkpoint_zero", "crash/cq_behind", "crash/cq_deleted", "crash/index_deleted"),
        "crash/plain",
    ),
    "crash/torn_half_zero": "crash/noabort_torn",
}
"""Stores with the log and the tables of another one, but for what is made of the log."""

OTHER_QUEUES = ("expired/files_and_cq_removed", "crash/cq_deleted")
"""Those of them that have other queues too."""

LOGS = tuple(name for name in STORES if name not in SAME_LOG)
"""Stores for tests of what reads only the log."""

QUEUES = (*LOGS, *OTHER_QUEUES)
"""Stores for tests of what reads only the log and the queues."""


def golden_root(name: str) -> Path:
    """Return the directory of a store in `STORES`, shared by all tests."""
    return _places(name)[0]


def golden_store(name: str) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a store in `STORES` and its manifest: megabytes, for each test."""
    store, described = _places(name)
    return store, msgspec.json.decode(described.read_bytes())


def _places(name: str) -> tuple[Path, Path]:
    case, _, variant = name.partition("/")
    directory = golden_case(case)
    if case == "expired":
        return directory / variant, directory / f"{variant}.manifest.json"
    if case == "crash":
        return directory / variant / "out", directory / variant / "manifest.json"
    return directory / "store", directory / "manifest.json"
