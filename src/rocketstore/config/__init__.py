"""Settings of a store: the options, where their values come from, and what files say about them."""

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
