"""``rocketstore serve master`` and ``slave``: a store that others follow, one that follows."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from rocketstore.cli.options import DEFAULTS, MadeStoreArgument, StoreSettings
from rocketstore.cli.serve import StopSignal, check_ports, stop_on_signal, with_retention
from rocketstore.cli.wording import complain
from rocketstore.config import BrokerRole, StoreConfig
from rocketstore.errors import ConfigError, RocketStoreError
from rocketstore.format.host import address_text
from rocketstore.message_store import MessageStore
from rocketstore.replication.master import MasterService
from rocketstore.replication.protocol import NEEDS_NEW_LOG, PeerError, Trouble
from rocketstore.replication.renewal import set_log_aside
from rocketstore.replication.slave import SlaveService, ask_master
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.layout import StoreLayout

if TYPE_CHECKING:
    from pathlib import Path


HA_PORT: Final = 10912
"""4.9's port for slaves, taken where haListenPort is unset."""

MasterOption = Annotated[
    str | None,
    Parameter(name=["--master", "-m"], help="The master, host:port; unset: haMasterAddress."),
]


def master(store: MadeStoreArgument, /, *, settings: StoreSettings = DEFAULTS) -> None:
    """Run a store that slaves can follow; Ctrl-C or SIGTERM ends it.

    It listens at haListenAddress, the loopback unless set, and haListenPort, 10912 unless set.
    Nothing is put to the store meanwhile: `serve broker`, or a program that puts, is a master too
    where haListenPort is set. Old files are deleted by the rules of retention; --set
    retention=false keeps them.
    """
    config = _served(settings)
    if config.ha_listen_port is None:
        config = msgspec.structs.replace(config, ha_listen_port=HA_PORT)
    if config.broker_role is BrokerRole.SLAVE:  # its broker.conf is from its time as a slave
        config = msgspec.structs.replace(config, broker_role=BrokerRole.ASYNC_MASTER)
    check_ports(store, config)
    opens = functools.partial(MessageStore.open, store, config)
    with stop_on_signal() as stop, stop.opened(opens) as opened:
        assert isinstance(opened.replication, MasterService)
        print(f"slaves follow {store} at {address_text(*opened.replication.address)}", flush=True)
        stop.wait()


def slave(
    store: MadeStoreArgument,
    /,
    *,
    master: MasterOption = None,
    renew: bool = True,
    settings: StoreSettings = DEFAULTS,
) -> None:
    """Run a store that follows a master; Ctrl-C or SIGTERM ends it.

    Parameters
    ----------
    renew
        If this log does not fit the master's (it is ahead, too old, or another one), set it aside
        under names that end in .replaced, and begin again. --no-renew keeps trying.
    """
    config = _served(settings, broker_role=BrokerRole.SLAVE)
    config = with_master(config, master)
    check_ports(store, config)
    with stop_on_signal() as stop:
        while not stop.is_set:
            end = _follow(store, config, stop, renew=renew)
            if end is not None:
                for path in set_log_aside(StoreLayout.of(store, config), end):
                    complain(f"kept as {path}")


def with_master(config: StoreConfig, master: str | None) -> StoreConfig:
    """Return settings that name a master: the one given, or their own."""
    if master is not None:
        config = msgspec.structs.replace(config, ha_master_address=master)
    if config.ha_master_address is None:
        hint = "give its address: --master HOST:PORT"
        raise ConfigError("a slave needs a master", key="haMasterAddress", hint=hint)
    return config


def _sized(store: Path, config: StoreConfig) -> StoreConfig:
    """Return settings with the master's file size where it is not known otherwise (K-H8)."""
    is_new = not PreadFiles(StoreLayout.of(store, config).log_directories).files
    if is_new and config.mapped_file_size_commit_log is None:
        # A master of 4.9 does not tell it; one that is away is asked by the slave later.
        with contextlib.suppress(RocketStoreError, OSError):
            size = ask_master(config).file_size
            return msgspec.structs.replace(config, mapped_file_size_commit_log=size)
    return config


def _follow(store: Path, config: StoreConfig, stop: StopSignal, *, renew: bool) -> int | None:
    """Follow until a signal asks for the end, or the master turns out to have other files.

    With `renew`, following also ends when the logs do not fit: this log's end is returned then.
    """
    troubles: set[Trouble] = set()
    sized = _sized(store, config)

    def note(error: Exception) -> None:
        if isinstance(error, PeerError):
            troubles.add(error.trouble)
            stop.bell.ring()

    with stop.opened(functools.partial(MessageStore.open, store, sized)) as opened:
        assert isinstance(opened.replication, SlaveService)
        opened.replication.trouble_listeners.append(note)
        print(f"{store} follows {config.ha_master_address}", flush=True)
        while not stop.is_set and not (renew and troubles & NEEDS_NEW_LOG):
            stop.wait_for_bell()
            if Trouble.FILE_SIZE in troubles:
                troubles.remove(Trouble.FILE_SIZE)
                if _sized(store, config) != sized:  # the master was away, or is another one
                    return None
        return None if stop.is_set else opened.replicated_log.end


def _served(settings: StoreSettings, **ours: Any) -> StoreConfig:
    """Return the settings of a store that is served."""
    return msgspec.structs.replace(with_retention(settings.load_with_origins()), **ours)
