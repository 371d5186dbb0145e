"""Parts that brokers of 5.x keep in a store beside the files of 4.9, and that are not supported.

Law: a store with such a part is read, each part is a finding, and nothing is written to it: new
messages would be lost when that broker comes back, or waiting ones would never be delivered.

How derived: BrokerController, RocksDBConsumeQueueStore, ConfigStorage, EpochFileCache, TimerWheel,
PopReviveService, PopConsumerService, CompactionPositionMgr of 5.3.3 (decision 0037).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Final

import numpy as np

from rocketstore.errors import StoreError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.metadata_json import CONSUMER_OFFSETS_FILE, LMQ_CONSUMER_OFFSETS_FILE
from rocketstore.rules.findings import Finding, finding
from rocketstore.rules.table_files import Content, table_of
from rocketstore.units import QueueKey

ROCKSDB_MARK: Final = "CURRENT"
"""A file of every RocksDB."""

_TIMERS: Final = QueueKey("rmq_sys_wheel_timer", 0)
_SLOT: Final = np.dtype("i8, i8, i8, i4, i4").newbyteorder(">")
"""When (f0), where in ``timerlog``, and of how many messages (f3)."""

_REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_TABLES: Final = (
    "topics, groups and offsets are in a RocksDB of 5.x: without them consumers begin again",
    "write them as JSON tables (mqadmin rocksDBConfigToJson of 5.x), and move it out of the store",
)
_ROLE: Final = (
    "a controller of 5.x elects who writes this log: the next master has all else cut off",
    "write there; to leave its group, move brokerIdentity and epochFileCheckpoint out of the store",
)
_POPS: Final = "consumers of 5.x (POP) took messages that are neither acknowledged nor put again"
_UNTIL: Final = "let that broker run until none is left; to give them up, "
_PARTS: Final = {
    "config/rdb/CURRENT": _TABLES,
    "config/consumerOffsets/CURRENT": _TABLES,
    "brokerIdentity": _ROLE,
    "epochFileCheckpoint": _ROLE,
    "kvStore/CURRENT": (f"{_POPS}, if any", f"{_UNTIL}move kvStore out of the store"),
}
NEWER_FILES: Final = (*_PARTS, "config/timercheck", "timerwheel", "compaction/position-checkpoint")
"""Every file that shows such a part, by its name below the store."""


def rocksdb_queues(directory: object) -> StoreError:
    """Return the error for queues of a store that has them in RocksDB."""
    return StoreError(
        f"{directory} is a RocksDB: a broker of 5.x keeps the queues there (defaultRocksDB)",
        hint="store scan and Spark's table commitlog read the log; to work with it here, copy "
        "commitlog alone into a new store: queues and index are made from it",
    )


def refuse_rocksdb_tables(directory: object, names: Container[str]) -> None:
    """Refuse to take a store for one without offsets where these are in RocksDB."""
    if "rdb" in names or "consumerOffsets" in names:
        raise StoreError(f"{directory}: {_TABLES[0]}", hint=_TABLES[1])


def newer_findings(
    content_of: Callable[[str], Content],
    queues: Callable[[], Iterable[QueueKey]],
    codes_from: Callable[[QueueKey, int], Iterable[Any]],
) -> Iterator[Finding]:
    """Yield a finding for each part; `codes_from` reads the tags codes of a queue's entries."""
    for name, (what, action) in _PARTS.items():
        if isinstance(content_of(name), bytes):
            yield finding("newer", name, what, action=action)
    name = "compaction/position-checkpoint"
    compacted = content_of(name)
    if isinstance(compacted, bytes) and b"_" in compacted:  # of "topic_queue", of any
        what = "topics of 5.x have the last message of a key here, and maybe no more in the log"
        action = "read them through that broker, store them again, and move compaction out of here"
        yield finding("newer", name, what, action=action)
    checkpoint, wheel = content_of("config/timercheck"), content_of("timerwheel")
    if not isinstance(checkpoint, bytes):
        return
    keys = frozenset(queues())
    read_ms, _, taken = struct.unpack_from(">qqq", checkpoint.ljust(24, b"\0"))
    if not isinstance(wheel, bytes):  # 5.4 may keep it elsewhere: every message may wait
        wheel, taken = b"", 0
    slots = np.frombuffer(wheel, _SLOT, count=len(wheel) // _SLOT.itemsize)
    slots = slots[(slots["f3"] > 0) & (slots["f0"] > 0)]
    # Their unit, timerPrecisionMs, stands nowhere; all slots are of the same two weeks.
    unit = round(read_ms / int(slots["f0"].max())) if len(slots) else 1
    count = int(slots["f3"][slots["f0"] * unit >= read_ms].sum())
    count += sum(map(len, codes_from(_TIMERS, taken))) if _TIMERS in keys else 0
    if count:
        what = f"messages wait for a time of their own, which only brokers of 5.x keep: {count}"
        action = f"{_UNTIL}move timerwheel and config/timercheck out of the store"
        yield finding("newer", "timerwheel", what, action=action)
    tables = (CONSUMER_OFFSETS_FILE, LMQ_CONSUMER_OFFSETS_FILE)
    known = [table.by_name() for name in tables if (table := table_of(content_of, name))]
    for key in sorted(one for one in keys if one.topic.startswith("rmq_sys_REVIVE_LOG_")):
        offsets = (one.get(f"{key.topic}@{_REVIVE_GROUP}", {}) for one in known)
        start = 1 + max((one.get(key.queue_id, -1) for one in offsets), default=-1)
        count = sum(int((one == tags_code("ck")).sum()) for one in codes_from(key, start))
        if count:
            what = f"{count} times {_POPS}, and their groups' offsets have passed them"
            action = f"{_UNTIL}set the offset of {_REVIVE_GROUP} to the end of this queue"
            yield finding("newer", f"consumequeue/{key}", what, action=action)
