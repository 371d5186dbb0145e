"""What a figure was measured on: machine, versions, commit."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("numpy", "Cython", "isal", "msgspec")


def describe(directory: Path) -> dict[str, Any]:
    """Return the machine; `directory` is where the stores are written."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memoryGb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "fileSystem": _output(["stat", "-f", "-c", "%T", str(directory)]),
        "loadAverageBefore": round(os.getloadavg()[0], 2),
    }


def versions(java: str | None) -> dict[str, Any]:
    """Return the versions of everything that runs; `java` is the command of the JVM."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = None
    if java is not None:
        result = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)
        found["java"] = result.stderr.splitlines()[1] if result.stderr else None
        found["rocketmq-store"] = "4.9.8"
    return found


def cpu_model() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def slug() -> str:
    """Return a short name of the machine, for file names."""
    words = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    return f"{words}-{os.cpu_count()}-cores"


def commit() -> str:
    """Return the short commit id, with ``-dirty`` when sources differ from it."""
    short = _output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    changed = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--", "src", "bench"])
    return f"{short}-dirty" if changed else short


@contextlib.contextmanager
def kept_awake(cores: Iterable[int]) -> Iterator[None]:
    """Let no core halt: each has a process that runs only while nothing else wants to."""
    spin = (
        "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); "
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    )
    running = [subprocess.Popen([sys.executable, "-S", "-c", spin, str(one)]) for one in cores]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
