"""Bytes of a mapped file, written as the log writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketstore.storage.files.mapped_file import MappedFile


def append_bytes(file: MappedFile, data: bytes) -> None:
    """Write after the written bytes of a file, and move their end."""
    file.write_bytes(file.write_position, data)
    file.write_position += len(data)
