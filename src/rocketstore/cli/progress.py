"""Progress with rate and time left, on stderr, only on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import ProgressColumn


@contextmanager
def progress(
    task: str, *, total: int | None, unit: str = "bytes"
) -> Iterator[Callable[[int], None]]:
    """Show how far `task`, a verb phrase, is; yields what to call with the amount done since then.

    A rate is shown as MB/s, or as a count per second of another `unit`, a plural noun.
    """
    if not sys.stderr.isatty():
        yield lambda _advance: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(*_columns(unit), console=console, transient=True) as shown:
        handle = shown.add_task(task, total=total, rate="-")

        def advance(amount: int) -> None:
            speed = shown.tasks[0].speed
            rate = "-" if speed is None else f"{speed:,.0f}"
            shown.update(handle, advance=amount, rate=rate)

        yield advance


def _columns(unit: str) -> tuple[ProgressColumn, ...]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    begin = (TextColumn("{task.description}"), BarColumn(24))
    counts: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if unit != "bytes":
        rate = TextColumn("{task.fields[rate]} " + unit + "/s")
        counts = (MofNCompleteColumn(), rate)
    return (*begin, TaskProgressColumn(), *counts, TimeRemainingColumn())
