"""Where an archive lies: a directory, or a prefix of an object store.

Law: a run that readers see is whole. On a disk that is one whose directory is there, for it gets
its name by one rename; on an object store one whose manifest is there, for that is written last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rocketstore.errors import ArchiveError
from rocketstore.pipeline.files import is_remote
from rocketstore.pipeline.jobs.archive.layout import (
    MANIFEST,
    MESSAGES,
    local_directory,
    parse_run_name,
    run_name,
)
from rocketstore.pipeline.objects import ObjectStore


class ArchivePlace(Protocol):
    """Reads an archive."""

    @property
    def name(self) -> str:
        """The archive as people call it."""
        ...

    @property
    def location(self) -> str:
        """The URI that tasks open files by; empty on a disk."""
        ...

    def run_numbers(self) -> list[int]:
        """Return the numbers of the runs that are there, in order."""
        ...

    def path(self, *names: str) -> str:
        """Return the path of what lies below the archive."""
        ...

    def content(self, path: str) -> bytes | None:
        """Return the content of a file, None where there is none."""
        ...


def archive_place(location: str | Path) -> ArchivePlace:
    """Return the place of an archive."""
    text = str(location)
    return ObjectPlace(ObjectStore(text)) if is_remote(text) else DiskPlace(local_directory(text))


class DiskPlace:
    """An archive in a directory."""

    location = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        """The archive as people call it."""
        return str(self.directory)

    def run_numbers(self) -> list[int]:
        """Return the numbers of the runs that are there, in order."""
        directory = self.directory / MESSAGES
        try:
            names = [entry.name for entry in directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArchiveError(f"{directory} cannot be read: {error.strerror}") from error
        return sorted(run for name in names if (run := parse_run_name(name)) is not None)

    def path(self, *names: str) -> str:
        """Return the path of what lies below the archive."""
        return str(self.directory.joinpath(*names))

    def content(self, path: str) -> bytes | None:
        """Return the content of a file, None where there is none."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArchiveError(f"{path} cannot be read: {error.strerror}") from error


class ObjectPlace:
    """An archive on an object store."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    @property
    def name(self) -> str:
        """The archive as people call it."""
        return self.objects.location

    @property
    def location(self) -> str:
        """The URI that tasks open files by."""
        return self.objects.location

    def run_numbers(self) -> list[int]:
        """Return the numbers of the runs that are committed, in order."""
        runs = self.begun_runs(MESSAGES)
        # Only the last one can have been given up: the next call of `archive` sweeps it.
        if runs and self.content(self.path(MESSAGES, run_name(runs[-1]), MANIFEST)) is None:
            runs.pop()
        return runs

    def begun_runs(self, top: str) -> list[int]:
        """Return the numbers of the runs that have objects below `top`, committed or not."""
        names = [one.name for one in self.objects.files.list(self.path(top)) if one.is_directory]
        return sorted(run for name in names if (run := parse_run_name(name)) is not None)

    def path(self, *names: str) -> str:
        """Return the path of what lies below the archive."""
        return "/".join((self.objects.root, *names))

    def content(self, path: str) -> bytes | None:
        """Return the content of an object, None where there is none."""
        return self.objects.content(path)
