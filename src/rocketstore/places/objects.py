"""Whole objects below a URI, as their writer lists, writes, moves and removes them.

Law: nothing is locked, since no call of ``pyarrow.fs`` can write only if there is no object yet. So
a writer below a location has to be the only one, or to use names that no other writer uses.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rocketstore.at_once import spread
from rocketstore.errors import StoreError
from rocketstore.places.files import REQUESTS, ArrowFiles, files_at
from rocketstore.units import MiB

if TYPE_CHECKING:
    from pathlib import Path

_PIECE_BYTES: Final = 8 * MiB
_FLUSH_BYTES: Final = 64 * MiB


class ObjectStore:
    """What lies below a URI, written as whole objects; paths are those below it."""

    def __init__(self, location: str) -> None:
        from pyarrow import ArrowException, fs  # noqa: PLC0415 - only for stores elsewhere

        files, self.root = files_at(location)
        assert isinstance(files, ArrowFiles), "a disk has better ways"
        self._fs, self._errors = fs, (OSError, ArrowException)
        self._system: Any = fs.SubTreeFileSystem(self.root, files.system)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all objects, by their path."""
        with self._plain_errors("", "listed"):
            every = self._fs.FileSelector("", allow_not_found=True, recursive=True)
            infos = self._system.get_file_info(every)
        return {one.path: one.size for one in infos if one.is_file}

    def put(self, path: str, content: bytes) -> None:
        """Write an object."""
        with self._plain_errors(path, "written"), self._system.open_output_stream(path) as stream:
            stream.write(content)

    def upload(self, source: Path, path: str) -> None:
        """Write an object with the bytes of a file, some megabytes at a time."""
        with (
            source.open("rb") as file,
            self._plain_errors(path, "written"),
            self._system.open_output_stream(path) as stream,
        ):
            while piece := file.read(_PIECE_BYTES):
                stream.write(piece)
                # Parts are sent in the background, and nothing else limits how many wait.
                if file.tell() % _FLUSH_BYTES == 0:
                    stream.flush()

    def move_all(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Move objects, each from the first path to the second."""

        def move(pair: tuple[str, str]) -> None:
            with self._plain_errors(pair[1], "written"):
                self._system.move(*pair)

        deque(spread(move, [*pairs], most=REQUESTS), maxlen=0)

    def remove_tree(self, path: str) -> None:
        """Remove all objects below a path, if there are any."""
        with self._plain_errors(path, "removed"), contextlib.suppress(FileNotFoundError):
            self._system.delete_dir(path)

    @contextlib.contextmanager
    def _plain_errors(self, path: str, done: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise StoreError(
                f"{self.root}/{path} cannot be {done}: {error}",
                hint="the credentials of the driver and of each executor must allow it: to list, "
                "read, write and delete objects, and to end and abort uploads in parts",
            ) from error
