"""What ``store info`` says of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.cli.wording import system_error
from rocketstore.errors import FormatError, RocketStoreError
from rocketstore.metrics.scrub_service import read_damage_map
from rocketstore.storage.files.lock import writer_pid

if TYPE_CHECKING:
    from rocketstore.format.index_file import IndexHeader
    from rocketstore.storage.read_only import ReadOnlyStore


def store_info(store: ReadOnlyStore) -> dict[str, Any]:
    """Return the facts of a store, JSON-ready."""
    queues = store.queues()
    log_files = store.log_files
    checkpoint, problems = None, []
    try:
        checkpoint = store.checkpoint()
    except (FormatError, OSError) as error:  # the rest is shown nevertheless
        reason = system_error(error) if isinstance(error, OSError) else str(error)
        problems.append(f"{store.layout.checkpoint}: {reason}")
    known = read_damage_map(store.layout.root)
    headers: list[tuple[str, IndexHeader]] | None = None
    try:
        headers = store.index_files()
    except RocketStoreError as error:
        problems.append(str(error))
    return {
        "path": str(store.layout.root),
        "commitLogFiles": len(log_files),
        "commitLogFileSize": log_files[0].size if log_files else 0,
        "minPhysicalOffset": store.min_physical_offset,
        "maxPhysicalOffset": store.max_physical_offset,
        "topics": len(store.topics()),
        "queues": len(queues),
        "queueEntries": sum(store.message_count(key.topic, key.queue_id) for key in queues),
        "indexFiles": None if headers is None else len(headers),
        "indexItems": None
        if headers is None
        else sum(max(0, header.index_count - 1) for _, header in headers),
        "checkpointPhysicMsgTimestamp": None if checkpoint is None else checkpoint.physic_ms,
        "checkpointLogicsMsgTimestamp": None if checkpoint is None else checkpoint.logics_ms,
        "checkpointIndexMsgTimestamp": None if checkpoint is None else checkpoint.index_ms,
        "lastScrubTimestamp": known.last_pass_timestamp or None,
        "scrubDamagedRanges": len(known.damage),
        "abortFile": store.has_abort_file,
        "writerPid": writer_pid(store.layout.lock),
        "findings": [*map(str, store.findings), *problems, *store.newer_parts],
    }
