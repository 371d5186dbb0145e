"""Progress with rate and time left, on stderr and only on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, ProgressColumn, TaskID


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
        ``bytes``, shown as MB/s; a plural noun, shown as a count per second; or nothing, for what
        takes as long as it takes.
    """
    if not sys.stderr.isatty():
        yield lambda _advance: None
        return
    with _bar(task, total, unit) as (shown, handle):

        def advance(amount: int) -> None:
            shown.update(handle, advance=amount, rate=_rate(shown))

        yield advance


@contextmanager
def job_progress(task: str, *, unit: str = "bytes") -> Iterator[Callable[[int, int], None] | None]:
    """Show how far a job of the pipeline is; yields what its `progress` is to be.

    None where stderr is no terminal: told nobody, Spark has one job to do instead of twenty.
    """
    if not sys.stderr.isatty():
        yield None
        return
    # How much there is, it says with its first step.
    with _bar(task, None, "") as (shown, handle):

        def advance(amount: int, total: int) -> None:
            shown.columns = _columns(unit)
            before = shown.tasks[0].completed
            # More than there is: the job goes over its tasks again.
            completed = before + amount if before + amount <= total else amount
            shown.update(handle, completed=completed, total=total, rate=_rate(shown))

        yield advance


@contextmanager
def _bar(task: str, total: int | None, unit: str) -> Iterator[tuple[Progress, TaskID]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(*_columns(unit), console=console, transient=True) as shown:
        yield shown, shown.add_task(task, total=total, rate="-")


def _columns(unit: str) -> tuple[ProgressColumn, ...]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    begin = (TextColumn("{task.description}"), BarColumn(24))
    if not unit:
        return (*begin, TimeElapsedColumn())
    counts: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if unit != "bytes":
        rate = TextColumn("{task.fields[rate]} " + unit + "/s")
        counts = (MofNCompleteColumn(), rate)
    return (*begin, TaskProgressColumn(), *counts, TimeRemainingColumn())


def _rate(shown: Progress) -> str:
    speed = shown.tasks[0].speed
    return "-" if speed is None else f"{speed:,.0f}"
