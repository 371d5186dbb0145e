"""How commands write a store: alone, and doing nothing but what they were asked for.

Law: a command that writes opens its store by `open_for_writing`; only ``serve`` and the demo run
services. So it delivers no delayed message, listens at no port, scrubs nothing, and deletes no
expired file, whatever the settings that it shares with a broker say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocketstore.cli.options import StoreSettings
from rocketstore.config import BrokerRole
from rocketstore.errors import ConfigError
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.store import BaseStore

if TYPE_CHECKING:
    from pathlib import Path


def open_for_writing(
    path: Path, settings: StoreSettings | None, topic: str | None = None
) -> BaseStore:
    """Open a store to put into `topic`, without services; make it where there is no store.

    Raises
    ------
    ConfigError
        It is a memory topic: what a command put there would be gone when it ends.
    """
    config = msgspec.structs.replace((settings or StoreSettings()).load(), retention=False)
    if config.broker_role is BrokerRole.SYNC_MASTER:
        # No slave can be connected: each gets what was written when the store is served again.
        config = msgspec.structs.replace(config, broker_role=BrokerRole.ASYNC_MASTER)
    if topic is not None and config.memory_topic_enable:
        from rocketstore.memory.memory_topics import memory_topics_of

        if topic in memory_topics_of(StoreLayout.of(path, config)):
            raise ConfigError(
                f"{topic} is a memory topic of {path}: only the program that keeps it puts there",
                key="memoryTopicEnable",
                hint="choose another topic",
            )
    return BaseStore.open(path, config)
