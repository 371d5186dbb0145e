"""``rocketstore serve broker``: a broker until the process is told to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocketstore.broker.service import BrokerService
from rocketstore.broker.settings import BROKER_KEYS, BrokerSettings
from rocketstore.cli.options import StoreArgument, StoreSettings
from rocketstore.cli.serve import stop_on_signal, with_retention
from rocketstore.config.sources import load_broker_conf
from rocketstore.errors import ConfigError
from rocketstore.message_store import MessageStore

if TYPE_CHECKING:
    from rocketstore.config.sources import LoadedConfig


def broker(store: StoreArgument | None = None, /, *, settings: StoreSettings | None = None) -> None:
    """Run a broker for clients of RocketMQ; Ctrl-C or SIGTERM ends it.

    It prints where it listens, then "ready" on its standard error. A name server runs
    inside unless namesrvAddr names others. Old files are deleted by the rules of retention; --set
    retention=false keeps them.

    Parameters
    ----------
    store
        Directory of the store, made when there is none; unset: storePathRootDir.
    settings
        An unchanged broker.conf of 4.9, and single keys; see `config show`.
    """
    given = settings or StoreSettings()
    loaded = given.load_with_origins(BROKER_KEYS)
    own = _own_settings(given)
    config = with_retention(loaded)
    if loaded.origins["storeHost"].kind == "default":
        config = msgspec.structs.replace(config, store_host=own.address)
    path = _path(store, loaded)
    with stop_on_signal() as stop, MessageStore.open(
        path, config, services=[BrokerService.with_settings(own)]
    ) as opened:  # fmt: skip
        service: BrokerService = opened.attached[BrokerService.name]
        print(
            f"broker {own.broker_name} at {service.address}, name server {service.name_server}",
            flush=True,
        )
        print("ready", file=sys.stderr, flush=True)
        stop.wait()


def _own_settings(given: StoreSettings) -> BrokerSettings:
    properties: dict[str, Any] = {} if given.config is None else load_broker_conf(given.config)
    pairs = (text.partition("=") for text in given.set_)
    return BrokerSettings.of(properties | {key.strip(): text for key, _, text in pairs})


def _path(store: Path | None, loaded: LoadedConfig) -> Path:
    if store is not None:
        return store
    if loaded.config.store_path_root_dir is None:
        raise ConfigError(
            "a broker needs a store", key="storePathRootDir",
            hint="name its directory, or set storePathRootDir",
        )  # fmt: skip
    return Path(loaded.config.store_path_root_dir)
