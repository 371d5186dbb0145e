"""Read the field table of a format page, so that a test can compare it with the module's."""

from __future__ import annotations

from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "format"

TYPES = {
    "int": "i",
    "unsigned int": "I",
    "long": "q",
    "short": "h",
    "byte": "b",
    "bytes": "s",
}
"""What a page calls the codes of `struct`."""


def field_table(page: str) -> list[tuple[str, str, str, str, str]]:
    """Return (name, width, code, unit, meaning) of each row of the page's field table.

    The table is the first one whose header names these columns, in whatever order.
    """
    rows: list[tuple[str, str, str, str, str]] = []
    columns: list[str] = []
    for line in (PAGES / f"{page}.md").read_text("utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if {"field", "width", "type", "unit", "meaning"} <= set(cells):
            columns = cells
        elif columns and not line.startswith("|"):
            break
        elif columns and not set(cells[0]) <= set("-: "):
            row = dict(zip(columns, cells, strict=True))
            rows.append(
                (row["field"], row["width"], TYPES[row["type"]], row["unit"], row["meaning"])
            )
    return rows
