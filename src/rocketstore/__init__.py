"""Apache RocketMQ 4.9's message store in Python, byte-compatible on disk.

The public names below are loaded when they are first used, so that ``import rocketstore`` costs
next to nothing and loads neither kernels nor Arrow. ``rocketstore.pipeline`` has the jobs on Spark.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocketstore.batch_queue.topics import BatchTopics
    from rocketstore.config import (
        BrokerRole,
        FlushDiskType,
        RecoveryPolicy,
        StoreConfig,
        load_config,
    )
    from rocketstore.config.sources import LoadedConfig
    from rocketstore.consuming.consumer import ConsumedMessage, Consumer
    from rocketstore.errors import (
        ArchiveDamagedError,
        ArchiveError,
        BadMagicError,
        BodyTooLargeError,
        ChecksumMismatchError,
        CompressedBodyError,
        ConfigError,
        FieldRangeError,
        FlushFailedError,
        FormatError,
        InvalidFilterError,
        InvalidNameError,
        MisaddressedRecordError,
        NotAStoreError,
        NotFoundError,
        NotReadableError,
        PutFailedError,
        RefusedMessageError,
        RemotingError,
        ResponseError,
        RocketStoreError,
        SparkJobError,
        StoreClosedError,
        StoreDamagedError,
        StoreError,
        StoreForkedError,
        StoreFullError,
        StoreLockedError,
        StoreReadOnlyError,
        SystemRefusedError,
        TruncatedRecordError,
        UnsupportedEnvironmentError,
    )
    from rocketstore.format.checkpoint import Checkpoint
    from rocketstore.format.index_file import IndexHeader
    from rocketstore.format.queue_entry import QueueEntry
    from rocketstore.format.queue_extension import ExtensionUnit
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.memory import MemoryTopics
    from rocketstore.message import Message
    from rocketstore.message_store import MessageStore
    from rocketstore.queue_extension.filters import ConsumerFilters
    from rocketstore.storage.attached import Service
    from rocketstore.storage.audit.repair_plan import RepairReport
    from rocketstore.storage.dispatch.dispatch_service import DispatchHealth
    from rocketstore.storage.dispatch.dispatcher import Arrival
    from rocketstore.storage.files.pread_files import LogFile
    from rocketstore.storage.log.prepared import PreparedMessage
    from rocketstore.storage.read_only import ReadOnlyStore
    from rocketstore.storage.recovery.recover import RecoveryReport
    from rocketstore.storage.results import (
        GetMessageStatus,
        GetRawResult,
        GetResult,
        GetViewsResult,
        PutMessageStatus,
        PutResult,
    )
    from rocketstore.storage.running_flags import RunningFlag, RunningFlags
    from rocketstore.storage.statistics import StoreStatistics
    from rocketstore.transaction.checks import CheckAnswer
    from rocketstore.transaction.records import EndStatus
    from rocketstore.transaction.transactions import EndResult, HalfMessage
    from rocketstore.units import (
        ByteRange,
        QueueKey,
    )
    from rocketstore.upkeep import repair_store, verify_store
    from rocketstore.verification.file_rules import FileFinding
    from rocketstore.verification.findings import Finding, Severity, VerifyReport

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    # Puts, pages and statistics rely on it (decision 0022).
    raise ImportError(
        "rocketstore needs Python's global lock, which this free-threaded Python runs without: "
        "start it with PYTHON_GIL=1, or use an ordinary build of Python"
    )

__version__: Final = "0.1.0"

__all__ = [
    "ArchiveDamagedError",
    "ArchiveError",
    "Arrival",
    "BadMagicError",
    "BatchTopics",
    "BodyTooLargeError",
    "BrokerRole",
    "ByteRange",
    "CheckAnswer",
    "Checkpoint",
    "ChecksumMismatchError",
    "CompressedBodyError",
    "ConfigError",
    "ConsumedMessage",
    "Consumer",
    "ConsumerFilters",
    "DispatchHealth",
    "EndResult",
    "EndStatus",
    "ExtensionUnit",
    "FieldRangeError",
    "FileFinding",
    "Finding",
    "FlushDiskType",
    "FlushFailedError",
    "FormatError",
    "GetMessageStatus",
    "GetRawResult",
    "GetResult",
    "GetViewsResult",
    "HalfMessage",
    "IndexHeader",
    "InvalidFilterError",
    "InvalidNameError",
    "LoadedConfig",
    "LogFile",
    "MemoryTopics",
    "Message",
    "MessageStore",
    "MisaddressedRecordError",
    "NotAStoreError",
    "NotFoundError",
    "NotReadableError",
    "PreparedMessage",
    "PutFailedError",
    "PutMessageStatus",
    "PutResult",
    "QueueEntry",
    "QueueKey",
    "ReadOnlyStore",
    "RecoveryPolicy",
    "RecoveryReport",
    "RefusedMessageError",
    "RemotingError",
    "RepairReport",
    "ResponseError",
    "RocketStoreError",
    "RunningFlag",
    "RunningFlags",
    "Service",
    "Severity",
    "SparkJobError",
    "StoreClosedError",
    "StoreConfig",
    "StoreDamagedError",
    "StoreError",
    "StoreForkedError",
    "StoreFullError",
    "StoreLockedError",
    "StoreReadOnlyError",
    "StoreStatistics",
    "StoredMessage",
    "SystemRefusedError",
    "TruncatedRecordError",
    "UnsupportedEnvironmentError",
    "VerifyReport",
    "load_config",
    "repair_store",
    "verify_store",
]

_PLACES: Final = {
    "config": (
        "BrokerRole",
        "FlushDiskType",
        "RecoveryPolicy",
        "StoreConfig",
        "load_config",
    ),
    "config.sources": ("LoadedConfig",),
    "consuming.consumer": ("ConsumedMessage", "Consumer"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "format.checkpoint": ("Checkpoint",),
    "format.index_file": ("IndexHeader",),
    "format.queue_entry": ("QueueEntry",),
    "batch_queue.topics": ("BatchTopics",),
    "format.queue_extension": ("ExtensionUnit",),
    "memory": ("MemoryTopics",),
    "format.stored_message": ("StoredMessage",),
    "message": ("Message",),
    "message_store": ("MessageStore",),
    "queue_extension.filters": ("ConsumerFilters",),
    "storage.attached": ("Service",),
    "storage.audit.repair_plan": ("RepairReport",),
    "storage.dispatch.dispatcher": ("Arrival",),
    "storage.dispatch.dispatch_service": ("DispatchHealth",),
    "storage.files.pread_files": ("LogFile",),
    "storage.log.prepared": ("PreparedMessage",),
    "storage.read_only": ("ReadOnlyStore",),
    "storage.recovery.recover": ("RecoveryReport",),
    "storage.results": (
        "GetMessageStatus",
        "GetRawResult",
        "GetResult",
        "GetViewsResult",
        "PutMessageStatus",
        "PutResult",
    ),
    "storage.running_flags": ("RunningFlag", "RunningFlags"),
    "storage.statistics": ("StoreStatistics",),
    "transaction.checks": ("CheckAnswer",),
    "transaction.records": ("EndStatus",),
    "transaction.transactions": ("EndResult", "HalfMessage"),
    "units": ("ByteRange", "QueueKey"),
    "upkeep": ("repair_store", "verify_store"),
    "verification.file_rules": ("FileFinding",),
    "verification.findings": ("Finding", "Severity", "VerifyReport"),
}
_PLACE_OF: Final = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
