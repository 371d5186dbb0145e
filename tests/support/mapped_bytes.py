"""Bytes of a mapped file, written as the log writes them."""

import re
from pathlib import Path

from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue


def append_bytes(file: MappedFile, data: bytes) -> None:
    """Write after the written bytes of a file, and move their end."""
    file.write_bytes(file.write_position, data)
    file.write_position += len(data)


def bytes_at(files: MappedFileQueue, offset: int, size: int) -> bytes:
    """Return bytes of a row of files, as far as the one that holds the first goes."""
    file = files.find(offset)
    return b"" if file is None else file.read_at(offset - file.base, size)


def resident_bytes(path: Path) -> int:
    """What of a file this process has mapped and present, by the kernel's own account."""
    return sum(int(size) * 1024 for size in _said_of(path, r"Rss: +(\d+) kB"))


def is_read_at_random(path: Path) -> list[bool]:
    """Whether nothing is read ahead, for each stretch of the mapping of a file."""
    return ["rr" in flags.split() for flags in _said_of(path, r"VmFlags: (.*)")]


def _said_of(path: Path, wanted: str) -> list[str]:
    smaps = Path("/proc/self/smaps").read_text("utf-8")
    stretch = rf"^\S+-\S+ .*{re.escape(str(path))}\n(?:\w+: .*\n)*?{wanted}$"
    return re.findall(stretch, smaps, re.MULTILINE)
