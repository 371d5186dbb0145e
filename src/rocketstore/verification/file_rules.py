"""Which files of a log or a queue are usable, by their names and lengths.

Law: a file that does not fit its name or its neighbours is left out and reported, never guessed
about. A short one is usable as far as it goes, a long one up to its nominal size.

How derived: MappedFileQueue.load of 4.9 (spec F2).
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.verification.findings import DANGLING_HINT, Finding, Severity, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rocketstore.units import QueueKey

AnyPath = TypeVar("AnyPath", bound=str | Path)

_LOOKED_AT_BYTES: Final = 256
"""More than a header; a record's last bytes may well be zeros."""


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


def usable_files(
    listed: Iterable[File], file_size: int, findings: list[FileFinding[AnyPath]]
) -> list[File]:
    """Return the usable files of an ordered list; faults of the others go to `findings`."""
    files: list[File] = []

    def report(path: AnyPath, problem: FileProblem, expected: str, found: str) -> None:
        findings.append(FileFinding(path, problem, expected, found))

    for file in listed:
        path = file.path
        if file.size == 0:
            report(path, FileProblem.EMPTY, f"{file_size} bytes", "0 bytes")
            continue
        if file.size != file_size:
            found = f"{file.size} bytes"
            report(path, FileProblem.WRONG_SIZE, f"{file_size} bytes", found)
        if files and file.base == files[-1].base:
            report(path, FileProblem.DUPLICATE, "one file of a name", str(files[-1].path))
            continue
        if files and (file.base - files[0].base) % file_size:
            expected = f"a multiple of {file_size} after {files[0].base}"
            report(path, FileProblem.MISPLACED, expected, str(file.base))
            continue
        missing = files[-1].base + file_size if files else file.base
        if missing < file.base:
            count, name = (file.base - missing) // file_size, file_name(file.base)
            hole = type(path)(f"{str(path).rpartition('/')[0]}/{file_name(missing)}")
            report(hole, FileProblem.MISSING, f"{count} file(s) up to {name}", "none")
        files.append(file._replace(size=min(file.size, file_size)))
    return files


def log_file_findings(
    problems: Iterable[FileFinding[AnyPath]],
    last_base: int | None,
    entry_count: int,
    shown: Callable[[AnyPath], str],
    last_bytes: Callable[[AnyPath, int], bytes],
) -> Iterator[Finding]:
    """Yield what is wrong with the files of a log.

    The last usable one has `last_base`, None where there is no file beside so many queue entries.
    `shown` returns the name that a report has for a path, `last_bytes` so many bytes of a file's
    end: where they are not all zeros it was cut off inside its records.
    """
    for one in problems:
        if one.problem is FileProblem.MISSING:
            continue  # reported with its range as a hole of the log
        severity, action = Severity.WARNING, "repair moves it away; 4.9 may not start with it"
        if one.problem is FileProblem.NOT_A_FILE:
            action = "move it away; 4.9 may not start with it"
        elif one.problem in {FileProblem.EMPTY, FileProblem.WRONG_SIZE}:
            base = parse_file_name(str(one.path).rpartition("/")[2])
            is_last = (base or 0) >= (last_base or 0)
            if is_last and not any(last_bytes(one.path, _LOOKED_AT_BYTES)):
                action = "the next opening, or repair, gives it its length with zeros"
            else:
                severity = Severity.DAMAGE
                action = "repair gives it its length; 4.9 does not start with it"
        yield _file_finding("log", one, shown, severity, action)
    if last_base is None:
        reason = f"no CommitLog file, {entry_count} entries in queues"
        if entry_count:
            yield finding("log-empty", "commitlog", reason)
        else:
            action = "nothing to do if no message was ever put; otherwise restore the files"
            yield finding("log-empty", "commitlog", reason, severity=Severity.NOTE, action=action)


def queue_file_findings(
    key: QueueKey, problems: Iterable[FileFinding[AnyPath]], shown: Callable[[AnyPath], str]
) -> Iterator[Finding]:
    """Yield what is wrong with the files of a queue; `shown` as `log_file_findings` has it."""
    for one in problems:
        action = "repair moves it away and makes its entries again"
        if one.problem is FileProblem.NOT_A_FILE:
            action = "move it away, then repair makes its entries again"
        yield _file_finding("queue", one, shown, Severity.WARNING, action, **key._asdict())


def _file_finding(
    part: str, one: FileFinding[AnyPath], shown: Callable[[AnyPath], str], severity: Severity,
    action: str, **more: Any,
) -> Finding:  # fmt: skip
    if one.problem is FileProblem.DANGLING_LINK:
        severity, action = Severity.DAMAGE, DANGLING_HINT
    kind, reason = f"{part}-file-{one.problem.kind}", f"expected {one.expected}, found {one.found}"
    more |= {"expected": one.expected, "found": one.found}
    return Finding(severity, kind, shown(one.path), 0, 0, reason, action, **more)
