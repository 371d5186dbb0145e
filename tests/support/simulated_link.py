"""Both sides of replication in one thread, over a link that loses its end at any byte.

Logs are in memory: the master's is a real one that becomes visible record by record. Time passes
when the simulation says so. Everything follows from one seed.
"""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.replication.master_session import MasterSession
from rocketstore.replication.protocol import HELLO, Limits, PeerError, Welcome
from rocketstore.replication.slave_session import SlaveSession
from support.memory import memory_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.replication.protocol import Session

FILE_BYTES = 4096
LIMITS = Limits(
    heartbeat_ms=50, silence_ms=200, transfer_bytes=700, longest_record_bytes=FILE_BYTES
)


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

    @property
    def end(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        stop = min(offset + size, self.end, offset - offset % FILE_BYTES + FILE_BYTES)
        return bytes(self.data[offset:stop]) if offset >= self.begin else b""

    def append(self, offset: int, records: memoryview, _store_time_ms: int) -> None:
        if self.begin == self.end:
            self.data = bytearray(offset)
            self.begin = offset
        assert offset == self.end, "only at the end"
        assert offset // FILE_BYTES == (offset + len(records) - 1) // FILE_BYTES, "of one file"
        self.data += records


class MasterOf49(MasterSession):
    """A master that does not know our greeting."""

    def _take(self, number: int) -> None:
        if number != HELLO:
            super()._take(number)


class Simulation:
    """A master, a slave, and what happens to both and between them."""

    def __init__(self, seed: int, *, master_of_4_9: bool) -> None:
        self.random = random.Random(seed)
        self.master, self.slave = MemoryLog(), MemoryLog()
        self.now_ms = 0
        self.limits = LIMITS
        self.acknowledged = -1
        self.refusals: list[PeerError] = []
        self._master_kind = MasterOf49 if master_of_4_9 else MasterSession
        self._bytes, self._ends = real_log()
        self._put_count = 0
        self._sessions: list[Session] = []
        self._wires = [bytearray(), bytearray()]

    # --- what may happen ------------------------------------------------------------------------

    def put(self) -> None:
        """Let the master have some records more."""
        self._put_count = min(self._put_count + self.random.randrange(1, 6), len(self._ends))
        end = self._ends[self._put_count - 1]
        self.master.data += self._bytes[len(self.master.data) : end]

    def connect(self) -> None:
        """Begin a connection; one that is there is cut, with what is on its way."""
        self._wires = [bytearray(), bytearray()]
        log = self.master
        master = self._master_kind(
            log,
            self.limits,
            welcome=lambda: Welcome(FILE_BYTES, log.begin, log.end, -1, 0),
            now_ms=self.now_ms,
        )
        slave = SlaveSession(
            self.slave, self.limits, identity=7, from_last_file=False, now_ms=self.now_ms
        )
        self._sessions = [master, slave]

    def send(self) -> None:
        """Have one side say what it has to say."""
        side = self.random.randrange(2)
        self._guarded(lambda: self._say(side))

    def deliver(self) -> None:
        """Have some of the bytes on their way arrive."""
        side = self.random.randrange(2)
        size = self.random.choice((1, 7, 12, 300, 5000))
        data = bytes(self._wires[side][:size])
        del self._wires[side][:size]
        if data:
            self._guarded(lambda: self._sessions[1 - side].receive(data, self.now_ms))

    def wait(self) -> None:
        """Let time pass, now and then too much of it."""
        self.now_ms += self.random.choice((1, 10, 60, 60, 250))

    def inject(self) -> None:
        """Have bytes arrive that nobody sent."""
        side = self.random.randrange(2)
        junk = self.random.randbytes(self.random.choice((1, 8, 40)))
        self._guarded(lambda: self._sessions[side].receive(junk, self.now_ms))
        self.connect()

    # --- the run --------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Do so many random things, checking after each."""
        self.connect()
        weights = {
            self.send: 40, self.deliver: 50, self.put: 4, self.wait: 4, self.connect: 1,
        }  # fmt: skip
        for _ in range(steps):
            [happens] = self.random.choices([*weights], [*weights.values()])
            happens()
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
        begin, end = self.slave.begin, self.slave.end
        assert self.slave.data[begin:] == self.master.data[begin:end]
        [master, _] = self._sessions
        assert isinstance(master, MasterSession)
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
