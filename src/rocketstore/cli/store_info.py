"""What ``store info`` says of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.errors import FormatError
from rocketstore.storage.files.lock import writer_pid

if TYPE_CHECKING:
    from rocketstore.storage.read_only import ReadOnlyStore


def store_info(store: ReadOnlyStore) -> dict[str, Any]:
    """Return the facts of a store, JSON-ready."""
    queues = store.queues()
    log_files = store.log_files
    checkpoint, problems = None, []
    try:
        checkpoint = store.checkpoint()
    except (FormatError, OSError) as error:  # the rest of the store can be told all the same
        problems.append(f"{store.layout.checkpoint}: {error}")
    headers = store.index_files()
    return {
        "path": str(store.layout.root),
        "commitLogFiles": len(log_files),
        "commitLogFileSize": log_files[0].size if log_files else 0,
        "minPhysicalOffset": store.min_physical_offset,
        "maxPhysicalOffset": store.max_physical_offset,
        "topics": len(store.topics()),
        "queues": len(queues),
        "queueEntries": sum(store.message_count(key.topic, key.queue_id) for key in queues),
        "indexFiles": len(headers),
        "indexItems": sum(max(0, header.index_count - 1) for _, header in headers),
        "checkpointPhysicMsgTimestamp": None if checkpoint is None else checkpoint.physic_ms,
        "checkpointLogicsMsgTimestamp": None if checkpoint is None else checkpoint.logics_ms,
        "checkpointIndexMsgTimestamp": None if checkpoint is None else checkpoint.index_ms,
        "abortFile": store.has_abort_file,
        "writerPid": writer_pid(store.layout.lock),
        "findings": [*map(str, store.findings), *problems],
    }
