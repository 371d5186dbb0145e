"""Replication: a slave follows the CommitLog of a master, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.config import BrokerRole

if TYPE_CHECKING:
    from rocketstore.replication.master import MasterService
    from rocketstore.replication.slave import SlaveService
    from rocketstore.storage.store import BaseStore


def replication_of(store: BaseStore) -> MasterService | SlaveService | None:
    """Return the part that the settings give a store; most have none, and import nothing for it."""
    config = store.config
    if config.broker_role is BrokerRole.SLAVE and config.ha_master_address is not None:
        from rocketstore.replication.slave import SlaveService  # noqa: PLC0415

        return SlaveService(store)
    if config.broker_role is not BrokerRole.SLAVE and config.ha_listen_port is not None:
        from rocketstore.replication.master import MasterService  # noqa: PLC0415

        return MasterService(store)
    return None
