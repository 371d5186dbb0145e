"""The files of a store in their order, and what is wrong with a file before a byte is read.

Law: what is wrong is a value; a file that its name or neighbours contradict is left out and
reported, a short one is used as far as it goes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.file_name import file_name, parse_file_name
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocketstore.pipeline.files import FileEntry, Files


class StoreFile(NamedTuple):
    """One file of a log or a queue; `base` is the offset in its name, `size` what is usable."""

    base: int
    size: int
    path: str

    @property
    def stop(self) -> int:
        """Offset behind its last byte."""
        return self.base + self.size


class FileProblem(NamedTuple):
    """Something wrong with a file; `problem` ends the kind of the finding."""

    path: str
    problem: str
    expected: str
    found: str
    base: int = -1


class FileRow(NamedTuple):
    """The files of one log or queue."""

    files: tuple[StoreFile, ...]
    problems: tuple[FileProblem, ...]

    @property
    def first(self) -> int:
        """Offset of the first byte, 0 without files."""
        return self.files[0].base if self.files else 0

    @property
    def stop(self) -> int:
        """Offset behind the last byte there is room for, 0 without files."""
        return self.files[-1].stop if self.files else 0


def commonest_size(entries: Iterable[FileEntry], multiple_of: int = 1) -> FileEntry | None:
    """Return a file of the size that most have, the larger of two that are equally common."""
    sized = [one for one in entries if one.size and one.size % multiple_of == 0]
    counted = Counter(one.size for one in sized)
    if not counted:
        return None
    size = max(counted, key=lambda size: (counted[size], size))
    return next(one for one in sized if one.size == size)


def offset_files(files: Files, directory: str) -> list[FileEntry]:
    """Return the files of a directory that are named by an offset."""
    return [
        one
        for one in files.list(directory)
        if not one.is_directory and parse_file_name(one.name) is not None
    ]


def file_row(files: Files, directories: Sequence[str], file_size: int) -> FileRow:
    """Return the files of a log or a queue, each of which should have `file_size` bytes."""
    problems: list[FileProblem] = []
    found: list[StoreFile] = []
    for directory in directories:
        for entry in files.list(directory):
            base = parse_file_name(entry.name)
            if base is None:
                problems.append(
                    FileProblem(entry.path, "wrong-name", "20 digits", repr(entry.name))
                )
            elif entry.is_directory:
                problems.append(
                    FileProblem(entry.path, "not-a-file", "a file", "something else", base)
                )
            else:
                found.append(StoreFile(base, entry.size, entry.path))
    return FileRow(tuple(_in_order(sorted(found), file_size, problems)), tuple(problems))


def _in_order(
    found: list[StoreFile], file_size: int, problems: list[FileProblem]
) -> list[StoreFile]:
    files: list[StoreFile] = []

    def report(file: StoreFile, problem: str, expected: str, seen: str) -> None:
        problems.append(FileProblem(file.path, problem, expected, seen, file.base))

    for file in found:
        if file.size == 0:
            report(file, "empty", f"{file_size} bytes", "0 bytes")
            continue
        if file.size != file_size:
            report(file, "wrong-size", f"{file_size} bytes", f"{file.size} bytes")
        if files and file.base == files[-1].base:
            report(file, "duplicate", "one file of a name", files[-1].path)
            continue
        if files and (file.base - files[0].base) % file_size:
            expected = f"a multiple of {file_size} behind {files[0].base}"
            report(file, "misplaced", expected, str(file.base))
            continue
        if files and files[-1].base + file_size < file.base:
            missing = files[-1].base + file_size
            path = f"{file.path.rpartition('/')[0]}/{file_name(missing)}"
            expected = f"{(file.base - missing) // file_size} file(s) up to {file_name(file.base)}"
            problems.append(FileProblem(path, "missing", expected, "none", missing))
        files.append(file._replace(size=min(file.size, file_size)))
    return files


def listed_queues(files: Files, directory: str) -> list[QueueKey]:
    """Return the queues that have a directory; as in 4.9, a name must be a number to count."""
    return [
        QueueKey(topic.name, int(queue.name))
        for topic in files.list(directory)
        if topic.is_directory
        for queue in files.list(topic.path)
        if queue.is_directory
        and queue.name.isascii()
        and queue.name.isdigit()
        and str(int(queue.name)) == queue.name
    ]
