"""The master of a store: listens for slaves, serves each, and lets puts wait for them.

Law: a slave never holds up the store. Puts wait no longer than their limit, and only while enough
slaves are close behind; a fault of a slave ends its own connection.
Law: slaves are told apart (K-H6): ours by the number that each took, one of 4.9 by its host, so
two connections of one count once.
How derived: HAService.AcceptSocketService and GroupTransferService of 4.9.8 (spec B10, B21.2).
"""

from __future__ import annotations

import contextlib
import functools
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.addresses import listener, resolved
from rocketstore.errors import RocketStoreError, SystemRefusedError
from rocketstore.events import get_logger
from rocketstore.format.host import address_text
from rocketstore.replication.link import Link, limits_of, tls_context
from rocketstore.replication.master_session import MasterSession
from rocketstore.replication.protocol import PeerError, Welcome
from rocketstore.storage.attached import Service
from rocketstore.storage.results import PutMessageStatus
from rocketstore.storage.threads import PAUSE_AFTER_ERROR_S, Changes, Seldom, ServiceThread
from rocketstore.units import monotonic_ms

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore

MOST_CONNECTIONS: Final = 64
"""Each has a thread; a slave beyond this number is refused."""

LAST_BYTES_S: Final = 1.0
"""How long the end of a master waits for slaves."""

_BACKLOG: Final = 16

_log: Final = get_logger(__name__)


class Follower(NamedTuple):
    """A connected slave: its address, and up to where it has the log (-1: not known yet)."""

    address: str
    identity: str
    sent: int
    acknowledged: int


class _Connection:
    """A slave's connection, and the thread that works on it."""

    def __init__(self, master: MasterService, link: Link, host: str, port: int) -> None:
        self.host = host
        self.link = link
        self.session = MasterSession(
            master.log,
            master.limits,
            welcome=master.welcome,
            on_acknowledged=master.acknowledged.tell,
            ahead=master.ahead.setdefault(host, []),
            now_ms=monotonic_ms(),
        )
        name, work = f"rocketstore-slave-{port}", functools.partial(master.serve, self)
        self.thread = ServiceThread(name, work, self.link.stop, ends_by_errors=True)

    @property
    def slave(self) -> str:
        """Which slave it is."""
        identity = self.session.identity
        return f"{identity:016x}" if identity >= 0 else self.host


class MasterService(Service):
    """Serves the log of `store`; `address` is where, once it is started.

    `acknowledged` tells waiting puts that a slave has more of the log.
    """

    name = "replication"

    def __init__(self, store: BaseStore) -> None:
        self._config = config = store.config
        self.log = store.replicated_log
        self.limits = limits_of(config)
        self._tls = tls_context(config, is_master=True)
        self._connections: list[_Connection] = []  # several threads change it, each by one call
        self.acknowledged = Changes()
        self.ahead: dict[str, list[int]] = {}
        self._listener: socket.socket | None = None
        self._accepting = ServiceThread("rocketstore-master", self._accept, wake=self._hang_up)
        self.address = ("", 0)

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen; `SystemRefusedError` where the address is taken."""
        wanted = (self._config.ha_listen_address, self._config.ha_listen_port or 0)
        try:
            self._listener = listener(*resolved(wanted[0]), wanted[1], _BACKLOG)
            self.address = self._listener.getsockname()[:2]
        except OSError as error:
            raise SystemRefusedError(
                f"cannot listen for slaves at {address_text(*wanted)}: {error.strerror or error}",
                code=error.errno,
                hint="set haListenAddress and haListenPort; 0 takes any free port",
            ) from error
        self.log.set_replica(self.wait_replicated)
        self._accepting.start()
        _log.info("replication.listening", address=self.address, is_encrypted=bool(self._tls))

    def finish(self) -> None:
        """Let slaves that are near take the rest, and close all connections.

        Puts that still wait end as by time-out. Source: DefaultMessageStore.shutdown of 4.9, which
        sleeps for a second before it ends replication.
        """
        for connection in tuple(self._connections):
            connection.link.bell.ring()
        self.acknowledged.wait_for(
            lambda: all(end >= self.log.end for end in self._ends().values()), LAST_BYTES_S
        )
        self._accepting.stopping.set()
        self.acknowledged.tell()
        self._accepting.stop()
        for connection in tuple(self._connections):
            connection.thread.stop()
            self._forget(connection)  # one whose thread never started
        if self._listener is not None:
            self._listener.close()

    def forget(self, _error: RocketStoreError) -> None:
        """Close a forked child's copies of the sockets: no thread there would answer."""
        for connection in self._connections:
            connection.link.close()
        if self._listener is not None:
            self._listener.close()

    def _hang_up(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):  # closed already
                self._listener.shutdown(socket.SHUT_RDWR)

    # --- slaves ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        stopping, refused = self._accepting.stopping, Seldom()
        while not stopping.is_set():
            try:
                self._take(*self._listener.accept())
                refused.is_due(None)
            except OSError as error:
                if stopping.is_set():
                    return
                if refused.is_due(error):  # no descriptors left, say: later there are some
                    _log.error("replication.accept_failed", error=str(error), next="tried again")
                stopping.wait(PAUSE_AFTER_ERROR_S)

    def _take(self, connection: socket.socket, address: tuple[str, int]) -> None:
        """Have a thread of its own serve a slave; after a failure nothing of it is left."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(connection)
            if len(self._connections) >= MOST_CONNECTIONS:
                _log.warning("replication.too_many_slaves", address=address, most=MOST_CONNECTIONS)
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host, port = address[:2]
            link = Link(connection, clock=monotonic_ms, name=f"{host}:{port}")
            undo.callback(link.close)
            slave = _Connection(self, link, host, port)
            undo.callback(self._forget, slave)
            self._connections.append(slave)
            slave.thread.start()
            undo.pop_all()

    def serve(self, slave: _Connection) -> None:
        """Work on a connection until it ends."""
        link, session = slave.link, slave.session
        _log.info("replication.slave_connected", slave=link.name)
        why, quiet = "stopped", self.log.ring_at_progress(link.bell)
        try:
            if self._tls is not None:
                link.shake_hands(self._tls, self.limits.silence_ms, is_master=True)
            link.run(session, self.limits.silence_ms)
        except PeerError as error:
            why = str(error)
            _log.warning("replication.slave_refused", slave=link.name, error=why)
        except OSError as error:
            why = str(error)
        finally:
            quiet()
            self._forget(slave)
            _log.info(
                "replication.slave_left",
                slave=link.name,
                reason=why,
                acknowledged=session.acknowledged,
            )

    def _forget(self, slave: _Connection) -> None:
        slave.link.close()
        with contextlib.suppress(ValueError):  # it was not known yet, or is already removed
            self._connections.remove(slave)

    # --- what others call ------------------------------------------------------------------------

    @property
    def followers(self) -> list[Follower]:
        """The slaves that are connected now."""
        return [
            Follower(each.link.name, each.slave, each.session.position, each.session.acknowledged)
            for each in tuple(self._connections)
        ]

    def welcome(self) -> Welcome:
        """Return the greeting for a slave of ours."""
        ends = self._ends()
        furthest = max(ends.values(), default=-1)
        return Welcome(self.log.file_size, self.log.begin, self.log.end, furthest, len(ends))

    def _ends(self) -> dict[str, int]:
        """Return up to where each slave has the log; the furthest of its connections counts."""
        ends: dict[str, int] = {}
        for each in tuple(self._connections):
            if each.session.position >= 0:
                ends[each.slave] = max(each.session.acknowledged, ends.get(each.slave, -1))
        return ends

    def wait_replicated(self, offset: int, timeout_s: float) -> PutMessageStatus:
        """Wait until enough slaves have all before `offset`.

        Source: CommitLog.submitReplicaRequest, HAService.isSlaveOK.
        """
        wanted = self._config.in_sync_replicas
        near = offset - self._config.ha_slave_fallbehind_max
        if sum(end > near for end in self._ends().values()) < wanted:
            return PutMessageStatus.SLAVE_NOT_AVAILABLE

        def is_replicated() -> bool:
            return sum(end >= offset for end in self._ends().values()) >= wanted

        for connection in tuple(self._connections):
            connection.link.bell.ring()
        stopping = self._accepting.stopping
        self.acknowledged.wait_for(lambda: stopping.is_set() or is_replicated(), timeout_s)
        return PutMessageStatus.PUT_OK if is_replicated() else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
