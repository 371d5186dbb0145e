"""Which files of a log or a queue are usable, by their names and lengths.

Law: a file that does not fit its name or its neighbours is left out and reported, never guessed
about. A short one is usable as far as it goes, a long one up to its nominal size.

How derived: MappedFileQueue.load of 4.9 (spec F2).
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rocketstore.errors import NotAStoreError, StoreError
from rocketstore.format.file_name import file_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES

AnyPath = TypeVar("AnyPath", bound=str | Path)


def no_store(place: Path | str, log: Path | None = None) -> NotAStoreError:
    """Return the error that no log is at a place; a `Path`, and `log`, can be looked at."""
    what = "it has no commitlog directory"
    if isinstance(place, Path):
        log = log or place / "commitlog"
        if not place.is_dir():
            what = "it is a file" if place.exists() else "it is not there"
        elif log.is_symlink():
            what = in_the_way(log)[0]
        elif log != place / "commitlog":
            what = f"the directory of its log, {log}, is not there"
    hint = "give the directory that holds commitlog, consumequeue and index; if this is it, bring "
    hint += "commitlog back, or set storePathCommitLog to where the log lies"
    return NotAStoreError(f"{place} is not a store: {what}", hint=hint)


def dledger_log(path: Path | str) -> NotAStoreError:
    """Return the error that a log is one of DLedger."""
    return NotAStoreError(
        f"{path} is the log of a DLedger broker, which is neither read nor written here",
        hint="let the broker run; to continue without its messages, move it out of the store",
    )


def lost_log(
    place: Path | str, error: type[StoreError] = NotAStoreError, said: str = ""
) -> StoreError:
    """Return the error that queues or ``known-ends`` are there, and no file of their log (K-R10).

    4.9 deletes every queue then, and consumers' offsets point far beyond.
    """
    hint = "mount the disk of its log, or bring the files back: queues can be made again, not a log"
    hint += "; to begin an empty store, move consumequeue, index and known-ends away"
    return error(f"{place} had messages, and has no CommitLog file{said}", hint=hint)


def in_the_way(path: Path) -> tuple[str, str]:
    """Return what has the place of a directory that cannot be made, and what to do about it."""
    links = (one for one in (path, *path.parents) if one.is_symlink() and not one.exists())
    link = next(links, None)
    if link is None:
        return "something that is no directory has its name", "move it away, or name another place"
    why = f"{link} is a link to {link.readlink()}, which is not there"
    return why, "make, or mount, what it points to, or name another place"


class FileProblem(Enum):
    """What can be wrong with a file before one byte of it is read."""

    WRONG_NAME = "WRONG_NAME"
    """Its name is not an offset in 20 digits."""
    NOT_A_FILE = "NOT_A_FILE"
    """A directory, or something else that is no file, has such a name."""
    DANGLING_LINK = "DANGLING_LINK"
    """It is a link, and what it points to is not there."""
    EMPTY = "EMPTY"
    """It has no bytes."""
    WRONG_SIZE = "WRONG_SIZE"
    """Its size is not that of its neighbours."""
    MISPLACED = "MISPLACED"
    """Its offset is no multiple of the file size."""
    DUPLICATE = "DUPLICATE"
    """Another directory holds a file of this name."""
    MISSING = "MISSING"
    """It is missing between its neighbours: a hole."""

    @property
    def kind(self) -> str:
        """The suffix of its finding's kind."""
        return self.value.lower().replace("_", "-")


class FileFinding(NamedTuple, Generic[AnyPath]):
    """Something wrong with a file, also a missing one; expected and found are words."""

    path: AnyPath
    problem: FileProblem
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem.value}, expected {self.expected}, found {self.found}"


File = TypeVar("File", bound=Any)
"""A named tuple with `base`, the offset in its name, `size` and `path`."""


def usual_size(files: Sequence[File]) -> int:
    """Return the size that all files should have, learnt from their names and lengths.

    Damage may have changed a length, and a stray file may have any name: the size is the commonest
    length with which most files begin where one should, else a distance between two of them; none
    is shorter than an entry of a queue.
    """
    lengths = Counter(file.size for file in files if file.size)
    steps = {after.base - before.base for before, after in itertools.pairwise(files)}
    if len(lengths) > 1:  # the shortest may be a stranger's, and a little after another file
        steps = {step for step in steps if step >= max(lengths)}

    def weight(size: int) -> tuple[bool, int, int, int]:
        fitting = max(Counter(file.base % size for file in files).values())
        return 2 * fitting > len(files), lengths[size], fitting, size

    told = {size for size in lengths.keys() | steps if size >= ENTRY_SIZE_BYTES}
    return max(told or lengths, key=weight, default=0)


def usual_place(files: Iterable[File], file_size: int) -> int:
    """Return at which remainder of a size most files begin: at 0, but in a log that was cut out."""
    places = Counter(file.base % file_size for file in files if file_size)
    return max(places, key=lambda place: (places[place], place == 0), default=0)


def in_order(files: Iterable[File], file_size: int) -> list[File]:
    """Return files by offset; of two with one name the copy that was cut short comes later."""
    return sorted(files, key=lambda file: (file.base, -min(file.size, file_size)))


def usable_files(
    listed: Iterable[File], file_size: int, findings: list[FileFinding[AnyPath]]
) -> list[File]:
    """Return the usable files of a list, in order; faults of the others go to `findings`."""
    files: list[File] = []

    def report(path: AnyPath, problem: FileProblem, expected: str, found: str) -> None:
        findings.append(FileFinding(path, problem, expected, found))

    place = usual_place(listed := in_order(listed, file_size), file_size)
    for file in listed:
        path = file.path
        is_misplaced = bool(file_size) and file.base % file_size != place
        if files and file.base == files[-1].base:
            report(path, FileProblem.DUPLICATE, "one file of a name", str(files[-1].path))
            continue
        if file.size == 0 and not is_misplaced:
            report(path, FileProblem.EMPTY, f"{file_size} bytes", "0 bytes")
            continue
        if file.size not in {0, file_size}:
            found = f"{file.size} bytes"
            report(path, FileProblem.WRONG_SIZE, f"{file_size} bytes", found)
        if is_misplaced:
            expected = f"a multiple of {file_size}" + (f" and {place}" if place else "")
            report(path, FileProblem.MISPLACED, expected, str(file.base))
            continue
        missing = files[-1].base + file_size if files else file.base
        if missing < file.base:
            count, name = (file.base - missing) // file_size, file_name(file.base)
            hole = type(path)(f"{str(path).rpartition('/')[0]}/{file_name(missing)}")
            report(hole, FileProblem.MISSING, f"{count} file(s) up to {name}", "none")
        files.append(file._replace(size=min(file.size, file_size)))
    return files
