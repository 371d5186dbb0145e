"""Leftovers of killed jobs in a place, and whether a running job may still need them.

A job's directory says which process the job ends with: by its number, when it was started, and the
boot and namespace in which these mean something. Where these are not valid here, time decides.

Law: files that a running job or the next write needs are not removed. See docs/decisions/0039.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

import psutil

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.environment import is_worker
from rocketstore.places.files import LocalFiles
from rocketstore.places.location import is_remote, local_path

OWNER: Final = ".owner"
UNTOUCHED_H: Final = 24
_UNPUBLISHED: Final = re.compile(r"\..+\.[0-9a-f]{12}\.partial")


def claim(directory: Path) -> None:
    """Write into a new directory of a job which process the job ends with, if that is known."""
    holders = [psutil.Process()]
    if is_worker():  # may end before its job, which ends with the JVM
        holders = [one for one in holders[0].parents() if one.name() == "java"]
    for pid in [one.pid for one in holders[:1]]:
        with suppress(OSError):
            (directory / OWNER).write_text(json.dumps([_machine(), pid, _started(pid)]))


def _machine() -> str:
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return f"{boot.read_text().strip()} {space.readlink()}" if boot.exists() else ""


def _started(pid: int) -> str | None:
    """Return when a process was started, in ticks of its boot; None where none runs."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else facts[18]


def sweep(place: str, *, remove: bool, untouched_h: float = UNTOUCHED_H) -> list[dict[str, Any]]:
    """Return the leftovers in or beside a place, and why they stay; remove the rest if told."""
    if is_remote(place):
        hint = "list what has no _SUCCESS and no writer, and delete it"
        raise ConfigError(f"{place} is not on a disk", key="place", value=place, hint=hint)
    if not untouched_h >= 0:  # also a NaN, with which nothing would be held
        hint = "give hours from 0 on"
        what = f"untouched_hours={untouched_h} is no length of time"
        raise ConfigError(what, key="untouched_hours", value=untouched_h, hint=hint)
    found = []
    for path, needed in _directories(Path(local_path(place))):
        stats = list(_stats(path))
        idle_s = time.time() - max((one.st_mtime for one in stats), default=time.time())
        held = needed or _holder(path, idle_s, untouched_h)
        if remove and not held:
            try:
                shutil.rmtree(path)
            except OSError as error:
                what = f"{path} cannot be removed whole: {error.strerror}"
                raise StoreError(what, hint="let this user write there, and sweep again") from error
        state = "held" if held else "removed" if remove else "left"
        size = sum(one.st_size for one in stats if S_ISREG(one.st_mode))
        found.append({"state": state, "size": size, "path": str(path), "why": held})
    return found


def _stats(root: Path) -> Iterator[os.stat_result]:
    """Yield the state of a directory and of all below it, except what is deleted meanwhile."""
    for directory, _, names in os.walk(root):
        for name in (".", *names):
            with suppress(FileNotFoundError):
                yield Path(directory, name).lstat()


def _directories(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield directories of jobs, each with the reason why it is always needed, if any."""
    beside = root.parent.glob(f".{escape(root.name)}.*")
    for path in sorted({*root.glob(".*"), *beside}):
        if _UNPUBLISHED.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path, ""
    for sink in sorted({root / "sink", *root.glob("*/sink")}):
        # A listing, since `glob` takes what may not be read for empty.
        is_open = any(one.name == "intent.json" for one in LocalFiles().list(str(sink)))
        needed = "the next write to the store ends the commit of its intent.json" * is_open
        for one in LocalFiles().list(str(sink / "staging")):
            if one.is_directory:
                yield Path(one.path), needed


def _holder(path: Path, idle_s: float, untouched_h: float) -> str:
    """Return the process that holds a directory, or may hold it, in words; empty without one."""
    try:
        machine, pid, started = json.loads((path / OWNER).read_text())
    except (OSError, ValueError):
        machine = None
    if machine and machine == _machine():
        return f"process {pid} runs" if _started(pid) == started else ""
    is_fresh = idle_s < untouched_h * 3600
    what = f"changed {idle_s / 3600:.1f} h ago by a process that is not known here"
    return what if is_fresh else ""
