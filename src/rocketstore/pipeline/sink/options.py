"""Options of the sink: parsed once, refused by name when unknown or out of place."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline.files import is_remote, local_path, refuse_secrets
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_QUEUE_COUNT: Final = 4
"""Queues that a producer of 4.9 asks for (defaultTopicQueueNums of DefaultMQProducer)."""

DEFAULT_CHUNK_BYTES: Final = 8 * MiB
"""What a task holds, and the driver reads at once: two records of the largest size, or thousands
of usual ones."""

QUEUE_COUNT_MAX: Final = 65_536
"""A queue is a directory with a file of 6 MB; more of them is a slip."""

_SIZE_UNITS: Final = {"": 1, "k": 1024, "m": MiB, "g": 1024 * MiB}
_SINK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_INT64_MAX: Final = 2**63 - 1


class SinkOption(NamedTuple):
    """One option, as the page has it."""

    name: str
    default: str
    meaning: str


SINK_OPTIONS: Final = (
    SinkOption("path", "-", "directory of the store; made when it is not there"),
    SinkOption("topic", "-", "topic of every message; wins over the column `topic`"),
    SinkOption("sinkId", "-", "name of this writer; needed by `writeStream`"),
    SinkOption("batchId", "-", "number of this batch; of `write` only, together with `sinkId`"),
    SinkOption("queueCount", "4", "queues of a topic among which rows without `queueId` go"),
    SinkOption("chunkBytes", "8 MiB", "bytes that a task or the commit holds at a time"),
    SinkOption("storeConfig", "-", "a `broker.conf` with the settings of the store"),
    SinkOption("mappedFileSizeCommitLog", "learnt, or 1 GiB", "bytes of a CommitLog file"),
    SinkOption("mappedFileSizeConsumeQueue", "learnt, or 6 MB", "bytes of a queue file"),
    SinkOption("maxHashSlotNum", "learnt, or 5 million", "slots of an index file"),
    SinkOption("maxIndexNum", "learnt, or 20 million", "items of an index file"),
    SinkOption("maxMessageSize", "4 MiB", "largest body in bytes"),
)
"""The page's table; names are matched without regard to case, as Spark's are."""

STORE_KEYS: Final = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "maxMessageSize",
)
"""Options that are settings of the store under the names of ``broker.conf``."""

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself reads and hands on."""

_BY_KEY: Final = {option.name.lower(): option.name for option in SINK_OPTIONS}


@dataclass(frozen=True)
class SinkOptions:
    """What a write asked for.

    Attributes
    ----------
    root
        Absolute path of the store.
    store_settings
        Settings of the store that were given as options, by their ``broker.conf`` key.
    """

    root: str
    topic: str | None = None
    sink_id: str | None = None
    batch_id: int | None = None
    queue_count: int = DEFAULT_QUEUE_COUNT
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    store_config: str | None = None
    store_settings: dict[str, str] = field(default_factory=dict)


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write.

    Raises
    ------
    ConfigError
        An unknown option, a malformed value, or a missing one.
    """
    values = _known(given)
    sink_id = values.get("sinkId")
    if sink_id is not None and _SINK_ID.fullmatch(sink_id) is None:
        raise _error("sinkId", sink_id, "must be letters, digits, _, . and -, 100 at most")
    batch_id = _integer(values, "batchId", 0, _INT64_MAX)
    if streaming and sink_id is None:
        raise ConfigError(
            "writeStream needs option sinkId, under which the store remembers its batches",
            key="sinkId",
            hint='give each query a name of its own: .option("sinkId", "orders-copy")',
        )
    if streaming and batch_id is not None:
        raise _error("batchId", str(batch_id), "is for write: Spark numbers a stream's")
    if not streaming and (sink_id is None) != (batch_id is None):
        name = "batchId" if batch_id is None else "sinkId"
        raise ConfigError(
            f"sinkId and batchId come together, and {name} is missing",
            key=name,
            hint="give both for a write that takes effect once, or neither",
        )
    return SinkOptions(
        root=_root(values),
        topic=values.get("topic"),
        sink_id=sink_id,
        batch_id=batch_id,
        queue_count=_integer(values, "queueCount", 1, QUEUE_COUNT_MAX) or DEFAULT_QUEUE_COUNT,
        chunk_bytes=_byte_count(values, "chunkBytes") or DEFAULT_CHUNK_BYTES,
        store_config=values.get("storeConfig"),
        store_settings={key: values[key] for key in STORE_KEYS if key in values},
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    known = {}
    for key, value in given.items():
        if key.lower() in SPARKS_OWN:
            continue
        name = _BY_KEY.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), _BY_KEY, n=1)
            hint = f"did you mean {_BY_KEY[near[0]]}?" if near else None
            names = ", ".join(option.name for option in SINK_OPTIONS)
            raise _error(key, value, "of a sink is unknown", hint or f"there are {names}")
        known[name] = value
    return known


def _root(values: Mapping[str, str]) -> str:
    path = values.get("path", "").strip()
    if not path:
        raise ConfigError("no store is named", key="path", hint="give its directory to save()")
    refuse_secrets(path)
    if is_remote(path):
        raise _error(
            "path",
            path,
            "must be a directory: a store is appended to in place",
            "write to a directory that driver and executors share",
        )
    # Without `..`, and links stay as a user wrote them.
    return os.path.abspath(local_path(path))  # noqa: PTH100


def _integer(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not is_number or not least <= int(text) <= most:
        raise _error(name, values[name], f"must be a number from {least} to {most}")
    return int(text)


def _byte_count(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    match = re.fullmatch(r"\s*(\d{1,18})\s*([kmg]?)i?b?\s*", values[name], re.IGNORECASE | re.ASCII)
    count = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
    if not 1 <= count <= 1024 * MiB:
        raise _error(name, values[name], "must be a number of bytes up to 1g, such as 8m")
    return count


def _error(name: str, value: str, what: str, hint: str | None = None) -> ConfigError:
    return ConfigError(
        f"option {name} {what}, found {value!r:.200}", key=name, value=value, hint=hint
    )
