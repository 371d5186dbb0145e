"""``rocketstore pipeline``: jobs over a whole store, spread over the cores by Spark.

Each command calls the function of its name in ``rocketstore.pipeline``.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rocketstore import pipeline
from rocketstore.cli import exit_codes
from rocketstore.cli.options import (
    DEFAULTS,
    ArchiveLocation,
    AsOfOption,
    BeginOption,
    CommandOptions,
    EndOption,
    OutOption,
    Output,
    OutputOption,
    SparkOption,
    SplitOption,
    StoreLocation,
    must_exist,
)
from rocketstore.cli.output import before_a_verdict, print_object, print_rows
from rocketstore.cli.wording import complain, print_on_stderr
from rocketstore.units import MiB, counted

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.archive.archive_job import ArchiveResult
    from rocketstore.pipeline.jobs.audit.audit_job import AuditReport
    from rocketstore.pipeline.jobs.rebuild.rebuild_job import RebuildReport
    from rocketstore.pipeline.jobs.report.report_job import Report

app = App(name="pipeline")


@app.command
def archive(
    store: StoreLocation,
    target: ArchiveLocation,
    /,
    *,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 512,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Archive what was added to a store's log since the last run, as Delta tables by day.

    A broker may be writing to the store. The archive is made if missing, and stores of several
    brokers may share one.
    """
    config = options.load(store)
    spark = pipeline.session(master, quiet=True)
    result = pipeline.archive(spark, store, target, config=config, max_split_bytes=split_mib * MiB)
    _print_archived(result, target, options.output)


def _print_archived(result: ArchiveResult, target: str, output: str) -> None:
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
            f"run {result.run}: {counted(result.records, 'record')}, "
            f"{result.record_bytes:,} bytes of the log up to physical offset {result.end:,}, "
            f"in {counted(result.file_count, 'file')} of "
            f"{result.file_bytes:,} bytes"
        )
        if result.damaged_bytes:
            print(f"{result.damaged_bytes:,} damaged bytes are kept as they are")


@app.command
def audit(
    store: StoreLocation,
    /,
    *,
    out: OutOption = None,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 256,
    options: CommandOptions = DEFAULTS,
) -> int:
    """Check every record, queue entry and index item against each other; writes nothing to a store.

    Exits 0 when nothing is wrong, 1 for findings, 4 for damage. Works beside a writer.

    Parameters
    ----------
    out
        Directory to be made: findings and queues as Parquet, a summary as JSON.
    """
    from rocketstore.cli.findings import print_verification
    from rocketstore.pipeline.jobs.publishing import local_place, refuse_taken
    from rocketstore.places.store_listing import list_store

    config = options.load(store)
    if out is not None:
        refuse_taken(str(local_place(out)))
    # A wrong place is reported before Spark is started, which takes seconds.
    list_store(store, config)
    spark = pipeline.session(master, quiet=True)
    report: AuditReport = pipeline.audit(
        spark, store, out, config=config, max_split_bytes=split_mib * MiB
    )
    return print_verification(report, options.output)


@app.command
def rebuild(
    store: StoreLocation,
    /,
    *,
    prove: bool = False,
    to: OutOption = None,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 256,
    options: CommandOptions = DEFAULTS,
) -> int:
    """Make queues and index again from the CommitLog of a store that no process has open.

    The old ones are kept in repair/ inside the store.

    Parameters
    ----------
    prove
        Change nothing: report where queues and index differ from what would be made, and why.
    to
        Make them in this new place, and leave the store as it is; a path or a URI. Needed for a
        store on an object store.
    """
    config = options.load(store)
    spark = pipeline.session(master, quiet=True)
    limits: dict[str, Any] = {"config": config, "max_split_bytes": split_mib * MiB}
    if prove:
        return _print_proof(pipeline.prove_rebuild(spark, store, **limits), options.output)
    _print_rebuilt(pipeline.rebuild(spark, store, target=to, **limits), options.output)
    return exit_codes.FINE


def _print_rebuilt(report: RebuildReport, output: Output) -> None:
    if output != "table":
        print_object(report.to_dict(), output)
        return
    print(
        f"{counted(report.record_count, 'record')}: "
        f"{counted(report.entry_count, 'entry', 'entries')} in "
        f"{counted(report.queue_count, 'queue')}, "
        f"{counted(report.index_item_count, 'index item')}"
    )
    if report.target != report.store:
        print(f"They were made in {report.target}; the store is unchanged")
    if report.kept is not None:
        print(f"The old ones are kept in {report.kept}")
    if report.refused_count:
        refused = counted(report.refused_count, "record has", "records have")
        print(f"{refused} no entry: the place is taken or impossible")
    for queue, count in report.kept_places.items():
        print_on_stderr(
            f"{queue}: {count:,} places at its end are kept: their records are lost, and their "
            "numbers are not given again"
        )
    for queue in report.gone_queues:
        print_on_stderr(f"No record of {queue} is left: the queue was removed")
    for one in report.damage:
        print_on_stderr(f"Damage from {one.start} to {one.stop}: {one.reason}: {one.evidence}")


def _print_proof(report: AuditReport, output: Output) -> int:
    from rocketstore.cli.findings import print_verification
    from rocketstore.pipeline.jobs.audit.audit_job import REASONS

    code = print_verification(report, output)
    with before_a_verdict():
        for reason, count in report.explained.items() if output == "table" else ():
            print(f"{count:,} explained ({reason}): {REASONS[reason]}")
    return code


@app.command
def report(
    store: Annotated[StoreLocation, Parameter(help="A store, or a directory of stores.")],
    /,
    *,
    out: Annotated[OutOption, Parameter(help="A new directory; unset: one here.")] = None,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 256,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Report traffic, sizes, latency, keys, delays, retries and damage as one HTML page.

    The page needs no network and no script. Beside it are tables as Parquet, and the page's content
    as JSON. The store may be in use; nothing is written to it.
    """
    from rocketstore.pipeline.jobs.report.report_job import plan_report, run_report

    config = options.load(store)
    place = out or f"rocketstore-report-{datetime.now():%Y%m%d-%H%M%S}"  # noqa: DTZ005 - a name
    # A wrong place is reported before Spark is started, which takes seconds.
    planned = plan_report(store, place, config, split_mib * MiB)
    spark = pipeline.session(master, quiet=True)
    _print_report(run_report(spark, planned), options.output)


def _print_report(found: Report, output: Output) -> None:
    files = {"page": str(found.page), "tables": str(found.tables), "json": str(found.json)}
    if output != "table":
        print_object(files | {"summary": found.summary}, output)
        return
    summary = found.summary
    print(
        f"{counted(summary['messages'], 'message')} of {counted(summary['topics'], 'topic')} in "
        f"{counted(summary['queues'], 'queue')}"
    )
    if summary["damagedRanges"]:
        print(
            f"{counted(summary['damagedRanges'], 'damaged range')} of "
            f"{summary['damagedBytes']:,} bytes in "
            f"{summary['damagedFiles']:,} of {summary['files']:,} files; the rest was counted"
        )
    print(f"page    {files['page']}\ntables  {files['tables']}\njson    {files['json']}")


@app.command
def restore(
    archive: ArchiveLocation,
    store: Annotated[StoreLocation, Parameter(help="A new or empty place: a path or URI.")],
    /,
    *,
    as_of: AsOfOption = None,
    broker: str | None = None,
    topic: Annotated[list[str] | None, Parameter(name=["--topic", "-t"], negative=())] = None,
    begin: BeginOption = None,
    end: EndOption = None,
    allow_gaps: Annotated[bool, Parameter(negative=())] = False,
    log_only: Annotated[bool, Parameter(negative=())] = False,
    master: SparkOption = "local[*]",
    options: CommandOptions = DEFAULTS,
) -> None:
    """Restore a store, byte for byte; or only some messages, to a new store.

    Parameters
    ----------
    as_of
        Version of the archive's table messages, or a time as for --begin; unset: the latest.
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
    config = options.load()
    must_exist(archive, hint="name the one that `rocketstore pipeline archive` wrote to")
    result = pipeline.restore(
        pipeline.session(master, quiet=True),
        archive,
        store,
        as_of=as_of,
        broker=broker,
        topics=topic or (),
        begin_ms=begin,
        end_ms=end,
        allow_gaps=allow_gaps,
        log_only=log_only,
        config=config,
    )
    if options.output != "table":
        print_object(result._asdict(), "json")
        return
    if result.missing_bytes:
        print_on_stderr(
            f"{result.missing_bytes:,} bytes in "
            f"{counted(result.missing_stretches, 'stretch', 'stretches')} of the log "
            "are gone from the archive: they are zeros, or files that were omitted"
        )
    whole = "as they were archived" if not result.missing_bytes else "with gaps"
    what = whole if not topic and begin is None and end is None else "a new log of the selection"
    made = "the log alone"
    if result.queues is not None:
        made = f"{counted(result.queues, 'queue')} made from it"
    print(
        f"{counted(result.records, 'record')} of broker {result.broker}, "
        f"version {result.version}, in {counted(result.file_count, 'CommitLog file')} of "
        f"{result.file_bytes:,} bytes: {what}; {made}"
    )


@app.command
def sweep(
    place: Annotated[
        StoreLocation, Parameter(name="PLACE", help="A store, a target, or where they lie.")
    ],
    /,
    *,
    remove: Annotated[bool, Parameter(negative=())] = False,
    untouched_hours: float = 24,
    output: OutputOption = "table",
) -> int:
    """List, or remove, what killed restores, rebuilds, audits, reports and writes left.

    Exits 1 if there were leftovers that no running job holds, else 0.

    Parameters
    ----------
    remove
        Remove what no running job holds.
    untouched_hours
        How long the files of a process that is not known here (another machine, an earlier release)
        must be unchanged before they count as left behind.
    """
    from rocketstore.pipeline.jobs import sweeping

    found = sweeping.sweep(place, remove=remove, untouched_h=untouched_hours)
    if not found:  # what a killed job left lies beside a target that is still to come
        must_exist(place, hint="nothing of that name was left beside it either")
    with before_a_verdict():
        print_rows(found, output, columns=("state", "size", "path", "why"))
    is_left = any(one["state"] != "held" for one in found)
    return exit_codes.FOUND if is_left else exit_codes.FINE
