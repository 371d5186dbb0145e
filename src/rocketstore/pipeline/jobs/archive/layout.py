"""Where things lie below an archive, and how topics and days become names of directories.

    messages/run=00000001/topic=…/day=…/part-00000.parquet   one row per record
    messages/run=00000001/_manifest.json                     what counts, and what was read
    messages/run=00000001/_config/                           the store's JSON tables
    extents/run=00000001/part-00000.parquet                  everything that is no record
    _staging/                                                a run that is not committed yet
    _lock                                                    held by the one writer

Law: a run is complete or not there. It is built in ``_staging`` and gets its name below
``messages`` by one rename, so that a plain ``spark.read.parquet("…/messages")`` never sees half of
one.

How derived: names are escaped as Spark and Hive do (``ExternalCatalogUtils.escapePathName``), and
what begins with an underscore is passed over by Spark, pyarrow and DuckDB.
Page: docs/reference/archive.md.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rocketstore.errors import ConfigError
from rocketstore.pipeline.files import is_remote, local_path, refuse_secrets

MESSAGES: Final = "messages"
EXTENTS: Final = "extents"
STAGING: Final = "_staging"
LOCK: Final = "_lock"
MANIFEST: Final = "_manifest.json"
CONFIG: Final = "_config"

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Directory value of an empty topic, and of a time that no calendar has; read as null."""

DAY_MS: Final = 86_400_000

_RUN: Final = re.compile(r"run=(\d{8,})")
_ESCAPED: Final = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_NAME_MAX_BYTES: Final = 200
"""File systems allow 255 bytes; a topic of 5.x may have more, so it is cut and told by a hash."""


def local_directory(location: str | Path) -> Path:
    """Return the directory of an archive on a disk, or of a store that is restored.

    Raises
    ------
    ConfigError
        It is somewhere else than on a disk that workers see.
    """
    text = str(location)
    if is_remote(text):
        refuse_secrets(text)
        raise ConfigError(
            f"{text}: stores are restored by renaming a directory, which object stores lack",
            hint="name a directory on a disk that all workers see, and copy it when it is done",
        )
    return Path(local_path(text))


def run_name(run: int) -> str:
    """Return the directory name of a run."""
    return f"run={run:08d}"


def parse_run_name(name: str) -> int | None:
    """Return the number of a run's directory, None for anything else."""
    match = _RUN.fullmatch(name)
    return None if match is None else int(match[1])


def partition(topic: bytes, day: int | None) -> str:
    """Return the directory of a topic's day below a run.

    Parameters
    ----------
    topic
        As stored.
    day
        Days since 1970-01-01 of the store time in UTC; None when no calendar has the time.

    Examples
    --------
    >>> partition(b"%RETRY%group", 20000)
    'topic=%25RETRY%25group/day=2024-10-04'
    """
    date = NO_VALUE if day is None else day_text(day)
    return f"topic={escaped_topic(topic)}/day={date}"


def escaped_topic(topic: bytes) -> str:
    """Return a topic as the value in a directory's name."""
    if not topic:
        return NO_VALUE
    text = topic.decode("utf-8", "replace")
    escaped = _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)
    encoded = escaped.encode()
    if len(encoded) <= _NAME_MAX_BYTES:
        return escaped
    head = encoded[:_NAME_MAX_BYTES].decode("utf-8", "ignore")
    return f"{head}~{zlib.crc32(topic):08x}"


def day_text(day: int) -> str:
    """Return a day as in 2026-11-21."""
    return datetime.fromtimestamp(day * DAY_MS // 1000, UTC).strftime("%Y-%m-%d")
