"""Write a report's files so that none is ever seen in part.

Law: everything is written under temporary names beside its place, synced, and only then put there
(`replacement`). A report that is killed leaves at most a directory whose name begins with a dot,
which the next one removes. A directory that holds anything but a report's tables is not touched.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.files import is_remote, local_path, sync_path
from rocketstore.pipeline.jobs.report.replacement import (
    TABLES_SUFFIX,
    OutputPlaces,
    replace_report,
    workspace_for,
)
from rocketstore.pipeline.jobs.report.tables import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULT_NAME: Final = "rocketstore-report.html"


def output_places(out: str | os.PathLike[str], stores: Iterable[str]) -> OutputPlaces:
    """Return where the files go, and check that they can.

    Raises
    ------
    ConfigError
        The name has no place for a page: a directory, a place inside a store, tables of somebody
        else.
    StoreError
        The directory is not there or cannot be written to.
    """
    page = Path(local_path(str(out)))
    places = OutputPlaces.of(page)
    if page.is_dir() or page.suffix in (TABLES_SUFFIX, ".json", ""):
        raise ConfigError(
            f"{page} is no name of a page",
            key="out",
            value=str(out),
            hint="name a file that ends in .html; tables and JSON go beside it",
        )
    for location in stores:
        root = "" if is_remote(location) else local_path(location)
        if root and page.resolve().is_relative_to(Path(root).resolve()):
            raise ConfigError(
                f"{page} lies inside the store {location}, which a report leaves as it is",
                key="out",
                value=str(out),
                hint="name a file elsewhere",
            )
    if not os.access(page.parent, os.W_OK | os.X_OK):
        what = "cannot be written to" if page.parent.is_dir() else "is not there"
        raise StoreError(f"{page.parent} {what}", hint="make it, or name another place")
    _check_tables_are_ours(places.tables)
    return places


def _check_tables_are_ours(tables: Path) -> None:
    if not tables.exists():
        return
    ours = {f"{name}.parquet" for name in SCHEMAS}
    others = [] if not tables.is_dir() else sorted({one.name for one in tables.iterdir()} - ours)
    if others or not tables.is_dir():
        found = f"it holds {others[0]}" if others else "it is no directory"
        raise ConfigError(
            f"{tables} holds no tables of a report: {found}",
            key="out",
            value=str(tables),
            hint="give the page another name",
        )


def write_report(
    places: OutputPlaces,
    page: str,
    tables: dict[str, Any],
    summary: dict[str, Any],
    step: Callable[[str], None] = lambda _name: None,
    *,
    drawn: dict[str, Any] | None = None,
) -> None:
    """Write page, tables and JSON, and replace those of an earlier report.

    Parameters
    ----------
    step
        Told before each step; a test's own may end the process there.
    drawn
        Numbers that only the page shows; JSON has them as ``page``.

    Raises
    ------
    StoreError
        Something cannot be written; an earlier report is still there as it was.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - only here

    try:
        with workspace_for(places) as workspace:
            step("begin")
            built = workspace / "tables"
            built.mkdir()
            for name, table in tables.items():
                pq.write_table(table, built / f"{name}.parquet", compression="zstd")
                sync_path(built / f"{name}.parquet")
            sync_path(built)
            listed = {name: _plain_rows(table) for name, table in tables.items()}
            text = json.dumps(
                {"summary": summary, "page": drawn or {}, "tables": listed}, ensure_ascii=True
            )
            _write_text(workspace / "json", text)
            # Halves of surrogate pairs, which no topic of a sane store has, are not UTF-8.
            _write_text(workspace / "page", page)
            sync_path(workspace)
            replace_report(workspace, places, step)
            step("sweep")
    except OSError as error:
        raise StoreError(
            f"the report cannot be written to {places.page.parent}: {error.strerror or error}",
            hint="make room or name another place; no page was left half-written",
        ) from error


def _plain_rows(table: Any) -> list[dict[str, Any]]:
    """Return rows that JSON can hold: times as ISO 8601."""
    return [
        {
            name: value.isoformat(timespec="milliseconds") if hasattr(value, "isoformat") else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
