"""``rocketstore pipeline report``: what a store holds, as a page and as tables."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rocketstore.cli.options import Output, OutputOption, SparkOption, SplitOption, StoreSettings
from rocketstore.cli.output import print_object
from rocketstore.units import MiB

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.report.report_job import Report


def report(
    store: Annotated[str, Parameter(name="STORE", help="A store, or a directory of stores.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="A directory that does not exist yet.")] = None,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 256,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Report traffic, sizes, latency, keys, delays, retries and damage as one HTML page.

    The page needs no network and no script. Beside it are tables as Parquet, and the page's content
    as JSON. The store may be in use; nothing is written to it.

    Parameters
    ----------
    store
        Directory or URI of a store, or of a directory of stores.
    out
        A new directory for page, tables and JSON; default: one here named after the time.
    """
    from rocketstore import pipeline
    from rocketstore.pipeline.jobs.report.report_job import plan_report, run_report

    config = (settings or StoreSettings()).load(store)
    place = out or Path(f"rocketstore-report-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005 - a name
    # A wrong place is reported before Spark is started, which takes seconds.
    planned = plan_report(store, place, config, split_mib * MiB)
    spark = pipeline.session(master, quiet=True)
    _print_report(run_report(spark, planned), output)


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
