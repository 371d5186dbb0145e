"""``rocketstore delay``: delayed messages of a store."""

from __future__ import annotations

import itertools
import time
from typing import Annotated

from cyclopts import App, Parameter, validators

from rocketstore.cli.options import MaxOption, OutputOption, StoreArgument, StoreSettings
from rocketstore.cli.output import print_rows

app = App(name="delay", help="Delayed messages: what waits, and when it is due.")

_LEVEL = Parameter(name=["--level", "-l"], validator=validators.Number(gte=1))


@app.command(name="list")
def list_delays(
    store: StoreArgument,
    /,
    *,
    level: Annotated[int | None, _LEVEL] = None,
    messages: bool = False,
    max_: Annotated[int | None, MaxOption] = None,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Print what waits in each delay level, or every message that waits.

    Parameters
    ----------
    store
        Directory of the store.
    level
        Only this level.
    messages
        Print every message, by level and due time, not how many there are.
    max_
        Most messages to print; without it all.
    settings
        Where settings come from: messageDelayLevel gives the levels.
    output
        How to print.
    """
    from rocketstore.cli.reading import open_for_reading
    from rocketstore.delay import waiting_levels, waiting_messages

    now_ms = time.time_ns() // 1_000_000
    with open_for_reading(store, settings) as reader:
        if messages:
            print_rows(
                (
                    {
                        "level": one.level,
                        "dueTimestamp": one.due_ms,
                        "overdue": one.due_ms <= now_ms,
                        "topic": one.topic,
                        "queueId": one.queue_id,
                        "physicalOffset": one.physical_offset,
                        "size": one.size,
                    }
                    for one in itertools.islice(waiting_messages(reader, level), max_)
                ),
                output,
                columns=("level", "dueTimestamp", "overdue", "topic", "queueId", "physicalOffset"),
            )
            return 0
        rows = (
            {
                "level": one.level,
                "delayMs": one.delay_ms,
                "waiting": one.waiting,
                "overdue": one.overdue,
                "firstDueTimestamp": one.first_due_ms,
                "lastDueTimestamp": one.last_due_ms,
            }
            for one in waiting_levels(reader, now_ms)
            if level in (None, one.level)
        )
        columns = (
            "level", "delayMs", "waiting", "overdue", "firstDueTimestamp", "lastDueTimestamp",
        )  # fmt: skip
        print_rows(rows, output, columns=columns)
    return 0
