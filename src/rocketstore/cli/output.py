"""Rows for people and for programs.

A table fits the terminal, or ``COLUMNS``: long texts are cut with an ellipsis, notes are wrapped.
Where output goes to a file or a pipe and ``COLUMNS`` says nothing, only bodies are cut.

Law: a number, a time and an id are never cut; tables show times in the zone of this machine, JSON
has milliseconds. Rich's tables are not used: they take 0.2 ms a row and cut all columns alike.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

from rocketstore.cli.wording import drop_output, local_time, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocketstore.cli.options import Output

_TEXTS: Final = ("body", "keys", "tags", "topic", "value", "origin", "place", "file")
"""Columns that may be cut, in this order."""

_LEAST_WIDTH: Final = {"body": 12, "keys": 8, "tags": 6}
_LEAST_WIDTH_OF_OTHERS: Final = 16
_USUAL_WIDTH: Final = 80
_GAP: Final = "  "
_INDENT: Final = "    "


@contextlib.contextmanager
def before_a_verdict() -> Iterator[None]:
    """Print what the exit code is of, so that the code is right whether or not it is read."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


def print_rows(
    rows: Iterable[dict[str, Any]],
    output: Output,
    *,
    columns: Sequence[str],
    notes: Sequence[str] = (),
) -> int:
    """Print rows, JSON-ready, in the order they come and return how many there were.

    A table shows only `columns`, in order, and below each row the sentences of the keys `notes`, on
    lines of their own.
    """
    if output == "table":
        return _print_table(rows, columns, notes)
    return _print_json(rows, is_array=output == "json")


def print_object(value: dict[str, Any], output: Output) -> None:
    """Print one object: a two-column table, or one JSON object."""
    if output != "table":
        print(json_text(value))
        return
    margin = max((len(key) for key in value), default=0) + len(_GAP)
    for key, entry in value.items():
        entries = entry if isinstance(entry, list | tuple) and entry else [entry]
        for number, one in enumerate(entries):
            lines = _wrapped(cell_text(key, one), margin, is_data=True)
            print(f"{'' if number else key:<{margin}}{lines[0]}")
            for line in lines[1:]:
                print(" " * margin + line)


def print_text(text: str) -> None:
    """Print a paragraph, wrapped to the terminal."""
    for line in _wrapped(text, 0):
        print(line)


def cell_text(column: str, value: object) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if column.endswith("Timestamp") and isinstance(value, int):
        return local_time(value) if value else "-"
    if isinstance(value, list | tuple):
        return ",".join(cell_text(column, entry) for entry in value) or "-"
    if isinstance(value, dict):
        return printable(json_text(value))
    return printable(str(value))


def terminal_width() -> int | None:
    """Return how wide tables may be, None for no limit."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def fit(text: str, width: int) -> str:
    """Return a text cut to a number of terminal cells."""
    if _cell_count(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…"


def _cell_count(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def json_text(value: dict[str, Any]) -> str:
    """Return an object as JSON; of a path that is no UTF-8, each such byte is an escape."""
    import msgspec

    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        import json

        plain = msgspec.to_builtins(value)
        return json.dumps(plain, separators=(",", ":"), default=msgspec.json.decode)


def _print_json(rows: Iterable[dict[str, Any]], *, is_array: bool) -> int:
    """Print an object per line; those of an array stand in brackets, with commas between them."""
    count = 0
    for row in rows:
        text = json_text(row)
        if is_array:
            sys.stdout.write(("," if count else "[") + "\n" + text)
        else:
            sys.stdout.write(text + "\n")
        count += 1
    if is_array:
        sys.stdout.write("\n]\n" if count else "[]\n")
    return count


def _print_table(
    rows: Iterable[dict[str, Any]], columns: Sequence[str], notes: Sequence[str]
) -> int:
    limit = terminal_width()
    longest = (limit or _USUAL_WIDTH) + 1
    shown: list[tuple[list[str], list[str]]] = []
    for row in rows:
        if "body" in row:  # maybe megabytes, of which only the beginning is shown
            row["body"] = row["body"][:longest]
        sentences = [printable(str(row[note])) for note in notes if row.get(note)]
        shown.append(([cell_text(column, row.get(column)) for column in columns], sentences))
    widths = _widths(columns, [cells for cells, _ in shown], limit)
    _print_cells(columns, widths)
    _print_cells(["-" * width for width in widths], widths)
    for cells, sentences in shown:
        _print_cells(cells, widths)
        for sentence in sentences:
            for line in _wrapped(sentence, len(_INDENT)):
                print(_INDENT + line)
    return len(shown)


def _widths(columns: Sequence[str], shown: Sequence[Sequence[str]], limit: int | None) -> list[int]:
    """Return the width of each column, where texts give way until the table fits."""
    widths = [
        max(len(column), *(_cell_count(line[at]) for line in shown)) if shown else len(column)
        for at, column in enumerate(columns)
    ]
    for column in _TEXTS:
        if column not in columns or (limit is None and column != "body"):
            continue
        at = columns.index(column)
        surplus = sum(widths) + len(_GAP) * (len(widths) - 1) - (limit or _USUAL_WIDTH)
        least = max(len(column), _LEAST_WIDTH.get(column, _LEAST_WIDTH_OF_OTHERS))
        if surplus > 0 and widths[at] > least:
            widths[at] = max(least, widths[at] - surplus)
    return widths


def _print_cells(cells: Sequence[str], widths: Sequence[int]) -> None:
    parts = [fit(cell, width) for cell, width in zip(cells, widths, strict=True)]
    line = _GAP.join(
        part + " " * (width - _cell_count(part)) for part, width in zip(parts, widths, strict=True)
    )
    print(line.rstrip())


def _wrapped(text: str, margin: int, *, is_data: bool = False) -> list[str]:
    """Return the lines of a text; in data, no blank between them is lost."""
    width = terminal_width()
    if width is None or len(text) + margin <= width:
        return [text]
    return textwrap.wrap(
        text,
        max(width - margin, _LEAST_WIDTH_OF_OTHERS),
        break_on_hyphens=False,
        drop_whitespace=not is_data,
        replace_whitespace=not is_data,
        expand_tabs=not is_data,
    )
