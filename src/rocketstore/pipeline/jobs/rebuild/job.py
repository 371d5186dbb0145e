"""Where a store that is proved lies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocketstore.format.markers import COMMIT_LOG_DIRECTORY
from rocketstore.pipeline.files import files_at, is_remote, last_name
from rocketstore.pipeline.jobs.rebuild.object_job import no_store
from rocketstore.pipeline.stores import StorePlace, configured_log, store_with_log

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.rebuild.construction import Plan


def chosen_plan(store: str, plan: Plan | None) -> Plan:
    """Return the plan that was asked for, else the one that suits the store's place."""
    return plan or ("shuffle" if is_remote(store) else "posix")


def local_place(store: str, config: StoreConfig) -> StorePlace:
    """Return a store on a disk that all workers see, and where its log lies.

    Raises
    ------
    NotAStoreError
        It is no store.
    """
    directories = configured_log(store, config)
    if directories:
        return store_with_log(store, directories)
    root = files_at(store)[1]
    if not Path(root, COMMIT_LOG_DIRECTORY).is_dir():
        raise no_store(store)
    return StorePlace(root, last_name(root), is_open=False)
