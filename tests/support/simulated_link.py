"""Both sides of replication in one thread, over a link that loses its end at any byte.

Logs are in memory: the master's is a real one that becomes visible record by record, and its puts
wait for the slave as those of a SYNC_MASTER do. Time passes when the simulation says so, also for
who waits. Everything follows from one seed.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstore import Message, MessageStore, PutMessageStatus, StoreConfig
from rocketstore.replication.master import MasterService, _Connection
from rocketstore.replication.master_session import MasterSession
from rocketstore.replication.protocol import FRAME, HELLO, PeerError, SessionLimits
from rocketstore.replication.slave_session import SlaveSession
from support.memory import memory_directory

FILE_BYTES = 4096
LIMITS = SessionLimits(
    heartbeat_ms=50, silence_ms=200, transfer_bytes=700, longest_record_bytes=FILE_BYTES
)
PUT_TIMEOUT_MS = 120
CONFIG = StoreConfig(ha_slave_fallbehind_max=2 * FILE_BYTES)

STRANGERS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x7f" * 8,
    bytes(8),  # asks for the log, and takes none of it
    FRAME.pack(0, 2**31 - 1),
    FRAME.pack(HELLO, 44) + bytes(44),
)
"""What a peer may say that is none."""


class KilledError(Exception):
    """The process that this happens in is no more."""


@functools.cache
def real_log() -> tuple[bytes, tuple[int, ...]]:
    """Return the bytes of a log of several files, and where its records end."""
    random_source = random.Random(4)
    ends = []
    with memory_directory() as root:
        config = StoreConfig.small(mapped_file_size_commit_log=FILE_BYTES)
        with MessageStore.open(root, config, threads=False) as store:
            while store.max_physical_offset < 6 * FILE_BYTES:
                body = random_source.randbytes(random_source.choice((0, 10, 300, 1500)))
                result = store.put(Message(topic="T", body=body))
                ends.append(result.physical_offset + result.size)
        files = sorted((root / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files)[: ends[-1]], tuple(ends)


class MemoryLog:
    """A log in memory, of which bytes before `begin` are gone."""

    file_size = FILE_BYTES

    def __init__(self) -> None:
        self.data = bytearray()
        self.begin = 0
        self.is_new = True
        self.is_to_be_killed = False

    @property
    def end(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        stop = min(offset + size, self.end, offset - offset % FILE_BYTES + FILE_BYTES)
        return bytes(self.data[offset:stop]) if offset >= self.begin else b""

    def append(self, offset: int, records: memoryview, _store_time_ms: int) -> None:
        if self.is_new:
            self.data = bytearray(offset)
            self.begin = offset
            self.is_new = False
        assert offset == self.end, "only at the end"
        assert offset // FILE_BYTES == (offset + len(records) - 1) // FILE_BYTES, "of one file"
        if self.is_to_be_killed:  # half-way: the next opening cuts the log back to whole records
            self.is_to_be_killed = False
            ends = real_log()[1]
            at = bisect.bisect_right(ends, offset + len(records) // 2) - 1
            self.data += records[: max(ends[at] - offset, 0)]
            raise KilledError
        self.data += records


class MasterOf49(MasterSession):
    """A master that does not know our greeting."""

    def _take(self, number: int) -> None:
        if number != HELLO:
            super()._take(number)


class Connected(_Connection):
    """A connection of a master's without socket and thread."""

    def __init__(self, session: MasterSession) -> None:
        self.host = "peer"
        self.session = session
        bell: Any = SimpleNamespace(ring=lambda: None)
        self.link: Any = SimpleNamespace(bell=bell, close=lambda: None)


class WaitingBell:
    """Has the simulation go on while somebody waits."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.is_rung = False

    def ring(self) -> None:
        self.is_rung = True

    def wait(self, timeout_s: float = -1) -> bool:
        simulation = self.simulation
        until_ms = inf if timeout_s < 0 else simulation.now_ms + round(timeout_s * 1000)
        while not self.is_rung and simulation.now_ms < until_ms:
            simulation.step(until_ms)
        was_rung, self.is_rung = self.is_rung, False
        return was_rung


class Simulation:
    """A master, a slave, and what happens to both and between them."""

    def __init__(self, seed: int, *, master_of_4_9: bool) -> None:
        self.random = random.Random(seed)
        self.master, self.slave = MemoryLog(), MemoryLog()
        self.now_ms = 0
        self.limits = LIMITS
        self.acknowledged = -1
        self.refusals: list[PeerError] = []
        self.seen: Counter[Any] = Counter()
        self._until_ms = inf
        self._master_kind = MasterOf49 if master_of_4_9 else MasterSession
        self._bytes, self._ends = real_log()
        self._put_count = 0
        self._service = self._new_service()
        self._sessions: list[MasterSession | SlaveSession] = []
        self._wires = [bytearray(), bytearray()]
        self._stuck_until_ms = [0, 0]
        # The last one never happens while another put waits.
        weights = {
            self.send: 400, self.deliver: 500, self.wait: 40, self.connect: 6, self.kill_slave: 3,
            self.kill_master: 3, self.stick: 3, self.meet_a_stranger: 3,
            self.put: 30, self.put_and_wait: 10,
        }  # fmt: skip
        self._happenings, self._shares = [*weights], [*itertools.accumulate(weights.values())]

    def _new_service(self) -> MasterService:
        store: Any = SimpleNamespace(config=CONFIG, replicated_log=self.master)
        return MasterService(store)

    def use_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let who waits do so in the time of the simulation."""
        clock = SimpleNamespace(monotonic=lambda: self.now_ms / 1000)
        monkeypatch.setattr("rocketstore.storage.threads.time", clock)
        monkeypatch.setattr("rocketstore.storage.threads.Bell", lambda: WaitingBell(self))

    # --- what may happen ------------------------------------------------------------------------

    def put(self) -> None:
        """Let the master have some records more."""
        self._put_count = min(self._put_count + self.random.randrange(1, 6), len(self._ends))
        end = self._ends[self._put_count - 1]
        self.master.data += self._bytes[len(self.master.data) : end]

    def put_and_wait(self) -> None:
        """Have a producer wait for the slave, no longer than it may."""
        self.put()
        end, began_ms = self.master.end, self.now_ms
        try:
            status = self._service.wait_replicated(end, PUT_TIMEOUT_MS / 1000)
        except KilledError:  # the master: nobody hears of the put
            return
        assert self.now_ms - began_ms <= PUT_TIMEOUT_MS, "a put waited for too long"
        if status is PutMessageStatus.PUT_OK:
            assert self.slave.end >= end, "acknowledged to its producer, and not on the slave"
        self.seen[status.name] += 1

    def connect(self) -> None:
        """Begin a connection; one that is there is cut, with what is on its way.

        A master may notice that only later.
        """
        self._wires = [bytearray(), bytearray()]
        self._stuck_until_ms = [0, 0]
        master = self._listen()
        # As long as a slave's process lives it has one number.
        slave = SlaveSession(
            self.slave,
            self.limits,
            identity=self.seen["slave killed"],
            from_last_file=False,
            now_ms=self.now_ms,
        )
        self._sessions = [master, slave]

    def _listen(self) -> MasterSession:
        """Return the master's side of a new connection; of those before it keeps one at most."""
        service = self._service
        service.log = self.master  # type: ignore[assignment] # a test may have brought its own
        session = self._master_kind(
            self.master,
            self.limits,
            welcome=service.welcome,
            on_acknowledged=service.acknowledged.tell,
            now_ms=self.now_ms,
        )
        kept = service._connections[-1:] if self.random.random() < 0.5 else ()
        service._connections = [*kept, Connected(session)]
        return session

    def kill_slave(self) -> None:
        """End the slave's process, now or in its next append."""
        self.seen["slave killed"] += 1
        if self.random.random() < 0.5:
            self.slave.is_to_be_killed = True
        else:
            self.connect()

    def kill_master(self) -> None:
        """End the master's process, and with it the put that waits."""
        self.seen["master killed"] += 1
        self._service = self._new_service()
        self.connect()
        if self._until_ms < inf:
            raise KilledError

    def stick(self) -> None:
        """Have one side neither say nor hear anything for a while."""
        self.seen["stuck"] += 1
        self._stuck_until_ms[self.random.randrange(2)] = self.now_ms + self.random.randrange(400)

    def meet_a_stranger(self) -> None:
        """Have one side hear what no slave and no master says, on a connection of its own."""
        self.seen["stranger"] += 1
        said = self.random.choice((*STRANGERS, self.random.randbytes(40)))
        if self.random.random() < 0.5:
            with contextlib.suppress(PeerError):
                stranger = self._listen()
                stranger.receive(said, self.now_ms)
                stranger.outgoing(self.now_ms)
            return
        self.connect()
        before = bytes(self.slave.data)
        with contextlib.suppress(PeerError):
            wrong = self._sessions[1]
            wrong.receive(said, self.now_ms)
            wrong.receive(FRAME.pack(self.slave.end, 24) + bytes(24), self.now_ms)
        assert self.slave.data == before
        self.connect()

    def send(self) -> None:
        """Have one side say what it has to say."""
        side = self.random.randrange(2)
        if self.now_ms >= self._stuck_until_ms[side]:
            self._guarded(lambda: self._say(side))

    def deliver(self) -> None:
        """Have some of the bytes on their way arrive."""
        side = self.random.randrange(2)
        if self.now_ms < self._stuck_until_ms[1 - side]:
            return
        size = self.random.choice((1, 7, 12, 300, 5000))
        data = bytes(self._wires[side][:size])
        del self._wires[side][:size]
        if data:
            self._guarded(lambda: self._sessions[1 - side].receive(data, self.now_ms))

    def wait(self) -> None:
        """Let time pass, now and then too much of it, but not for who waits no longer."""
        self.now_ms += int(
            min(self.random.choice((1, 10, 60, 60, 250)), self._until_ms - self.now_ms)
        )

    # --- the run --------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Do so many random things, and what puts wait for."""
        self.connect()
        for _ in range(steps):
            self.step(inf)

    def step(self, until_ms: float) -> None:
        """Do a random thing and check; while a put waits, until a time at most."""
        self._until_ms = until_ms
        share = self.random.random() * self._shares[-1 if until_ms == inf else -2]
        self._happenings[bisect.bisect(self._shares, share)]()
        self.check()

    def finish(self) -> None:
        """Let both come to rest with nothing in their way."""
        self.connect()
        for _ in range(2000):
            if self.slave.end == self.master.end:
                break
            self.exchange(after_ms=1)

    def exchange(self, *, after_ms: int) -> None:
        """Have both sides say what they have to say after a while, and hear the other one."""
        self.now_ms += after_ms
        for side in (0, 1):
            self._guarded(functools.partial(self._say, side))
            data = bytes(self._wires[side])
            self._wires[side].clear()
            if data:
                receive = self._sessions[1 - side].receive
                self._guarded(functools.partial(receive, data, self.now_ms))

    def check(self) -> None:
        """Assert what holds at any time: the slave has a beginning of the log, and what it said."""
        begin, data = self.slave.begin, self.slave.data
        end = len(data)
        assert data[begin:] == self.master.data[begin:end]
        master: Any = self._sessions[0]
        assert master.acknowledged <= end, "acknowledged, and not on the slave"
        self.acknowledged = max(self.acknowledged, master.acknowledged)
        assert self.acknowledged <= end

    def _say(self, side: int) -> None:
        if len(self._wires[side]) < 10 * LIMITS.transfer_bytes:  # what a socket's buffer takes
            self._wires[side] += self._sessions[side].outgoing(self.now_ms)

    def _guarded(self, step: Callable[[], object]) -> None:
        """Do something that may end the connection; another one follows."""
        try:
            step()
        except PeerError as error:
            self.refusals.append(error)
            self.connect()
        except KilledError:  # the slave's
            self.connect()
