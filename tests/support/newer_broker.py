"""A genuine broker of RocketMQ 5.3.3 as a Python object, and the stores that it writes for tests.

``tests/interop/java5/newer`` names its jars and has the one class that drives it. `MAKERS` are the
stores of ``tests/golden/stores/newer.tar.xz``, which ``python -m support.newer_broker ARCHIVE``,
run in ``tests``, makes again.
"""

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.java_batch_store import PROJECT
from support.java_program import OPEN, JavaProgram, class_path
from support.java_store import DISK_MAY_BE_FULL, SMALL_FILES
from support.line_process import InHome
from support.patience import wait_until
from support.ports import free_port

NEWER_PROJECT = PROJECT / "newer"

SETTINGS = {
    **SMALL_FILES,
    "mappedFileSizeTimerLog": 4096,
    "timerWheelEnable": "false",
    "transactionOpBatchInterval": 100,
    "enableScheduleAsyncDeliver": "false",
    "transactionMetricFlushInterval": 200,
}
"""Its wheel of timers takes 39 MB, nearly all of them a hole: off where no timer is asked for.
The thread of its transaction metrics turns without a pause for the first interval, of 3 s."""

ORDERS = "orders"
GROUP = "billing"
LONG_TOPIC = "%RETRY%" + "g" * 130
"""Only retry topics may be longer than 127 bytes, and are stored with the second magic number."""


def newer_class_path() -> str:
    """Return the paths of the broker's jars."""
    return class_path(NEWER_PROJECT)


class NewerBroker(InHome):
    """One broker after the other in a JVM that lives as long as this."""

    def __init__(self) -> None:
        super().__init__()  # its own directories are there too
        options = [*OPEN, DISK_MAY_BE_FULL, f"-Duser.home={self._home.name}"]
        options += ["-Dtls.server.mode=disabled"]
        self._process = JavaProgram(NEWER_PROJECT, NEWER_PROJECT / "NewerStores.java", options)
        self.ask = self._process.ask

    def open(self, path: Path, **settings: object) -> None:
        """Start a broker with the store at `path`."""
        self.ask("open", path=str(path), config={**SETTINGS, **settings}, port=free_port())

    def put(
        self, topic: str, body: bytes, queue_id: int = 0, *, cmd: str = "put",
        codec: str | None = None, **properties: str,
    ) -> tuple[int, int]:  # fmt: skip
        """Put a message, or what `cmd` says; return its queue offset and physical offset."""
        result = self.ask(
            cmd, topic=topic, queueId=queue_id, body=base64.b64encode(body).decode(),
            codec=codec, properties=properties,
        )  # fmt: skip
        assert result["status"] == "PUT_OK", result
        return result["queueOffset"], result["physicalOffset"]

    def begin(self, body: bytes, **properties: str) -> tuple[int, int]:
        """Store a half message; return its queue offset and physical offset."""
        named = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"5-{body.decode()}"}
        return self.put(ORDERS, body, 3, cmd="begin", **named, **properties)

    def end(self, place: tuple[int, int], *, commits: bool) -> None:
        """Commit or roll back."""
        queue_offset, physical_offset = place
        answer = self.ask(
            "end", producerGroup=GROUP, queueOffset=queue_offset,
            physicalOffset=physical_offset, commits=commits,
        )  # fmt: skip
        assert answer["code"] == 0, answer

    def read(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Return the bodies that a consumer gets."""
        bodies: list[bytes] = []
        while True:
            page = self.ask("read", topic=topic, queueId=queue_id, offset=len(bodies))
            bodies += map(base64.b64decode, page["bodies"])
            if not page["bodies"]:
                return bodies

    def let_close(self) -> None:
        """Begin to shut the broker down in order; it mostly sleeps, and another may be opened."""
        self.ask("close")

    def close(self) -> None:
        """Shut the broker down in order, and wait for those that began to."""
        self.ask("join")


# --- the stores ---------------------------------------------------------------------------------


def files(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """Everything of 5.3 that stands in the files that 4.9 has too."""
    broker.open(path, enabledAppendPropCRC="true", enableLmq="true", enableMultiDispatch="true")
    broker.ask("topic", topic=ORDERS, attributes={"+message.type": "NORMAL"})
    broker.ask("topic", topic="shared", attributes={})
    broker.ask("group", group=GROUP)
    broker.ask("mapping", topic="shared")
    for number in range(300):
        keys = {"KEYS": f"k{number} k{number}b", "TAGS": f"tag{number % 3}"}
        broker.put(ORDERS, b"%d" % number, number % 3, **keys)
    for codec in ("LZ4", "ZSTD", "ZLIB"):
        broker.put("packed", b"packed " * 100, codec=codec)
    broker.put(LONG_TOPIC, b"long", KEYS="long", **{"1ST_POP_TIME": "1"})
    lights = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    for number in range(3):
        broker.put("lights", b"light %d" % number, **lights)
    broker.put(ORDERS, b"later", 0, DELAY="1")
    wait_until(lambda: broker.read(ORDERS)[-1] == b"later")
    broker.put(ORDERS, b"in two hours", 0, DELAY="18")
    broker.ask("offset", group=GROUP, topic=ORDERS, offset=50)
    broker.ask("confirm", confirmed=12345, flushed=6789)
    broker.let_close()
    return {}


def transactions(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """Half messages of which 5.3 tells in few op messages that they have ended."""
    broker.open(path)
    begun = {f"{number}": broker.begin(b"%d" % number) for number in range(40)}
    for name, place in begun.items():
        if int(name) % 4:
            broker.end(place, commits=int(name) % 4 != 1)
    broker.ask("writeOps")
    broker.let_close()
    return {"begun": begun}


def timers(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """Messages with a time of their own, of which one was delivered."""
    broker.open(path, timerWheelEnable="true")
    broker.put(ORDERS, b"soon", TIMER_DELAY_MS="2500")
    broker.put(ORDERS, b"tomorrow", TIMER_DELAY_SEC="86400")
    broker.put(ORDERS, b"in two days", TIMER_DELAY_SEC="172000")
    wait_until(lambda: broker.read(ORDERS) == [b"soon"])
    time.sleep(2)  # the checkpoint of the timers is written every second
    broker.let_close()
    return {}


def delivered_timers(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """A message with a time of its own that was delivered."""
    broker.open(path, timerWheelEnable="true")
    broker.put(ORDERS, b"soon", TIMER_DELAY_MS="1500")
    wait_until(lambda: broker.read(ORDERS) == [b"soon"])
    time.sleep(2)
    broker.let_close()
    return {}


def _popped(broker: NewerBroker, path: Path) -> Callable[[], bool]:
    broker.open(path, timerWheelEnable="true", reviveQueueNum=1, enablePopLog="false")
    broker.ask("topic", topic=ORDERS, attributes={})
    broker.ask("group", group=GROUP)
    for number in range(3):
        broker.put(ORDERS, b"%d" % number)
    broker.ask("pop", topic=ORDERS, group=GROUP, count=3, invisibleMs=3000)
    topic = broker.ask("offset", topic=ORDERS, group=GROUP)["reviveTopic"]

    def has_come() -> bool:
        found: int = broker.ask("offset", topic=topic, group="CID_RMQ_SYS_REVIVE_GROUP")[
            "maxOffset"
        ]
        return found > 0

    return has_come


def pops(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """Three messages that a client of POP took and did not acknowledge."""
    has_come = _popped(broker, path)
    broker.ask("stopReviving")
    wait_until(has_come)
    broker.let_close()
    return {}


def revived_pops(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """The same, after they were put into the retry topic of the group."""
    wait_until(_popped(broker, path))
    retry = f"%RETRY%{GROUP}_{ORDERS}"
    wait_until(lambda: len(broker.read(retry)) == 3)
    time.sleep(3)
    broker.let_close()
    return {"retry": retry}


def rocksdb(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """Queues and tables in RocksDB."""
    broker.open(path, storeType="defaultRocksDB")
    broker.ask("topic", topic=ORDERS, attributes={})
    broker.ask("group", group=GROUP)
    for number in range(30):
        broker.put(ORDERS, b"%d" % number, number % 3, KEYS=f"k{number}")
    broker.ask("offset", group=GROUP, topic=ORDERS, offset=5)
    wait_until(lambda: len(broker.read(ORDERS)) == 10)
    broker.let_close()
    return {}


def rocksdb_tables(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """Queues in files, tables in RocksDB."""
    broker.open(path, configManagerVersion="v2")
    broker.ask("topic", topic=ORDERS, attributes={})
    broker.put(ORDERS, b"0")
    broker.ask("offset", group=GROUP, topic=ORDERS, offset=1)
    broker.let_close()
    return {}


def compaction(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """A topic of which only the last message of each key is kept, and not in the log."""
    broker.open(
        path, compactionScheduleInternal=500, compactionMappedFileSize=2048,
        compactionCqMappedFileSize=1024,
    )  # fmt: skip
    broker.ask("topic", topic="states", attributes={"+cleanup.policy": "COMPACTION"})
    for number in range(60):
        broker.put("states", b"%d" % number, KEYS=f"k{number % 5}")
    position = path / "compaction" / "position-checkpoint"
    wait_until(lambda: position.exists() and "states_0" in position.read_text())
    broker.let_close()
    return {}


def controller(broker: NewerBroker, path: Path) -> dict[str, Any]:
    """A broker whose role a controller gives."""
    broker.open(path)
    broker.put(ORDERS, b"0")
    broker.close()
    broker.ask("controller", path=str(path))
    return {}


MAKERS: dict[str, Callable[[NewerBroker, Path], dict[str, Any]]] = {
    one.__name__: one
    for one in (
        files, transactions, timers, delivered_timers, pops, revived_pops, rocksdb,
        rocksdb_tables, compaction, controller,
    )
}  # fmt: skip


def main(archive: Path) -> None:
    """Make the archive again."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "newer")
        told = {}
        with NewerBroker() as broker:
            for name, make in MAKERS.items():
                told[name] = make(broker, root / name)
            broker.close()
        (root / "manifest.json").write_text(json.dumps(told, indent=1))
        command = ["tar", "--sparse", "--create", "--xz", "--file", archive, "newer"]
        subprocess.run(command, cwd=directory, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
