"""The tables of a Markdown page as rows, so that a test can compare it with a module."""

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def tables(page: str) -> list[list[dict[str, str]]]:
    """Return the tables of ``docs/<page>`` in order; a row is a dict by column."""
    found: list[list[dict[str, str]]] = []
    columns: list[str] | None = None
    for line in (DOCS / page).read_text("utf-8").splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if columns is None:
            columns = cells
            found.append([])
        elif set(line) - set("|-: "):
            found[-1].append(dict(zip(columns, cells, strict=True)))
    return found


def table_with(page: str, *columns: str, number: int = 0) -> list[dict[str, str]]:
    """Return the table number `number` among those that have all of `columns`."""
    having = [table for table in tables(page) if table and set(columns) <= set(table[0])]
    return having[number]
