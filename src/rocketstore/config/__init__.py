"""Settings of a store: the options, where their values come from, and what files say about them."""

from rocketstore.config.files import (
    FileObservation,
    ObservedSizes,
    StoreSizes,
    commit_log_directories,
    commonest,
    observed_in,
    resolve_sizes,
)
from rocketstore.config.sources import (
    LoadedConfig,
    Origin,
    from_properties,
    load_broker_conf,
    load_config,
)
from rocketstore.config.store_config import (
    BrokerRole,
    FlushDiskType,
    RecoveryPolicy,
    StoreConfig,
    broker_conf_key,
    parse_delay_levels,
    parse_delete_hours,
)

__all__ = [
    "BrokerRole",
    "FileObservation",
    "FlushDiskType",
    "LoadedConfig",
    "ObservedSizes",
    "Origin",
    "RecoveryPolicy",
    "StoreConfig",
    "StoreSizes",
    "broker_conf_key",
    "commit_log_directories",
    "commonest",
    "from_properties",
    "load_broker_conf",
    "load_config",
    "observed_in",
    "parse_delay_levels",
    "parse_delete_hours",
    "resolve_sizes",
]
