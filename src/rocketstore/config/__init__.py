"""Settings of a store: the options, where their values come from, and what files say about them.

A program gives settings by name; a ``broker.conf`` of 4.9 is read as it is::

    >>> StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH).flush_disk_type.value
    'SYNC_FLUSH'
    >>> from rocketstore.config import load_config
    >>> load_config(overrides=["fileReservedTime=48"]).config.file_reserved_time
    48

`store_options` and `service_options` declare the options, each with its unit, limits and meaning;
`store_config` checks them; `sources` merges file, environment and command line; `files`
learns sizes that are not set from the files of an existing store.

Law: a `StoreConfig` that exists is within its limits. No key is ignored in silence, and a set size
that differs from the files is an error. Page: docs/reference/configuration.md.
"""

from rocketstore.config.files import StoreSizes, commit_log_directories, resolve_sizes
from rocketstore.config.grammars import parse_delay_levels
from rocketstore.config.service_options import BrokerRole
from rocketstore.config.sources import load_config
from rocketstore.config.store_config import StoreConfig
from rocketstore.config.store_options import FlushDiskType, RecoveryPolicy

__all__ = [
    "BrokerRole",
    "FlushDiskType",
    "RecoveryPolicy",
    "StoreConfig",
    "StoreSizes",
    "commit_log_directories",
    "load_config",
    "parse_delay_levels",
    "resolve_sizes",
]
