"""``rocketstore pipeline restore``: a store from an archive, on Spark."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rocketstore.cli.options import (
    ArchiveLocation,
    BeginOption,
    EndOption,
    OutputOption,
    SparkOption,
    StoreSettings,
    must_exist,
)
from rocketstore.cli.output import print_object
from rocketstore.cli.wording import print_on_stderr


def restore(
    archive: ArchiveLocation,
    store: Annotated[str, Parameter(name="STORE", help="Where the store is made: a path or URI.")],
    /,
    *,
    as_of: str | None = None,
    broker: str | None = None,
    topic: Annotated[list[str] | None, Parameter(name=["--topic", "-t"], negative=())] = None,
    begin: BeginOption = None,
    end: EndOption = None,
    allow_gaps: Annotated[bool, Parameter(negative=())] = False,
    log_only: Annotated[bool, Parameter(negative=())] = False,
    master: SparkOption = "local[*]",
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Restore a store, byte for byte; or only some messages, to a new store.

    Parameters
    ----------
    archive
        Directory of the archive, or its URI on an object store.
    store
        A new or empty place.
    as_of
        Version of the archive's table messages, or an ISO 8601 time; unset: the latest.
    broker
        Broker of the log, if the archive has several.
    topic
        Only messages of this topic; repeatable.
    allow_gaps
        Restore a log although rows of it were deleted from the archive: zeros take their place, and
        files with no rows left are omitted.
    log_only
        Make no queues and no index: the first program that opens the store makes them.
    """
    from rocketstore import pipeline

    config = (settings or StoreSettings()).load()
    must_exist(archive, hint="name the one that `rocketstore pipeline archive` wrote to")
    result = pipeline.restore(
        pipeline.session(master, quiet=True),
        archive,
        store,
        as_of=int(as_of) if as_of and as_of.isdigit() else as_of,
        broker=broker,
        topics=topic or (),
        begin_ms=begin,
        end_ms=end,
        allow_gaps=allow_gaps,
        log_only=log_only,
        config=config,
    )
    if output != "table":
        print_object(result._asdict(), "json")
        return
    if result.missing_bytes:
        print_on_stderr(
            f"{result.missing_bytes:,} bytes in {result.missing_stretches:,} stretches of the log "
            "are gone from the archive: they are zeros, or files that were omitted"
        )
    whole = "as they were archived" if not result.missing_bytes else "with gaps"
    what = whole if not topic and begin is None and end is None else "a new log of the selection"
    made = "the log alone" if result.queues is None else f"{result.queues:,} queues made of it"
    print(
        f"{result.records:,} records of broker {result.broker}, version {result.version}, in "
        f"{result.file_count:,} CommitLog files of {result.file_bytes:,} bytes: {what}; {made}"
    )
