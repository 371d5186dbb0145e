"""An archive's messages as a table for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import ArchiveError
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.jobs.archive.layout import MESSAGES
from rocketstore.pipeline.jobs.archive.manifest import list_runs, read_manifest
from rocketstore.pipeline.jobs.archive.place import archive_place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_RAW: Final = {
    "magic": "INT",
    "rawProperties": "BINARY",
    "rawBornHost": "BINARY",
    "rawStoreHost": "BINARY",
    "rawBornTimestamp": "BIGINT",
    "rawStoreTimestamp": "BIGINT",
    "run": "INT",
    "day": "DATE",
}
"""Columns behind those of table ``messages``; the last two are in the names of directories."""

ARCHIVE_COLUMNS: Final = TABLES["messages"] | _RAW


def archived_messages(spark: SparkSession, archive: str | Path) -> Any:
    """Return the messages of an archive as a DataFrame.

    Its columns are those of the data source's table ``messages``, bodies as stored, then those that
    only an archive has. It is ``spark.read.parquet`` with a schema: without one Spark looks into
    files to find it, and takes a topic named ``007`` for the number 7. On an object store files are
    read through ``pyarrow.fs`` instead: those that manifests name, all of them for any query.

    Parameters
    ----------
    spark
        The session, classic or Connect.
    archive
        Directory of the archive, or its URI on an object store.

    Raises
    ------
    ArchiveError
        There is no archive.
    ArchiveDamagedError
        A run of it is gone.
    """
    place = archive_place(archive)
    runs = list_runs(place)
    if not runs:
        raise ArchiveError(
            f"{place.name} is no archive: it has no run below {MESSAGES}/",
            hint="name the directory that `rocketstore pipeline archive` wrote to",
        )
    if place.location:
        from rocketstore.pipeline.jobs.archive.object_query import (  # noqa: PLC0415 - as needed
            messages_of_objects,
        )

        manifests = [read_manifest(place, run) for run in runs]
        return messages_of_objects(spark, place, manifests, ARCHIVE_COLUMNS)
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in ARCHIVE_COLUMNS.items())
    frame: Any = spark.read.schema(ddl).parquet(place.path(MESSAGES))
    return frame.select(*ARCHIVE_COLUMNS)
