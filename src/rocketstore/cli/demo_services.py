"""The demo's services: a delayed message, a transaction, and a slave that follows its master."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketstore.message_store import MessageStore

TOPIC: Final = "departures"
PATIENCE_S: Final = 10.0
"""Longest wait for a message that is due after a second, and for a slave on this machine."""

_LOOK_S: Final = 0.005


def run_services(directory: Path) -> None:
    """Open a master and its slave below `directory`, and show what they do for three messages."""
    import msgspec

    from rocketstore.config import BrokerRole, StoreConfig
    from rocketstore.message_store import MessageStore
    from rocketstore.replication.master import MasterService

    sizes = StoreConfig(
        mapped_file_size_commit_log=MiB,
        mapped_file_size_consume_queue=6_000,
        max_hash_slot_num=1_000,
        max_index_num=4_000,
        ha_listen_port=0,
    )
    with MessageStore.open(directory / "master", sizes) as master:
        _delay(master)
        _commit(master)
        assert isinstance(master.replication, MasterService)
        host, port = master.replication.address
        following = msgspec.structs.replace(
            sizes, broker_role=BrokerRole.SLAVE, ha_master_address=f"{host}:{port}"
        )
        with MessageStore.open(directory / "slave", following) as slave:
            _follow(master, slave)


def _delay(store: MessageStore) -> None:
    from rocketstore.message import Message

    began = time.perf_counter()
    store.put(Message(topic=TOPIC, body=b"boarding ends", properties={"DELAY": "1"}))
    _wait(lambda: store.max_offset(TOPIC, 0) == 1, "the delayed message")
    print(
        f"delayed    a message of delay level 1 came {time.perf_counter() - began:.2f} s after its "
        "put"
    )


def _commit(store: MessageStore) -> None:
    from rocketstore.message import Message

    committed = store.begin(Message(topic=TOPIC, body=b"seat 12A is sold"))
    store.rollback(store.begin(Message(topic=TOPIC, body=b"seat 12A is sold twice")))
    store.wait_dispatched()
    before = store.max_offset(TOPIC, 0)
    store.commit(committed)
    store.wait_dispatched()
    print(
        f"committed  1 of 2 transactions; {TOPIC} had {before} message before, "
        f"{store.max_offset(TOPIC, 0)} after"
    )


def _follow(master: MessageStore, slave: MessageStore) -> None:
    began = time.perf_counter()
    end = master.max_physical_offset
    _wait(lambda: slave.max_physical_offset == end, "the slave")
    slave.wait_dispatched()
    [message] = slave.get(TOPIC, 0, 1, 1).messages
    print(
        f"followed   a slave had the {end:,} bytes of its master after "
        f"{(time.perf_counter() - began) * 1000:.0f} ms; it reads: {message.body.decode()}"
    )


def _wait(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > until:
            raise StoreError(f"waited {PATIENCE_S:.0f} s for {what}, in vain")
        time.sleep(_LOOK_S)
