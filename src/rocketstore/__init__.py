"""Apache RocketMQ 4.9's message store in Python, byte-compatible on disk.

The public names below are loaded when they are first used, so that ``import rocketstore`` costs
next to nothing and loads neither kernels nor Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocketstore.config import BrokerRole, FlushDiskType, RecoveryPolicy, StoreConfig
    from rocketstore.errors import (
        ConfigError,
        FlushFailedError,
        FormatError,
        InvalidFilterError,
        InvalidNameError,
        NotAStoreError,
        RefusedMessageError,
        RocketStoreError,
        StoreClosedError,
        StoreDamagedError,
        StoreError,
        StoreFullError,
        StoreLockedError,
    )
    from rocketstore.message import Message, StoredMessage
    from rocketstore.storage.log.prepared import PreparedMessage
    from rocketstore.storage.read_only import ReadOnlyStore
    from rocketstore.storage.results import (
        GetMessageStatus,
        GetRawResult,
        GetResult,
        PutMessageStatus,
        PutResult,
    )
    from rocketstore.storage.store import MessageStore
    from rocketstore.units import QueueKey

__all__ = [
    "BrokerRole",
    "ConfigError",
    "FlushDiskType",
    "FlushFailedError",
    "FormatError",
    "GetMessageStatus",
    "GetRawResult",
    "GetResult",
    "InvalidFilterError",
    "InvalidNameError",
    "Message",
    "MessageStore",
    "NotAStoreError",
    "PreparedMessage",
    "PutMessageStatus",
    "PutResult",
    "QueueKey",
    "ReadOnlyStore",
    "RecoveryPolicy",
    "RefusedMessageError",
    "RocketStoreError",
    "StoreClosedError",
    "StoreConfig",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoredMessage",
]

_PLACES: Final = {
    "config": ("BrokerRole", "FlushDiskType", "RecoveryPolicy", "StoreConfig"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "message": ("Message", "StoredMessage"),
    "storage.log.prepared": ("PreparedMessage",),
    "storage.read_only": ("ReadOnlyStore",),
    "storage.results": (
        "GetMessageStatus",
        "GetRawResult",
        "GetResult",
        "PutMessageStatus",
        "PutResult",
    ),
    "storage.store": ("MessageStore",),
    "units": ("QueueKey",),
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
