"""What the services that have sockets do, for the matrix of services and faults.

Their threads run in a store that has no others: `run` starts them, so that what an interrupt finds
on the main thread is their start, the puts that wait for a slave, and the end.
"""

import _socket  # not counted by `FailingCalls`
import contextlib
import re
import time
from pathlib import Path
from typing import ClassVar

from rocketstore import Message, MessageStore, PutMessageStatus
from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.service import BrokerService
from rocketstore.broker.settings import BrokerSettings
from rocketstore.config import BrokerRole
from rocketstore.remoting.command import Command
from rocketstore.remoting.frame import FrameReader
from support.broker_desk import SEND
from support.configured_store import small_config
from support.failing_calls import BESIDE, Fault
from support.inside import workers_of
from support.patience import PATIENCE_S, wait_until
from support.ports import free_port
from support.replicas import log_bytes
from support.service_work import Work
from support.wire import framed

HEARTBEAT = {"ha_send_heartbeat_interval": 100}
MOMENT_S = 0.03
"""So long a slave, or an answer, is waited for that may never come."""

WATCHED_AT_START = 3
"""The last descriptor that a broker's loop watches as it starts: its own, and three ports."""


class Networked(Work):
    """A work whose services have sockets and threads."""

    has_sockets: ClassVar = True
    is_up = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.has_run = False

    def run(self) -> None:
        if self.has_run:  # a service is started once
            self.is_up = False
            self.close()
            self.open()
        self.has_run = True
        self.start_all()
        self.is_up = True
        self.use()

    def is_lifted(self, fault: Fault) -> bool:
        return fault.number % 2 == 0

    def is_ended(self) -> bool:
        """Whether a store takes nothing any more, and says so."""
        return any(store.is_closed or workers_of(store).flusher.failure for store in self.stores)

    def start_all(self) -> None:
        """Start what has threads, which may be refused."""

    def use(self) -> None:
        """Use it."""


class Replicating(Networked):
    """A master and its slave: both have what was acknowledged, and the slave always comes back."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried: set[str] = set()
        self.promised: set[str] = set()
        self.slave: MessageStore
        self.started: list[MessageStore] = []

    def open(self) -> MessageStore:
        port = free_port()
        master = {
            "broker_role": BrokerRole.SYNC_MASTER, "ha_listen_port": port, "slave_timeout": 20,
            **HEARTBEAT,
        }  # fmt: skip
        slave = {
            "broker_role": BrokerRole.SLAVE, "ha_master_address": f"127.0.0.1:{port}", **HEARTBEAT
        }  # fmt: skip
        self.started = []
        self.store = self.opened("master", **master)
        try:
            self.slave = self.opened("slave", **slave)
        except BaseException:
            self.store.close()
            raise
        return self.store

    def opened(self, name: str, **settings: object) -> MessageStore:
        config = small_config(**settings)
        return MessageStore.open(self.root / name, config, clock=self.clock, threads=False)

    @property
    def stores(self) -> tuple[MessageStore, ...]:
        return self.slave, self.store

    def start(self, store: MessageStore) -> None:
        assert store.replication is not None
        store.replication.start()
        self.started.append(store)

    def is_level(self) -> bool:
        """Whether the slave has all that the master has; what it gets is dispatched."""
        for store in self.stores:
            self.call(store.wait_dispatched)
        return self.slave.max_physical_offset == self.store.max_physical_offset

    def start_all(self) -> None:
        for store in reversed(self.stores):
            self.call(self.start, store)

    def use(self) -> None:
        for number in range(6):
            if number % 3 == 0:
                deadline = time.monotonic() + MOMENT_S
                while not self.is_level() and time.monotonic() < deadline:
                    time.sleep(0.001)
            name = f"{self.prefix}{number}"
            self.tried.add(name)
            message = Message(topic="t", body=name.encode().ljust(12_000))
            put = self.call(self.store.put, message)
            if put is not None and put.status is PutMessageStatus.PUT_OK:
                self.promised.add(name)

    def recover(self) -> None:
        if len(self.started) == 2:
            wait_until(lambda: self.is_ended() or self.is_level(), "the slave has all")

    def names(self, store: MessageStore) -> set[str]:
        self.store, master = store, self.store
        found = self.bodies("t")
        self.store = master
        assert set(found.values()) <= {1}
        return {name.rstrip() for name in found}

    def judge(self) -> None:
        assert self.promised <= self.names(self.slave)
        assert self.promised <= self.names(self.store) <= self.tried
        for store in self.stores:
            self.start(store)
        wait_until(self.is_level, "the slave has all")
        end = self.store.max_physical_offset
        files = [log_bytes(self.root / name, end) for name in ("master", "slave")]
        assert files[0] == files[1]
        assert self.names(self.slave) == self.names(self.store)


class Looping(Networked):
    """What runs a loop of asyncio in the store's process."""

    def is_lifted(self, fault: Fault) -> bool:
        return super().is_lifted(fault) or fault.call == "socket.send"  # asyncio is woken by one

    def start_all(self) -> None:
        self.call(self.start)


class Measuring(Looping):
    """Metrics: an answer is whole and true, and there is one whenever nothing fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.port = 0
        self.is_started = False

    def start(self) -> None:
        self.store.metrics.start()
        self.is_started = True

    def open(self) -> MessageStore:
        self.is_started, self.port = False, free_port()
        self.settings = {"metrics_port": self.port}  # type: ignore[misc] # of its own
        return super().open()

    def answer(self, within_s: float) -> bytes:
        """Return what a scrape is answered."""
        parts = []
        with contextlib.closing(_socket.socket()) as peer, contextlib.suppress(OSError):
            peer.settimeout(within_s)
            peer.connect(("127.0.0.1", self.port))
            peer.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            while part := peer.recv(1 << 20):
                parts.append(part)
        return b"".join(parts)

    def is_answered(self, within_s: float = PATIENCE_S) -> bool:
        """Scrape; whether there was an answer, which says what is so."""
        head, _, body = self.answer(within_s).partition(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        if b" 200 " not in head or size is None or int(size[1]) != len(body):
            return False
        stored = re.search(rb"\nrocketmq_storage_size\S* (\S+)", body)
        assert stored is not None
        assert float(stored[1]) == self.store.max_physical_offset
        return True

    def is_beyond(self, fault: Fault) -> bool:
        # asyncio leaves half a loop where it cannot make one.
        if fault.call in ("EpollSelector.register", "EpollSelector.select"):
            return fault.lasting or not fault.number
        return fault.call in ("socket.socketpair", "EpollSelector.__init__")

    def use(self) -> None:
        for number in range(2):
            self.call(self.store.put, Message(topic="t", body=b"%d" % number))
            self.call(self.store.wait_dispatched)
            self.is_answered(MOMENT_S)

    def recover(self) -> None:
        if self.is_started:
            wait_until(lambda: self.store.is_closed or self.is_answered(1.0), "there is an answer")

    def judge(self) -> None:
        self.start()
        wait_until(self.is_answered, "there is an answer")


class Brokering(Looping):
    """A broker: what it acknowledged is there, and it answers whenever nothing fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried: set[str] = set()
        self.promised: set[str] = set()
        self.is_started = False

    def open(self) -> MessageStore:
        self.is_started = False
        # Any port for names: one that was free before may be another process's now.
        settings = BrokerSettings(listen_port=free_port(), namesrv_port=0, broker_name="broker-a")
        self.address = "127.0.0.1", settings.listen_port
        self.store = MessageStore.open(
            self.root, small_config(), clock=self.clock, threads=False,
            services=[BrokerService.with_settings(settings)],
        )  # fmt: skip
        return self.store

    def start(self) -> None:
        self.store.attached["broker"].start()
        self.is_started = True

    def answer(self, request: Command, within_s: float) -> Command | None:
        """Return what a request is answered, None where nothing comes."""
        frames, reader = [], FrameReader()
        with contextlib.closing(_socket.socket()) as peer, contextlib.suppress(OSError):
            peer.settimeout(within_s)
            peer.connect(self.address)
            peer.send(framed(request))
            while not frames and (part := peer.recv(1 << 20)):
                frames, _ = reader.feed(part)
        return frames[0][0] if frames else None

    def send(self, name: str, within_s: float) -> bool:
        """Send a message; whether it was acknowledged."""
        self.tried.add(name)
        fields = {letter: str(value) for letter, value in SEND.items()}
        request = Command(BrokerRequest.SEND_MESSAGE_V2, 1, fields=fields, body=name.encode())
        answer = self.answer(request, within_s)
        is_promised = answer is not None and answer.code == 0
        if is_promised:
            self.promised.add(name)
        return is_promised

    def is_beyond(self, fault: Fault) -> bool:
        # asyncio leaves half a loop or a port where it cannot make one, and none where it cannot
        # wait. A pool of threads holds a lock as it starts one, which a fork by that same thread
        # waits for.
        if fault.call == "EpollSelector.register":
            return fault.number <= WATCHED_AT_START and fault.code != BESIDE
        return fault.call in (
            "EpollSelector.select", "EpollSelector.__init__", "socket.socketpair"
        ) or (fault.call == "Thread.start" and fault.code == BESIDE)  # fmt: skip

    def use(self) -> None:
        for number in range(3):
            self.send(f"{self.prefix}{number}", MOMENT_S)
            self.call(self.store.wait_dispatched)
        self.answer(Command(BrokerRequest.GET_BROKER_RUNTIME_INFO, 1), MOMENT_S)

    def recover(self) -> None:
        if self.is_started:
            wait_until(lambda: self.is_ended() or self.send("recovered", 1.0), "there is an answer")

    def judge(self) -> None:
        self.start()
        wait_until(lambda: self.send("judged", PATIENCE_S), "there is an answer")
        assert self.promised <= set(self.bodies(str(SEND["b"]))) <= self.tried


NETWORKED: dict[str, type[Networked]] = {
    "replication": Replicating, "metrics": Measuring, "broker": Brokering
}  # fmt: skip
