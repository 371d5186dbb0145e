"""Settings are a value, errors are a tree."""

from typing import assert_type

from rocketstore import (
    ConfigError,
    FlushDiskType,
    FormatError,
    MessageStore,
    RecoveryPolicy,
    RocketStoreError,
    StoreConfig,
    StoreFullError,
    StoreLockedError,
)
from rocketstore.config import load_config

config = StoreConfig(
    flush_disk_type=FlushDiskType.SYNC_FLUSH,
    recovery_policy=RecoveryPolicy.SALVAGE,
    mapped_file_size_commit_log=64 * 1024 * 1024,
    retention=False,
)
assert_type(config.max_message_size, int)
assert_type(config.mapped_file_size_commit_log, int | None)
assert_type(load_config(broker_conf="broker.conf").config, StoreConfig)

try:
    MessageStore.open("data/store", config)
except StoreLockedError as error:
    assert_type(error.owner_pid, int | None)
except StoreFullError as error:
    assert_type(error.retriable, bool)
except ConfigError as error:
    assert_type(error.key, str | None)
except FormatError as error:
    assert_type(error.offset, int | None)
except RocketStoreError as error:
    assert_type(error.hint, str | None)
    assert_type(error.exit_code, int)
