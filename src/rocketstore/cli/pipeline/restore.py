"""``rocketstore pipeline restore``: a store from an archive, on Spark."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rocketstore.cli.options import (
    ArchiveLocation,
    BeginOption,
    EndOption,
    OutputOption,
    StoreSettings,
    must_exist,
)
from rocketstore.cli.output import print_object


def restore(
    archive: ArchiveLocation,
    store: Annotated[str, Parameter(name="STORE", help="Directory that becomes the store.")],
    /,
    *,
    topic: Annotated[list[str] | None, Parameter(name=["--topic", "-t"], negative=())] = None,
    begin: BeginOption = None,
    end: EndOption = None,
    master: str = "local[*]",
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Restore a store, byte for byte; or only some messages, to a new store.

    Queues and index are made when the store is opened, or by `rocketstore pipeline rebuild`.

    Parameters
    ----------
    archive
        Directory of the archive, or its URI on an object store.
    store
        A directory that is not there yet, or is empty.
    topic
        Only messages of this topic; repeatable.
    master
        Where Spark runs.
    settings
        Where settings come from; checked, though none of them concerns a restore.
    output
        How to print.
    """
    from rocketstore import pipeline

    (settings or StoreSettings()).load()
    must_exist(archive, hint="name the one that `rocketstore pipeline archive` wrote to")
    spark = pipeline.session(master, quiet=True)
    result = pipeline.restore(spark, archive, store, topics=topic or (), begin_ms=begin, end_ms=end)
    if output != "table":
        print_object(result._asdict(), "json")
        return 0
    what = "as they were archived" if result.is_whole else "a new log of the selection"
    print(
        f"{result.records:,} records in {result.file_count:,} CommitLog files of "
        f"{result.file_bytes:,} bytes: {what}"
    )
    return 0
