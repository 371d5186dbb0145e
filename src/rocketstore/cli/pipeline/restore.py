"""``rocketstore pipeline restore``: a store from an archive, on Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from rocketstore.cli.options import ArchiveLocation, OutputOption, StoreSettings
from rocketstore.cli.output import print_object
from rocketstore.cli.progress import job_progress
from rocketstore.errors import ConfigError


def restore(
    archive: ArchiveLocation,
    store: Annotated[str, Parameter(name="STORE", help="Directory that becomes the store.")],
    /,
    *,
    topic: Annotated[list[str] | None, Parameter(negative=())] = None,
    begin: str | None = None,
    end: str | None = None,
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
    begin, end
        Only messages stored from the first time on and before the second: milliseconds since 1970,
        or as in 2026-11-21T10:00:00Z (UTC if no zone is said).
    master
        Where Spark runs.
    settings
        Where settings come from; checked, though none of them concerns a restore.
    output
        How to print.
    """
    from rocketstore import pipeline

    (settings or StoreSettings()).load()
    begin_ms, end_ms = _time_ms("begin", begin), _time_ms("end", end)
    spark = pipeline.session(master, quiet=True)
    with job_progress("restoring", unit="tasks") as progress:
        result = pipeline.restore(
            spark,
            archive,
            store,
            topics=topic or (),
            begin_ms=begin_ms,
            end_ms=end_ms,
            progress=progress,
        )
    if output != "table":
        print_object(result._asdict(), "json")
        return 0
    what = "as they were archived" if result.is_whole else "a new log of the selection"
    print(
        f"{result.records:,} records in {result.file_count:,} CommitLog files of "
        f"{result.file_bytes:,} bytes: {what}"
    )
    return 0


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--{option}: expected milliseconds since 1970 or a time such as "
            f"2026-11-21T10:00:00Z, found {text!r}",
            key=option,
            value=text,
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)
