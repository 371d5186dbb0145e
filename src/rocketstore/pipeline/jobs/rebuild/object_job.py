"""What a proof refuses of a store on an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import ConfigError, NotAStoreError
from rocketstore.format.markers import COMMIT_LOG_DIRECTORY
from rocketstore.pipeline.files import files_at
from rocketstore.pipeline.stores import configured_log, store_with_log

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions


def check_remote(location: str, options: BuildOptions) -> None:
    """Refuse a URI without a store, or settings that an object store cannot follow.

    Raises
    ------
    ConfigError, NotAStoreError
        It is so.
    """
    directories = configured_log(location, options.config)
    if directories:
        store_with_log(location, directories)
    if options.plan != "shuffle":
        raise ConfigError(
            f"{location} lies on an object store, where no file is written in place",
            key="plan",
            value=options.plan,
            hint='plan="shuffle", --plan shuffle',
        )
    files, root = files_at(location)
    if not files.list(f"{root}/{COMMIT_LOG_DIRECTORY}"):
        raise no_store(location)


def no_store(location: str) -> NotAStoreError:
    """Return the error that says that no store is there."""
    return NotAStoreError(
        f"{location} is no store: it has no commitlog directory",
        hint="give the directory that holds commitlog, consumequeue and index; for a log that lies "
        "elsewhere set storePathCommitLog",
    )
