"""Put a report in the place of an earlier one, so that no page is ever seen beside other tables.

Nothing replaces a file and a directory in one step. So the earlier page goes first and the new one
comes last, and in between there is none:

    .rocketstore-report-<id>/owner      the page's name; locked while the run lives
                             tables/    page  json         new, whole and synced
                             earlier-page  earlier-json  earlier-tables/

Law: where there is a page, tables and JSON beside it are its own. Until the new page is in place
everything can be undone: by the run that fails, or by the next one when it was killed.

How derived: decision 0012.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.pipeline.files import sync_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLES_SUFFIX: Final = ".tables"
PARTIAL: Final = ".rocketstore-report-"
_OWNER: Final = "owner"
_EARLIER: Final = "earlier-"


class OutputPlaces(NamedTuple):
    """Where a report's files go."""

    page: Path
    tables: Path
    json: Path

    @classmethod
    def of(cls, page: Path) -> OutputPlaces:
        """Return the places beside a page."""
        return cls(page, page.with_suffix(TABLES_SUFFIX), page.with_suffix(".json"))


@contextlib.contextmanager
def workspace_for(places: OutputPlaces) -> Iterator[Path]:
    """Make a directory beside the page for the length of a ``with`` block; sweep those of the dead.

    Raises
    ------
    OSError
        It cannot be made.
    """
    parent = places.page.parent
    with _locked(parent):
        for one in sorted(parent.glob(f"{PARTIAL}*")):
            _sweep_if_dead(one)
        workspace = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=parent))
        owner = _owned(workspace, places.page.name)
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        os.close(owner)


def replace_report(
    workspace: Path, places: OutputPlaces, step: Callable[[str], None] = lambda _name: None
) -> None:
    """Put what is whole in a workspace in its place.

    Parameters
    ----------
    step
        Told before each step; a test's own may end the process there.

    Raises
    ------
    OSError
        Something cannot be renamed; the earlier report is there as it was.
    """
    with _locked(places.page.parent):
        try:
            for name in ("page", "json", "tables"):
                step(f"{name} away")
                _move(getattr(places, name), workspace / f"{_EARLIER}{name}")
            for name in ("tables", "json", "page"):
                step(name)
                (workspace / name).rename(getattr(places, name))
        except BaseException:
            _undo(workspace, places)
            raise
        step("sync")
        sync_path(places.page.parent)


def _undo(workspace: Path, places: OutputPlaces) -> None:
    """Put an earlier report back, unless the new one's page is in place: then all of it is."""
    if not (workspace / "page").exists():
        return
    for name in ("json", "tables"):
        if not (workspace / name).exists():
            _move(getattr(places, name), workspace / name)
    for name in ("tables", "json", "page"):
        _move(workspace / f"{_EARLIER}{name}", getattr(places, name))


def _move(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        source.rename(target)


def _sweep_if_dead(workspace: Path) -> None:
    """Undo what a run that has ended did not finish, and remove its workspace."""
    with contextlib.suppress(OSError):
        owner = os.open(workspace / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = os.read(owner, 4096).decode("utf-8", "surrogateescape")
            # Without a name it was killed before it wrote anything.
            if name and "/" not in name:
                _undo(workspace, OutputPlaces.of(workspace.parent / name))
            shutil.rmtree(workspace)
        finally:
            os.close(owner)


def _owned(workspace: Path, name: str) -> int:
    """Write down whose a workspace is; it is locked as long as the descriptor is open."""
    owner = os.open(workspace / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody sweeps
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(owner, os.fsencode(name))
    return owner


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other reports out of a directory while files there change places."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
