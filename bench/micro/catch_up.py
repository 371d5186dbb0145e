"""How fast a slave catches up with a master, ours with ours and a genuine 4.9.8 pair, in turn.

    .venv/bin/python bench/micro/catch_up.py --gigabytes 4 --body 1024 --rounds 3

Master and slave are processes of their own. The slave begins with the first message, since an empty
one of 4.9 would get the last file only (K-H4). The clock runs from when it is open.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.config import BrokerRole
from rocketstore.units import MiB
from support.java_store import JavaStore

SIZES = {
    "mappedFileSizeCommitLog": 256 * MiB,
    "maxHashSlotNum": 1_000_000,
    "maxIndexNum": 4_000_000,
}
CONFIG = StoreConfig(
    mapped_file_size_commit_log=256 * MiB, max_hash_slot_num=1_000_000, max_index_num=4_000_000
)
POLL_S = 0.002


def fill(root: Path, size: int, body: int) -> int:
    """Make the master's store and, beside it, one that has only its first message."""
    with MessageStore.open(root / "master", CONFIG) as store:
        store.put(Message(topic="T", body=b"first"))
    shutil.copytree(root / "master", root / "begun")
    messages = [Message(topic="T", body=os.urandom(body)) for _ in range(32)]
    with MessageStore.open(root / "master", CONFIG) as store:
        while store.max_physical_offset < size:
            store.put_batch(messages)
        store.wait_dispatched()
        return store.max_physical_offset


def serve_ours(path: str, port: int) -> None:
    """Be the master until the input ends."""
    with MessageStore.open(path, StoreConfig(ha_listen_port=port)):
        print("open", flush=True)
        sys.stdin.read()


def ours(root: Path, port: int, end: int) -> float:
    """Return the bytes per second of our pair; the slave is this process."""
    command = [sys.executable, __file__, "--serve", str(root / "master"), "--port", str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as master:
        assert master.stdin is not None
        assert master.stdout is not None
        master.stdout.readline()
        config = StoreConfig(broker_role=BrokerRole.SLAVE, ha_master_address=f"127.0.0.1:{port}")
        with MessageStore.open(root / "slave", config) as slave:
            began, start = time.monotonic(), slave.max_physical_offset
            while slave.max_physical_offset < end:
                time.sleep(POLL_S)
            slave.wait_dispatched()
            rate = (end - start) / (time.monotonic() - began)
        master.stdin.close()
    return rate


def java(root: Path, port: int, end: int) -> float:
    """Return the bytes per second of a genuine pair."""
    of_slave = {"brokerRole": "SLAVE", "haMasterAddress": f"127.0.0.1:{port}"}
    with (
        JavaStore(root / "master", {**SIZES, "haListenPort": port}),
        JavaStore(root / "slave", {**SIZES, **of_slave}) as slave,
    ):
        began, start = time.monotonic(), slave.positions()[1]
        while slave.positions()[1] < end:
            time.sleep(POLL_S)
        slave.wait_dispatched()
        return (end - start) / (time.monotonic() - began)


def main() -> None:
    """Measure both in turn, and print megabytes per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--serve")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_ours(arguments.serve, arguments.port)
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name)
        end = fill(root, int(arguments.gigabytes * 1e9), arguments.body)
        for _ in range(arguments.rounds):
            for side in (ours, java):
                shutil.copytree(root / "begun", root / "slave")
                with socket.create_server(("127.0.0.1", 0)) as free:
                    port = free.getsockname()[1]
                print(f"{side.__name__}: {side(root, port, end) / 1e6:.0f} MB/s", flush=True)
                shutil.rmtree(root / "slave")


if __name__ == "__main__":
    main()
