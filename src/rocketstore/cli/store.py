"""``rocketstore store``: a store directory as a whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from rocketstore.cli.options import (
    BeginOption,
    BodyOption,
    EndOption,
    OutputOption,
    QueueOption,
    StoreArgument,
    StoreSettings,
    TopicOption,
)
from rocketstore.cli.output import print_object, print_rows
from rocketstore.errors import ConfigError

app = App(name="store", help="Inspect, verify, repair and fill a store.")

EXIT_DAMAGED = 4


@app.command
def info(
    store: StoreArgument,
    /,
    *,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Print what the store holds: files, sizes, offsets, times, and which process writes it."""
    from rocketstore.cli.reading import open_for_reading
    from rocketstore.cli.store_info import store_info

    with open_for_reading(store, settings) as reader:
        print_object(store_info(reader), output)


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
    settings: StoreSettings | None = None,
    output: OutputOption = "jsonl",
) -> int:
    """Print every record, blank and damaged range of the CommitLog, in physical order.

    Blanks and damage have no time: --begin and --end leave out messages only.

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

    scanned = LogScan(store, (settings or StoreSettings()).load(store), begin_offset, end_offset)
    rows = (
        show_body(row, body, output) if "body" in row else row
        for row in scanned.rows(damage_only=damage_only)
        if "body" not in row
        or ((begin or 0) <= row["storeTimestamp"] and (end is None or row["storeTimestamp"] < end))
    )
    print_rows(
        rows,
        output,
        columns=(
            "kind",
            "physicalOffset",
            "size",
            "topic",
            "queueId",
            "queueOffset",
            "tags",
            "keys",
        ),
        notes=("file", "reason"),
    )
    return EXIT_DAMAGED if scanned.damaged_bytes else 0


@app.command
def verify(
    store: StoreArgument,
    /,
    *,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Check every structure against the CommitLog; writes nothing, works beside a writer."""
    from rocketstore.audit.verify import verify_store
    from rocketstore.cli.findings import print_verification
    from rocketstore.cli.progress import progress

    config = (settings or StoreSettings()).load(store)
    with progress("verifying", total=None) as advance:
        report = verify_store(store, config, progress=advance)
    return print_verification(report, output)


@app.command
def scrub(
    store: StoreArgument,
    /,
    *,
    rate: str = "100M",
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Check the records of the CommitLog slowly; writes nothing, works beside a writer.

    The file that is being written is left out. `store verify` checks everything, at full speed.

    Parameters
    ----------
    rate
        Bytes a second: 50M, 800K, 1G; 0 is as fast as it goes.
    """
    from rocketstore.cli.progress import progress
    from rocketstore.cli.scrub import ColdCheck, parse_rate

    bytes_per_second = parse_rate(rate)
    check = ColdCheck(store, (settings or StoreSettings()).load(store))
    with progress("scrubbing", total=check.total_bytes) as advance:
        check.run(bytes_per_second, advance)
    if check.damage or output != "table":
        shown = ("kind", "physicalOffset", "size", "reason")
        print_rows(check.rows(), output, columns=shown, notes=("file", "evidence"))
    if output == "table":
        print(check.summary())
    return EXIT_DAMAGED if check.damage else 0


@app.command
def repair(
    store: StoreArgument,
    /,
    *,
    policy: Literal["salvage", "compatible"] = "salvage",
    dry_run: bool = False,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Repair a store that no process writes.

    Parameters
    ----------
    policy
        ``salvage`` keeps every intact record; ``compatible`` ends the log where 4.9.3 would.
    dry_run
        Tell what would be done and change nothing.
    """
    from rocketstore.audit.repair import repair_store
    from rocketstore.cli.findings import print_repair

    config = (settings or StoreSettings()).load(store)
    return print_repair(repair_store(store, config, policy=policy, dry_run=dry_run), output)


@app.command(name="import")
def import_(
    store: StoreArgument,
    /,
    # Not a list: the parser ends a list of files at the next option.
    *files: Annotated[Path, Parameter(name="FILE", help="Text files; - is standard input.")],
    topic: TopicOption,
    queue: QueueOption = 0,
    tags: str | None = None,
    key_pattern: str | None = None,
    settings: StoreSettings | None = None,
) -> None:
    """Put every line of the files as a message.

    Parameters
    ----------
    store
        Directory of the store; made when it is missing.
    files
        Text files; - is standard input.
    topic
        Topic of the messages.
    queue
        Queue id.
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
    from rocketstore.cli.progress import progress
    from rocketstore.cli.writing import open_for_writing
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
    with (
        open_for_writing(store, settings) as opened,
        progress("importing", total=total) as advance,
    ):
        opened.wait_dispatched()
        stored_before = opened.max_offset(topic, queue)
        try:
            for path in files:
                with open_input(path) as lines:
                    count += import_lines(opened, lines, target, advance, name=str(path))
        except KeyboardInterrupt:
            opened.wait_dispatched()
            stored = opened.max_offset(topic, queue) - stored_before
            raise KeyboardInterrupt(f"{stored:,} lines are stored in {topic}/{queue}") from None
    seconds = time.monotonic() - started
    print(f"{count:,} messages imported into {store} in {seconds:.1f} s")
