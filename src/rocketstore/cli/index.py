"""``rocketstore index``: the key index of a store."""

from collections.abc import Iterable
from typing import Any

from cyclopts import App

from rocketstore.cli.options import DEFAULTS, CommandOptions, StoreArgument
from rocketstore.cli.output import print_rows
from rocketstore.cli.wording import local_time

app = App(name="index")


@app.command(name="list")
def list_files(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> None:
    """Print every index file with its header."""
    with options.open(store) as reader:
        rows: Iterable[dict[str, Any]] = (
            {
                "file": name,
                "beginTimestamp": header.begin_timestamp_ms,
                "endTimestamp": header.end_timestamp_ms,
                "beginPhysicalOffset": header.begin_physical_offset,
                "endPhysicalOffset": header.end_physical_offset,
                "hashSlotCount": header.hash_slot_count,
                "indexCount": header.index_count,
            }
            for name, header in reader.index_files()
        )
        if options.output == "table":
            rows = (
                {
                    "file": row["file"],
                    "items": max(0, row["indexCount"] - 1),
                    "begin": local_time(row["beginTimestamp"], "seconds"),
                    "end": local_time(row["endTimestamp"], "seconds"),
                }
                for row in rows
            )
        print_rows(rows, options.output, columns=("file", "items", "begin", "end"))


@app.command
def rebuild(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> int:
    """Make the index again from the CommitLog of a store that no process writes.

    The old index is kept in repair/ inside the store; other faults are repaired too.
    """
    from rocketstore.audit.repair import rebuild_store
    from rocketstore.cli.findings import print_repair

    report = rebuild_store(store, options.load(store), what="index")
    return print_repair(report, options.output)
