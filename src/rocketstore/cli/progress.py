"""Progress with rate and time left, on stderr and only on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress(
    task: str, *, total: int | None, unit: str = "bytes"
) -> Iterator[Callable[[int], None]]:
    """Show how far `task` is; yields a function that takes what was done since its last call.

    Parameters
    ----------
    task
        What is being done, as a verb phrase.
    total
        The whole, in `unit`; None when it is not known.
    unit
        ``bytes``, shown as MB/s, or a plural noun, shown as a count per second.
    """
    if not sys.stderr.isatty():
        yield lambda _advance: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (
        (DownloadColumn(), TransferSpeedColumn())
        if unit == "bytes"
        else (MofNCompleteColumn(), TextColumn("{task.fields[rate]} " + unit + "/s"))
    )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        handle = shown.add_task(task, total=total, rate="-")

        def advance(amount: int) -> None:
            speed = shown.tasks[0].speed
            shown.update(handle, advance=amount, rate="-" if speed is None else f"{speed:,.0f}")

        yield advance
