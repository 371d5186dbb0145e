"""The one door through which tests look past the public calls of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.services import StoreServices
    from rocketstore.storage.store import BaseStore


def parts_of(store: BaseStore) -> StoreParts:
    """Return what an open store consists of: its log, queues, index, dispatcher and retention."""
    return store._parts


def services_of(store: BaseStore) -> StoreServices:
    """Return the threads of an open store, as they flush, dispatch and clean up."""
    return store._services
