"""How commands write a store: alone, and without side effects.

Law: a command that writes opens its store by `open_for_writing`; only ``serve`` and the demo run
services. So a command delivers no delayed message, listens at no port, scrubs nothing, and deletes
no expired file, whatever the settings say that it shares with a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocketstore.config import BrokerRole
from rocketstore.storage.store import BaseStore

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.cli.options import StoreSettings


def open_for_writing(path: Path, settings: StoreSettings) -> BaseStore:
    """Open a store to put into, without services; make it where there is no store."""
    config = msgspec.structs.replace(settings.load(), retention=False)
    if config.broker_role is BrokerRole.SYNC_MASTER:
        # No slave can be connected now: each gets the new messages when the store is served again.
        config = msgspec.structs.replace(config, broker_role=BrokerRole.ASYNC_MASTER)
    return BaseStore.open(path, config)
