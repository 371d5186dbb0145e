"""What a write asked for, of the options of the sink."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketstore.errors import ConfigError
from rocketstore.pipeline.files import is_remote, local_path, refuse_secrets
from rocketstore.pipeline.options import SINK, GivenOptions
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_QUEUE_COUNT: Final = 4
"""Queues that a producer of 4.9 asks for (defaultTopicQueueNums of DefaultMQProducer)."""

DEFAULT_CHUNK_BYTES: Final = 8 * MiB
"""Two bodies of the largest size, or thousands of usual ones."""

DEFAULT_LOCK_TIMEOUT_S: Final = 60.0
"""Another sink has the store for as long as it appends one batch: several GB in this time."""

QUEUE_COUNT_MAX: Final = 65_536
"""A queue is a directory with a file of 6 MB; more of them is a slip."""

STORE_KEYS: Final = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
    "maxMessageSize",
)
"""Options that are settings of the store under the names of ``broker.conf``."""

_SINK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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
    lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S
    store_config: str | None = None
    store_settings: dict[str, str] = field(default_factory=dict)


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write.

    Raises
    ------
    ConfigError
        An unknown option, a malformed value, or a missing one.
    """
    values = GivenOptions(given, frozenset({SINK}))
    sink_id = values.get("sinkId")
    if sink_id is not None and _SINK_ID.fullmatch(sink_id) is None:
        raise values.refused("sinkId", "must be letters, digits, _, . and -, 100 at most")
    batch_id = values.number("batchId")
    if streaming and sink_id is None:
        raise ConfigError(
            "writeStream needs option sinkId, under which the store remembers its batches",
            key="sinkId",
            hint='give each query a name of its own: .option("sinkId", "orders-copy")',
        )
    if streaming and batch_id is not None:
        raise values.refused("batchId", "is for write: Spark numbers a stream's")
    if not streaming and (sink_id is None) != (batch_id is None):
        name = "batchId" if batch_id is None else "sinkId"
        raise ConfigError(
            f"sinkId and batchId come together, and {name} is missing",
            key=name,
            hint="give both for a write that takes effect once, or neither",
        )
    lock_timeout_s = values.seconds("lockTimeout")
    return SinkOptions(
        root=_root(values),
        topic=values.get("topic"),
        sink_id=sink_id,
        batch_id=batch_id,
        queue_count=values.number("queueCount", 1, QUEUE_COUNT_MAX) or DEFAULT_QUEUE_COUNT,
        chunk_bytes=values.byte_count("chunkBytes", 1024 * MiB) or DEFAULT_CHUNK_BYTES,
        lock_timeout_s=DEFAULT_LOCK_TIMEOUT_S if lock_timeout_s is None else lock_timeout_s,
        store_config=values.get("storeConfig"),
        store_settings={key: values[key] for key in STORE_KEYS if key in values},
    )


def _root(values: GivenOptions) -> str:
    path = values.get("path", "").strip()
    if not path:
        raise ConfigError("no store is named", key="path", hint="give its directory to save()")
    refuse_secrets(path)
    if is_remote(path):
        raise values.refused(
            "path",
            "must be a directory: a store is appended to in place",
            "write to a directory that driver and executors share",
        )
    # Without `..`, and links stay as a user wrote them.
    return os.path.abspath(local_path(path))  # noqa: PTH100
