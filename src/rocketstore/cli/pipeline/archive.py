"""``rocketstore pipeline archive``: add the new part of a log to a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.cli.options import (
    ArchiveLocation,
    OutputOption,
    SparkOption,
    SplitOption,
    StoreLocation,
    StoreSettings,
)
from rocketstore.cli.output import print_object
from rocketstore.cli.wording import complain
from rocketstore.units import MiB

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.archive.archive_job import ArchiveResult


def archive(
    store: StoreLocation,
    target: ArchiveLocation,
    /,
    *,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 512,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Archive what was added to a store's log since the last run, as Delta tables by day.

    Parameters
    ----------
    store
        Directory of the store, which a broker may be writing to; or its URI.
    target
        Directory of the archive, made if missing; or its URI on an object store. Stores of several
        brokers may share one.
    """
    from rocketstore import pipeline

    config = (settings or StoreSettings()).load(store)
    spark = pipeline.session(master, quiet=True)
    result = pipeline.archive(spark, store, target, config=config, max_split_bytes=split_mib * MiB)
    _print_result(result, target, output)


def _print_result(result: ArchiveResult, target: str, output: str) -> None:
    if result.gap is not None:
        first, stop = result.gap
        complain(
            f"{stop - first} bytes of the log, from physical offset {first} to {stop},"
            " were deleted before they were archived"
        )
    if output != "table":
        print_object(result._asdict(), "json")
    elif result.run is None:
        print(f"{target} has everything up to physical offset {result.end:,}")
    else:
        print(
            f"run {result.run}: {result.records:,} records, {result.record_bytes:,} bytes of the "
            f"log up to physical offset {result.end:,}, in {result.file_count:,} files of "
            f"{result.file_bytes:,} bytes"
        )
        if result.damaged_bytes:
            print(f"{result.damaged_bytes:,} damaged bytes are kept as they are")
