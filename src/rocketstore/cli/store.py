"""``rocketstore store``: a store directory as a whole."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from rocketstore.cli import exit_codes
from rocketstore.cli.options import (
    DEFAULTS,
    BeginOption,
    BodyOption,
    CommandOptions,
    EndOption,
    MadeStoreArgument,
    OutputOption,
    QueueOption,
    StoreArgument,
    StoreSettings,
    TopicOption,
)
from rocketstore.cli.output import before_a_verdict, print_object, print_rows
from rocketstore.cli.progress import progress
from rocketstore.cli.wording import program_name, system_error
from rocketstore.errors import ConfigError, FormatError, RocketStoreError
from rocketstore.units import counted

if TYPE_CHECKING:
    from rocketstore.format.index_file import IndexHeader
    from rocketstore.storage.read_only import ReadOnlyStore

app = App(name="store")


@app.command
def info(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> None:
    """Print what the store holds: files, sizes, offsets, times, and which process writes it."""
    with options.open(store) as reader:
        print_object(_facts(reader), options.output)


def _facts(store: ReadOnlyStore) -> dict[str, Any]:
    """Return what ``store info`` says of a store, JSON-ready."""
    from rocketstore.metrics.scrub_service import read_damage_map
    from rocketstore.storage.files.lock import writer_pid

    queues = store.queues()
    log_files = store.log_files
    checkpoint, problems = None, []
    try:
        checkpoint = store.checkpoint()
    except (FormatError, OSError) as error:  # the rest is shown nevertheless
        reason = system_error(error) if isinstance(error, OSError) else str(error)
        problems.append(f"{store.layout.checkpoint}: {reason}")
    known = read_damage_map(store.layout.root)
    headers: list[tuple[str, IndexHeader]] | None = None
    try:
        headers = store.index_files()
    except RocketStoreError as error:
        problems.append(str(error))
    return {
        "path": str(store.layout.root),
        "commitLogFiles": len(log_files),
        "commitLogFileSize": log_files[0].size if log_files else 0,
        "minPhysicalOffset": store.min_physical_offset,
        "maxPhysicalOffset": store.max_physical_offset,
        "topics": len(store.topics()),
        "queues": len(queues),
        "queueEntries": sum(store.message_count(key.topic, key.queue_id) for key in queues),
        "indexFiles": None if headers is None else len(headers),
        "indexItems": None
        if headers is None
        else sum(max(0, header.index_count - 1) for _, header in headers),
        "checkpointPhysicMsgTimestamp": None if checkpoint is None else checkpoint.physic_ms,
        "checkpointLogicsMsgTimestamp": None if checkpoint is None else checkpoint.logics_ms,
        "checkpointIndexMsgTimestamp": None if checkpoint is None else checkpoint.index_ms,
        "lastScrubTimestamp": known.last_pass_timestamp or None,
        "scrubDamagedRanges": len(known.damage),
        "abortFile": store.has_abort_file,
        "writerPid": writer_pid(store.layout.lock),
        "findings": [*map(str, store.findings), *problems, *store.newer_parts],
    }


@app.command
def scan(
    store: StoreArgument,
    /,
    *,
    begin: BeginOption = None,
    end: EndOption = None,
    begin_offset: int | None = None,
    end_offset: int | None = None,
    damage_only: bool = False,
    body: BodyOption = None,
    settings: StoreSettings = DEFAULTS,
    output: OutputOption = "jsonl",
) -> int:
    """Print every record, blank and damaged range of the CommitLog, in physical order.

    Blanks and damage have no time: --begin and --end leave out messages only. Where the reader of
    the output leaves (`| head`), the scan ends, and its exit code tells of what it met until then.

    Parameters
    ----------
    begin_offset
        Only what starts at this physical offset or after it.
    end_offset
        Only what starts before this physical offset.
    damage_only
        Leave out intact records and blanks.
    """
    from rocketstore.cli.bodies import show_body
    from rocketstore.cli.log_scan import LogScan

    scanned = LogScan(store, settings.load(store), begin_offset, end_offset)
    rows = (
        show_body(row, body, output) if "body" in row else row
        for row in scanned.rows(damage_only=damage_only)
        if "body" not in row
        or ((begin or 0) <= row["storeTimestamp"] and (end is None or row["storeTimestamp"] < end))
    )
    columns = ("kind", "physicalOffset", "size", "topic", "queueId", "queueOffset", "tags", "keys")
    with before_a_verdict():
        print_rows(rows, output, columns=columns, notes=("file", "reason"))
    return exit_codes.DAMAGED if scanned.damaged_bytes else exit_codes.FINE


@app.command
def verify(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> int:
    """Check every structure against the CommitLog; writes nothing, works beside a writer.

    Exits 0 when nothing is wrong, 1 for findings, 3 where a file cannot be read, 4 for damage.
    """
    from rocketstore.audit.verify import verify_store
    from rocketstore.cli.findings import print_verification

    config = options.load(store)
    with progress("verifying", total=None) as advance:
        report = verify_store(store, config, progress=advance)
    repair = f"{program_name()} store repair {quote(str(store))}"
    advice = f"What a repair would do: {repair} --dry-run"
    return print_verification(report, options.output, advice=advice)


@app.command
def scrub(
    store: StoreArgument, /, *, rate: str = "100M", options: CommandOptions = DEFAULTS
) -> int:
    """Check the records of the CommitLog slowly; writes nothing, works beside a writer.

    The file that is being written is left out. `store verify` checks everything, at full speed.

    Parameters
    ----------
    rate
        Bytes a second: 50M, 800K, 1G; 0 is as fast as it goes.
    """
    from rocketstore.cli.scrub import ColdCheck, parse_rate

    bytes_per_second = parse_rate(rate)
    check = ColdCheck(store, options.load(store))
    with progress("scrubbing", total=check.total_bytes) as advance:
        check.run(bytes_per_second, advance)
    with before_a_verdict():
        if check.damage or options.output != "table":
            shown = ("kind", "physicalOffset", "size", "reason")
            print_rows(check.rows(), options.output, columns=shown, notes=("file", "evidence"))
        if options.output == "table":
            print(check.summary())
    return exit_codes.DAMAGED if check.damage else exit_codes.FINE


@app.command
def repair(
    store: StoreArgument,
    /,
    *,
    policy: Literal["salvage", "compatible"] = "salvage",
    dry_run: bool = False,
    options: CommandOptions = DEFAULTS,
) -> int:
    """Repair a store that no process writes.

    Queues and index agree with the CommitLog afterwards. What is cut, replaced or moved is kept
    below repair/ in the store. Exits 0 if there was nothing to do, 1 if no damage is left, and 4 if
    some is: messages or a table are lost, and it says which.

    Parameters
    ----------
    policy
        ``salvage`` keeps every intact record; ``compatible`` ends the log where 4.9.3 would.
    dry_run
        Tell what would be done and change nothing.
    """
    from rocketstore.audit.repair import repair_store
    from rocketstore.cli.findings import print_repair

    config = options.load(store)
    return print_repair(repair_store(store, config, policy=policy, dry_run=dry_run), options.output)


@app.command(
    name="import",
    # The parser would call the files ARGS.
    usage="Usage: rocketstore store import --topic STR [OPTIONS] STORE FILE...",
)
def import_(
    store: MadeStoreArgument,
    /,
    # Not a list: the parser ends a list of files at the next option.
    *files: Annotated[Path, Parameter(name="FILE", help="Text files; - is standard input.")],
    topic: TopicOption,
    queue: QueueOption = 0,
    tags: str | None = None,
    key_pattern: str | None = None,
    settings: StoreSettings = DEFAULTS,
) -> None:
    """Put every line of the files as a message.

    A new store has files of a broker's sizes, 1 GiB for the log, since 4.9
    opens none of another size; --set mappedFileSizeCommitLog=… makes others.

    Parameters
    ----------
    tags
        Tag of every message.
    key_pattern
        Regular expression; its groups (or its whole match) become the keys of a line.
    """
    from rocketstore.cli.line_import import (
        ImportTarget,
        check_input,
        compile_key_pattern,
        import_lines,
        open_input,
    )
    from rocketstore.format.refusals import check_queue_id, check_topic

    target = ImportTarget(
        check_topic(topic), check_queue_id(queue), tags, compile_key_pattern(key_pattern)
    )
    if not files:
        raise ConfigError("store import: no FILE is given", hint="- is standard input")
    for path in files:
        check_input(path)
    # Pipes have no size by which to show progress.
    total = sum(path.stat().st_size for path in files) if all(map(Path.is_file, files)) else None
    started = time.monotonic()
    count = 0
    with settings.open_for_writing(store) as opened, progress("importing", total=total) as advance:
        opened.wait_dispatched()
        stored_before = opened.max_offset(topic, queue)

        try:
            for path in files:
                with open_input(path) as lines:
                    count += import_lines(opened, lines, target, advance, name=str(path))
            opened.close()
        except KeyboardInterrupt:
            if not opened.is_closed:  # else these are all
                opened.wait_dispatched(opened.settle())  # also what it came amid
                count = opened.max_offset(topic, queue) - stored_before
            stored = f"{count:,} lines are stored in {topic}/{queue}"
            raise KeyboardInterrupt(stored) from None
    seconds = time.monotonic() - started
    print(f"{counted(count, 'message')} imported into {store} in {seconds:.1f} s")
