"""``rocketstore serve broker``: a broker until the process is told to end."""

from __future__ import annotations

import functools
import gc
import logging
from pathlib import Path
from typing import Final

import msgspec

from rocketstore.broker.service import BrokerService
from rocketstore.broker.settings import BROKER_KEYS, BrokerSettings
from rocketstore.cli.options import DEFAULTS, MadeStoreArgument, StoreSettings
from rocketstore.cli.serve import check_ports, stop_on_signal, with_retention
from rocketstore.cli.wording import complain, print_on_stderr
from rocketstore.config import BrokerRole, sources
from rocketstore.config.sources import LoadedConfig, Origin, located, parse_override
from rocketstore.errors import ConfigError
from rocketstore.message_store import MessageStore
from rocketstore.process import raise_descriptors

_OF_4_9: Final = sources.BROKER_KEYS | sources.KEYS_WITHOUT_EFFECT


def broker(
    store: MadeStoreArgument | None = None, /, *, settings: StoreSettings = DEFAULTS
) -> None:
    """Run a broker for clients of RocketMQ; Ctrl-C or SIGTERM ends it.

    It prints where it listens, then "ready" on its standard error, where it also logs its start and
    end, what it refuses, and each time that a group shares its queues again. A name server runs
    inside unless namesrvAddr names others. Old files are deleted by the rules of retention; --set
    retention=false keeps them. Without STORE its directory is storePathRootDir; settings are those
    of an unchanged broker.conf of 4.9, of which `config show` prints the store's.
    """
    for what in ("rocketstore.broker", "rocketstore.remoting"):
        logging.getLogger(what).setLevel(logging.INFO)
    loaded = settings.load_with_origins(BROKER_KEYS)
    properties, flags = loaded.in_file, dict(map(parse_override, settings.set_))
    texts, in_file = {**properties, **flags}, Origin("file", str(settings.config))
    with located(lambda key: in_file if key in properties.keys() - flags else Origin("flag")):
        own = BrokerSettings.of(texts)
    if unused := sorted(properties.keys() & _OF_4_9 - BROKER_KEYS):
        complain(f"{settings.config}: keys of 4.9 that change nothing here: {' '.join(unused)}")
    if texts.get("aclEnable", "").strip().lower() == "true":
        complain("aclEnable=true: no access control yet: every client may do everything")
    config = with_retention(loaded)
    if "storeHost" not in texts and loaded.origins["storeHost"].kind != "environment":
        config = msgspec.structs.replace(config, store_host=own.store_host)
    if own.broker_id and config.broker_role is not BrokerRole.SLAVE:
        complain(f"brokerId={own.broker_id}: a master's is 0, as in 4.9; brokerRole says its role")
    path = _path(store, loaded)
    check_ports(path, config, *own.ports)
    raise_descriptors()
    services = [BrokerService.with_settings(own)]
    opens = functools.partial(MessageStore.open, path, config, services=services)
    with stop_on_signal() as stop, stop.opened(opens) as opened:
        service: BrokerService = opened.attached[BrokerService.name]
        print(
            f"broker {own.broker_name} at {service.address}, name server {service.name_server}",
            flush=True,
        )
        gc.freeze()  # what the start made stays, and is not looked through again
        print_on_stderr("ready")
        stop.wait()


def _path(store: Path | None, loaded: LoadedConfig) -> Path:
    if store is not None:
        return store
    if loaded.config.store_path_root_dir is None:
        hint = "name its directory, or set storePathRootDir"
        raise ConfigError("a broker needs a store", key="storePathRootDir", hint=hint)
    return Path(loaded.config.store_path_root_dir)
