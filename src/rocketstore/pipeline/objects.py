"""Objects of an object store, written whole: what ``pyarrow.fs`` can do where nothing is renamed.

Law: an object appears under its name as a whole, when its writer is done, or not at all; a copy is
made by the store itself where it can. Whatever has to appear together needs a commit object, which
is somebody else's rule.

Nothing is locked: no call of ``pyarrow.fs`` writes only where nothing is yet. Whoever writes below
a location has to be the only one, or writes under names that nobody else has.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import StoreError
from rocketstore.pipeline.files import ArrowFiles, files_at
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PIECE_BYTES: Final = 8 * MiB
_FLUSH_BYTES: Final = 64 * MiB
"""What may wait to be sent: parts go in the background, and nothing else bounds how many wait."""

_REQUESTS: Final = 16
"""Copies that are asked for side by side; each is a round trip and hardly any bytes."""


class ObjectStore:
    """What lies below a location, as paths of its file system.

    Parameters
    ----------
    location
        A URI that ``pyarrow.fs`` reaches.

    Attributes
    ----------
    root
        Path of the location.
    """

    def __init__(self, location: str) -> None:
        files, self.root = files_at(location)
        assert isinstance(files, ArrowFiles), "a disk has better ways"
        self._system: Any = files.system

    def sizes(self, path: str) -> dict[str, int]:
        """Return the sizes of all objects below a path, by their path below it."""
        from pyarrow import fs  # noqa: PLC0415 - only where it is needed

        selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
        with self._plain_errors(path, "listed"):
            infos = self._system.get_file_info(selector)
        start = len(path) + 1
        return {one.path[start:]: one.size for one in infos if one.type == fs.FileType.File}

    def put(self, path: str, content: bytes) -> None:
        """Write an object.

        Raises
        ------
        StoreError
            It cannot be written.
        """
        with self._plain_errors(path, "written"), self._system.open_output_stream(path) as stream:
            stream.write(content)

    def upload(self, source: Path, path: str) -> None:
        """Write an object with the bytes of a file, some megabytes at a time.

        Raises
        ------
        StoreError
            It cannot be written.
        """
        waiting = 0
        with (
            source.open("rb", buffering=0) as file,
            self._plain_errors(path, "written"),
            self._system.open_output_stream(path) as stream,
        ):
            while piece := file.read(_PIECE_BYTES):
                stream.write(piece)
                waiting += len(piece)
                if waiting >= _FLUSH_BYTES:
                    stream.flush()
                    waiting = 0

    def copy_all(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Copy objects, each from the first path to the second.

        Raises
        ------
        StoreError
            One cannot be copied.
        """
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rocketstore-copy") as pool:
            for _ in pool.map(lambda pair: self._copy(*pair), list(pairs)):
                pass

    def _copy(self, source: str, target: str) -> None:
        with self._plain_errors(target, "written"):
            try:
                self._system.copy_file(source, target)
            except NotImplementedError:  # a file system that copies by reading
                with (
                    self._system.open_input_stream(source) as read,
                    self._system.open_output_stream(target) as written,
                ):
                    while piece := read.read(_PIECE_BYTES):
                        written.write(piece)

    def remove_tree(self, path: str) -> None:
        """Remove all objects below a path, if there are any.

        Raises
        ------
        StoreError
            They cannot be removed.
        """
        with self._plain_errors(path, "removed"), contextlib.suppress(FileNotFoundError):
            self._system.delete_dir(path)

    @contextlib.contextmanager
    def _plain_errors(self, path: str, done: str) -> Iterator[None]:
        from pyarrow import ArrowException  # noqa: PLC0415 - as above

        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ArrowException) as error:
            raise StoreError(
                f"{path} cannot be {done}: {error}",
                hint="the credentials of the driver and of each executor must allow it: to list, "
                "read, write and delete objects, and to end and abort uploads in parts",
            ) from error
