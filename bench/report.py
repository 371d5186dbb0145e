"""Outcomes for people and for ``bench/results``."""

from __future__ import annotations

import datetime as dt
import json
import statistics
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.comparison import BEFORE, JAVA, OURS, Outcome
from bench.scenario import Verdict

if TYPE_CHECKING:
    from pathlib import Path


def print_table(outcomes: list[Outcome], *, title: str, with_java: bool) -> None:
    """Print one line per measure."""
    with_before = any(BEFORE in outcome.figures for outcome in outcomes)
    table = Table(title=title)
    table.add_column("scenario", no_wrap=True)
    table.add_column("measure", no_wrap=True)
    table.add_column("ours", justify="right")
    if with_java:
        table.add_column("Java 4.9.8", justify="right")
        table.add_column("ratio (min median max)", justify="right")
        table.add_column("target", justify="right")
        table.add_column("", justify="left")
    if with_before:
        table.add_column("before", justify="right")
        table.add_column("times before", justify="right")
    for outcome in outcomes:
        unit = outcome.measure.unit
        row = [outcome.scenario.name, outcome.measure.name, _median(outcome, OURS, unit)]
        if with_java:
            row += [_median(outcome, JAVA, unit), _spread(outcome), _target(outcome), _met(outcome)]
        if with_before:
            row += [_median(outcome, BEFORE, unit), _range(outcome.times_before)]
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 150).print(table)


def save(outcomes: list[Outcome], path: Path, *, about: dict[str, Any]) -> None:
    """Write everything that was measured, with what it was measured on."""
    document = {**about, "outcomes": [outcome.to_json() for outcome in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


def one_line(outcome: Outcome) -> str:
    """Return an outcome in one line, for who watches."""
    unit = outcome.measure.unit
    parts = [f"{side} {_median(outcome, side, unit)}" for side in outcome.figures]
    if len(outcome.figures) > 1:
        parts.append(f"ratio {_spread(outcome)}")
    return f"{outcome.measure.name}: {', '.join(parts)} {_met(outcome)}".rstrip()


def today() -> str:
    """Return the date of the run."""
    return dt.datetime.now(tz=dt.UTC).date().isoformat()


def default_name(memory: str) -> str:
    """Return ``<date>-<commit>-<machine>-<memory>.json``."""
    return f"{today()}-{machine.commit()}-{machine.slug()}-{memory}-memory.json"


def _median(outcome: Outcome, side: str, unit: str) -> str:
    figures = outcome.figures.get(side)
    return f"{_number(statistics.median(figures))} {unit}" if figures else "-"


def _spread(outcome: Outcome) -> str:
    if not outcome.judged and not outcome.figures.get(JAVA):
        return "-"
    return _range(outcome.verdicts)


def _range(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    return f"{min(ratios):.2f}  {statistics.median(ratios):.2f}  {max(ratios):.2f}"


def _target(outcome: Outcome) -> str:
    target = outcome.measure.target
    if target is None:
        return "-"
    at_most = outcome.measure.verdict in (Verdict.LATENCY, Verdict.MOST)
    return f"{'<=' if at_most else '>='} {target:g}"


def _met(outcome: Outcome) -> str:
    return {None: "", True: "met", False: "MISSED"}[outcome.met]


def _number(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1e6:.2f} M"
    if value >= 10_000:
        return f"{value / 1e3:.0f} k"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
