"""Rows for people and for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocketstore.cli.options import Output


def print_rows(rows: Iterable[dict[str, Any]], output: Output, *, columns: Sequence[str]) -> int:
    """Print rows in the order they come and return how many there were.

    Parameters
    ----------
    rows
        One dict per row, JSON-ready, with the field names of DESIGN 8.
    output
        ``jsonl`` streams; ``json`` is one array; ``table`` shows only `columns`.
    columns
        Keys a table shows, in order.
    """
    if output == "jsonl":
        return _print_lines(rows)
    if output == "json":
        return _print_array(rows)
    return _print_table(rows, columns)


def print_object(value: dict[str, Any], output: Output) -> None:
    """Print one object: a two-column table, or one JSON object."""
    if output != "table":
        print(msgspec.json.encode(value).decode())
        return
    width = max((len(key) for key in value), default=0)
    for key, entry in value.items():
        print(f"{key:<{width}}  {_text(entry)}")


def _print_lines(rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    write = sys.stdout.write
    for row in rows:
        write(msgspec.json.encode(row).decode() + "\n")
        count += 1
    return count


def _print_array(rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    write = sys.stdout.write
    for row in rows:
        write(("[\n" if count == 0 else ",\n") + msgspec.json.encode(row).decode())
        count += 1
    write("\n]\n" if count else "[]\n")
    return count


def _print_table(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> int:
    shown = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(line[at]) for line in shown)) if shown else len(column)
        for at, column in enumerate(columns)
    ]
    _print_cells(columns, widths)
    _print_cells(["-" * width for width in widths], widths)
    for line in shown:
        _print_cells(line, widths)
    return len(shown)


def _print_cells(cells: Sequence[str], widths: Sequence[int]) -> None:
    line = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
    print(line.rstrip())


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(_text(entry) for entry in value)
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return str(value)
