"""``rocketstore delay``: delayed messages of a store."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter, validators

from rocketstore.cli.options import DEFAULTS, CommandOptions, MaxOption, StoreArgument
from rocketstore.cli.output import print_rows
from rocketstore.units import system_clock_ms

if TYPE_CHECKING:
    from rocketstore.delay.levels import Level

app = App(name="delay")

_LEVEL_COLUMNS: Final = (
    "level", "delayMs", "waiting", "overdue", "firstDueTimestamp", "lastDueTimestamp",
)  # fmt: skip
_MESSAGE_COLUMNS: Final = ("level", "dueTimestamp", "overdue", "topic", "queueId", "physicalOffset")
_LEVEL = Parameter(name=["--level", "-l"], validator=validators.Number(gte=1))


@app.command(name="list")
def list_delays(
    store: StoreArgument,
    /,
    *,
    level: Annotated[int | None, _LEVEL] = None,
    messages: bool = False,
    max_: Annotated[int | None, MaxOption] = None,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Print the waiting messages of each delay level, counted or one by one.

    Parameters
    ----------
    level
        Only this level.
    messages
        Print every message, by level and due time, not how many there are.
    max_
        Most messages to print; without it all.
    """
    from rocketstore.delay import waiting, waiting_messages

    now_ms = system_clock_ms()
    with options.open(store) as reader:
        if messages:
            rows = (
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
            )
            print_rows(rows, options.output, columns=_MESSAGE_COLUMNS)
        else:
            counted = (
                _counted(of, [entry.due_ms for entry in entries], now_ms)
                for of, entries in waiting(reader)
                if level in (None, of.number)
            )
            print_rows(counted, options.output, columns=_LEVEL_COLUMNS)


def _counted(level: Level, due_ms: list[int], now_ms: int) -> dict[str, int]:
    return {
        "level": level.number,
        "delayMs": level.delay_ms,
        "waiting": len(due_ms),
        "overdue": sum(due <= now_ms for due in due_ms),
        "firstDueTimestamp": min(due_ms, default=0),
        "lastDueTimestamp": max(due_ms, default=0),
    }
