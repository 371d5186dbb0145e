"""``rocketstore pipeline report``: what a store holds, as a page and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rocketstore.cli.options import Output, OutputOption, StoreSettings
from rocketstore.cli.output import print_object
from rocketstore.cli.progress import job_progress
from rocketstore.units import MiB

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.report.job import Report


def report(
    store: Annotated[str, Parameter(name="STORE", help="A store, or a directory of stores.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The page; tables and JSON go beside it.")] = Path(
        "rocketstore-report.html"
    ),
    master: str = "local[*]",
    split_mib: Annotated[int, Parameter(name="--split-mib")] = 256,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Report traffic, sizes, latency, keys, delays, retries and damage as one HTML page.

    The page needs no network and no script. The same as Parquet and JSON goes beside it. The store
    may be in use; nothing is written to it.

    Parameters
    ----------
    store
        Directory or URI of a store, or of a directory of stores.
    out
        The page. What an earlier report left there is replaced.
    master
        Where Spark runs.
    split_mib
        Most MiB of the log that one task reads.
    settings
        Where settings come from, such as the delay levels.
    output
        How to print.
    """
    from rocketstore import pipeline
    from rocketstore.pipeline.jobs.report.job import places_of, run_report
    from rocketstore.pipeline.jobs.report.plan import plan_report

    config = (settings or StoreSettings()).load(store)
    planned = plan_report(store, config, max_split_bytes=max(split_mib, 1) * MiB)
    places = places_of(planned, out)
    spark = pipeline.session(master, quiet=True)
    with job_progress("reporting") as progress:
        found = run_report(spark, planned, places, progress)
    _print_report(found, output)
    return 0


def _print_report(found: Report, output: Output) -> None:
    files = {"page": str(found.page), "tables": str(found.tables), "json": str(found.json)}
    if output != "table":
        print_object(files | {"summary": found.summary}, output)
        return
    summary = found.summary
    print(
        f"{summary['messages']:,} messages of {summary['topics']:,} topics in "
        f"{summary['queues']:,} queues"
    )
    if summary["damagedRanges"]:
        noun = "range" if summary["damagedRanges"] == 1 else "ranges"
        print(
            f"{summary['damagedRanges']:,} damaged {noun} of {summary['damagedBytes']:,} bytes in "
            f"{summary['damagedFiles']:,} of {summary['files']:,} files; the rest was counted"
        )
    print(f"page    {files['page']}\ntables  {files['tables']}\njson    {files['json']}")
