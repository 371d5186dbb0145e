"""Masters and slaves with small log files, and what is compared between them."""

from pathlib import Path
from typing import Any

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.config import BrokerRole
from support.patience import wait_until

LOG_FILE_BYTES = 65_536
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_FILE_BYTES,
    "mapped_file_size_consume_queue": 2000,
}


def open_master(root: Path, **settings: Any) -> MessageStore:
    """Open a store that listens at a free port of the loopback."""
    chosen = {**SIZES, "ha_listen_port": 0, "broker_role": BrokerRole.SYNC_MASTER, **settings}
    return MessageStore.open(root, StoreConfig.small(**chosen))


def address_of(master: Any) -> str:
    """Return where slaves find an open master."""
    host, port = master.replication.address
    return f"{host}:{port}"


def open_slave(root: Path, master: str, **settings: Any) -> MessageStore:
    """Open a store that follows the master at an address."""
    chosen = {**SIZES, "broker_role": BrokerRole.SLAVE, "ha_master_address": master, **settings}
    return MessageStore.open(root, StoreConfig.small(**chosen))


def put_many(store: MessageStore, count: int, *, first: int = 0) -> None:
    """Put messages of many lengths into three queues, whatever becomes of their replicas."""
    for number in range(first, first + count):
        body = f"{number}-".encode() * (number * 37 % 400)
        result = store.put(
            Message(topic="orders", body=body, keys=(f"k{number}",), tags=f"T{number % 3}"),
            queue_id=number % 3,
        )
        assert result.physical_offset >= 0, result


def wait_for_slave(master: MessageStore, slave: MessageStore) -> None:
    """Wait until a slave has all that its master has."""
    end = master.max_physical_offset
    wait_until(lambda: slave.max_physical_offset >= end, f"the slave has {end}")


def log_bytes(root: Path, end: int, begin: int = 0) -> bytes:
    """Return the bytes of a CommitLog, from files of `LOG_FILE_BYTES`."""
    parts = []
    for path in sorted((root / "commitlog").iterdir()):
        base = int(path.name)
        if begin <= base < end:
            parts.append(path.read_bytes()[: end - base])
    return b"".join(parts)
