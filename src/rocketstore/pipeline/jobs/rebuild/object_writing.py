"""What tasks of a rebuild do for an object store: make files on a disk of their own, and send them.

Index files are written at random places and queue files may be returned to, so a task makes the
files of one queue, or one index file, beside itself and then sends them, some megabytes at a time.

Law: an object has final bytes only; doing it twice, or at the same time, writes the same twice.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketstore.pipeline.jobs.rebuild.shuffle import FileWriting
from rocketstore.pipeline.objects import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings


class ObjectWriting(NamedTuple):
    """Writes whole objects from shuffled rows.

    Attributes
    ----------
    location
        Of the store.
    staging
        Where objects go, relative to the store.
    """

    location: str
    staging: str
    settings: RebuildSettings

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of all targets among ordered rows; yield what was written."""
        objects = ObjectStore(self.location)
        with tempfile.TemporaryDirectory(prefix="rocketstore-rebuild-") as directory:
            scratch = Path(directory)
            for name in ("parts", CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY):
                (scratch / name).mkdir()
            writing = FileWriting(
                f"{scratch}/parts",
                f"{scratch}/{CONSUME_QUEUE_DIRECTORY}",
                f"{scratch}/{INDEX_DIRECTORY}",
                self.settings,
            )
            for written in writing.write(batches):
                self._send(objects, scratch)
                yield written

    def _send(self, objects: ObjectStore, scratch: Path) -> None:
        for name in (CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY):
            for path in sorted((scratch / name).rglob("*")):
                if path.is_file():
                    place = path.relative_to(scratch).as_posix()
                    objects.upload(path, f"{objects.root}/{self.staging}/{place}")
            shutil.rmtree(scratch / name)
            (scratch / name).mkdir()
