"""Write a report's files so that none is ever seen in part.

Law: everything is written under temporary names beside its place, synced, and only then renamed:
the tables first, the page last. A report that is killed leaves at most a directory whose name
begins with a dot. A directory that holds anything but a report's tables is not touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.files import files_at
from rocketstore.pipeline.jobs.report.tables import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_NAME: Final = "rocketstore-report.html"
TABLES_SUFFIX: Final = ".tables"
_PARTIAL: Final = ".rocketstore-report-"


class OutputPlaces(NamedTuple):
    """Where a report's files go."""

    page: Path
    tables: Path
    json: Path


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
    page = Path(out).absolute()
    places = OutputPlaces(page, page.with_suffix(TABLES_SUFFIX), page.with_suffix(".json"))
    if page.is_dir() or page.suffix in (TABLES_SUFFIX, ".json", ""):
        raise ConfigError(
            f"{page} is no name of a page",
            key="out",
            value=str(out),
            hint="name a file that ends in .html; tables and JSON go beside it",
        )
    for location in stores:
        _, root = files_at(location) if "://" not in location else (None, "")
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
    places: OutputPlaces, page: str, tables: dict[str, Any], summary: dict[str, Any]
) -> None:
    """Write page, tables and JSON, and replace those of an earlier report.

    Raises
    ------
    StoreError
        Something cannot be written; an earlier report is still there as it was, or, in the moment
        of the renames, its page beside the new tables.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - only here

    try:
        with _workspace(places.page.parent) as workspace:
            built = workspace / "tables"
            built.mkdir()
            for name, table in tables.items():
                pq.write_table(table, built / f"{name}.parquet", compression="zstd")
                _sync(built / f"{name}.parquet")
            _sync(built)
            listed = {name: _plain_rows(table) for name, table in tables.items()}
            text = json.dumps({"summary": summary, "tables": listed}, ensure_ascii=True)
            _write_text(workspace / "json", text)
            # Halves of surrogate pairs, which no topic of a sane store has, are not UTF-8.
            _write_text(workspace / "page", page)
            _exchange(built, places.tables, workspace / "earlier")
            (workspace / "json").replace(places.json)
            (workspace / "page").replace(places.page)
            _sync(places.page.parent)
    except OSError as error:
        raise StoreError(
            f"the report cannot be written to {places.page.parent}: {error.strerror or error}",
            hint="make room or name another place; no page was left half-written",
        ) from error


@contextlib.contextmanager
def _workspace(parent: Path) -> Iterator[Path]:
    """Make a directory for the length of a ``with`` block."""
    workspace = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent))
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _exchange(built: Path, place: Path, kept: Path) -> None:
    """Put a directory in its place; what was there goes elsewhere, or back when that fails."""
    had_one = place.exists()
    if had_one:
        place.rename(kept)
    try:
        built.rename(place)
    except OSError:
        if had_one:
            kept.rename(place)
        raise


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
