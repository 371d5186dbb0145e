"""The options of a store: those of 4.9's ``broker.conf`` under correct names, and a few of ours.

`store_options` has those of the store itself, `service_options` those of its services. `FIELDS` is
the one table that the range checks, the parser of ``broker.conf``, ``help`` and the documentation's
test read.

Law: a `StoreConfig` that exists is within its limits. Sizes that are None are learnt from the files
of an existing store (`rocketstore.config.files`), else they are Java's defaults.
Page: docs/reference/configuration.md. Source: rocketmq-all-4.9.8, MessageStoreConfig.
"""

from __future__ import annotations

import enum
import linecache
import re
import sys
from itertools import chain
from typing import Any, Final, get_type_hints

from rocketstore.config.grammars import parse_delay_levels, parse_delete_hours
from rocketstore.config.option import FieldSpec, check_value, field_specs
from rocketstore.config.service_options import BrokerRole, ServiceOptions
from rocketstore.config.store_options import SMALL_SIZES, FlushDiskType, StoreOptions
from rocketstore.errors import ConfigError, FormatError
from rocketstore.format.host import encode_host


class StoreConfig(ServiceOptions, frozen=True, kw_only=True):
    """Everything that can be set about a store.

    The same text, with units and limits, is in ``docs/reference/configuration.md``. A value of the
    wrong type or outside its limits is a `ConfigError`.
    """

    enable_d_ledger_commit_log: bool = False
    """Raft log; true is refused, because its files have another format."""

    @classmethod
    def of(cls, config: StoreConfig | None) -> StoreConfig:
        """Return the settings that a call was given, the defaults for None; else `ConfigError`."""
        found = cls() if config is None else config
        if not isinstance(found, StoreConfig):
            raise ConfigError(
                f"config is a StoreConfig, not {config!r:.60}",
                hint="StoreConfig(), StoreConfig.small() and load_config().config make one",
            )
        return found

    @classmethod
    def small(cls, **settings: Any) -> StoreConfig:
        """Return settings of a small store: less than 5 MB of disk, for tests and tools.

        Files begin at 4.2 MB instead of 1 GiB for the log, 20 KB instead of 6 MB for each queue,
        and 210 KB instead of 420 MB for the index. They hold every message that the defaults hold,
        as many of them as you like. An existing store shows the profile by its files, so any later
        open may leave it out; a broker of 4.9 has to be given these sizes in its ``broker.conf``.

        Parameters
        ----------
        settings
            Any other field of `StoreConfig`; a size given here wins.

        >>> StoreConfig.small(max_msgs_num_batch=10).max_index_num
        10000
        """
        return cls(**{**SMALL_SIZES, **settings})

    def __post_init__(self) -> None:
        """Check every value, because a frozen value cannot be checked later."""
        for field, spec in FIELDS.items():
            if (value := getattr(self, field)) is not spec.default:
                check_value(field, value, spec)
        try:
            encode_host(self.store_host)
        except FormatError as error:
            raise ConfigError(
                f"storeHost={self.store_host}: expected ip:port or [v6]:port",
                key="storeHost",
                value=self.store_host,
                hint="where it is unset, brokerIP1 and listenPort (0 to 65535) give it",
            ) from error
        parse_delete_hours(self.delete_when)
        parse_delay_levels(self.message_delay_level)
        if self.enable_d_ledger_commit_log:
            raise ConfigError(
                "enableDLegerCommitLog=true: a Raft CommitLog has another format",
                key="enableDLegerCommitLog",
                value=True,
                hint="open stores of a broker without DLedger",
            )

    @property
    def disk_max_used_space_percent(self) -> int:
        """``disk_max_used_space_ratio`` as it is used: clamped to 10 to 95.

        Source: MessageStoreConfig.getDiskMaxUsedSpaceRatio.
        """
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @property
    def follows_master(self) -> bool:
        """Whether the log comes from a master."""
        return self.broker_role is BrokerRole.SLAVE and self.ha_master_address is not None

    @property
    def has_transient_pool(self) -> bool:
        """Whether messages are put into a pool first (isTransientStorePoolEnable)."""
        is_slave = self.broker_role is BrokerRole.SLAVE
        return self.transient_store_pool_enable and not (self.is_sync_flush or is_slave)

    @property
    def is_sync_flush(self) -> bool:
        """Whether a put waits for fdatasync."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


FIELDS: Final[dict[str, FieldSpec]] = field_specs(StoreConfig)
"""Every field of `StoreConfig`."""

FIELD_OF_KEY: Final = {spec.key: field for field, spec in FIELDS.items()}


def field_texts() -> dict[str, str]:
    """Return the text below each field: Python drops it, so it is read from this source."""
    modules = [sys.modules[one.__module__] for one in (StoreOptions, ServiceOptions, StoreConfig)]
    lines = (linecache.getlines(str(one.__file__), vars(one)) for one in modules)
    source = "".join(chain.from_iterable(lines))
    found = re.findall(r'^    (\w+): .*\n    """([^"]*)"""', source, re.MULTILINE)
    return {field: " ".join(text.split()) for field, text in found}


def _help() -> str:
    lines = [StoreConfig.__doc__ or "", "    Parameters", "    ----------"]
    texts = field_texts()
    for field, spec in FIELDS.items():
        default = spec.default.name if isinstance(spec.default, enum.Enum) else spec.default
        kind = spec.kind.__name__ + (" | None" if spec.nullable else "")
        lines += (f"    {field}: {kind} = {default}", f"        {texts.get(field)}")
    return "\n".join(lines)


# help() shows plain types, and what each field is; what `Annotated` adds is in `FIELDS`.
StoreConfig.__annotations__ = get_type_hints(StoreConfig)
StoreConfig.__doc__ = _help()
