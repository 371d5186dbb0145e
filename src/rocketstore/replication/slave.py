"""The slave of a store: follows one master, and connects again whenever it lost it.

Law: it never gives up by itself. After every end it waits, longer each time, and begins again from
where its own log ends. If only an empty log could continue, it says so in `trouble`, and every ten
minutes in the log, and changes nothing: the owner of the store decides (`rocketstore serve slave`).
How derived: HAClient.run of 4.9.8 (spec B21.3), whose pause is 5 s always.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rocketstore.addresses import looked_up
from rocketstore.config.grammars import parse_address
from rocketstore.errors import RocketStoreError
from rocketstore.events import get_logger
from rocketstore.replication.link import Link, limits_of, tls_context
from rocketstore.replication.protocol import (
    FRAME,
    HELLO,
    NUMBER,
    WELCOME_BYTES,
    PeerError,
    Trouble,
    Welcome,
)
from rocketstore.replication.slave_session import SlaveSession
from rocketstore.storage.attached import Service
from rocketstore.storage.threads import Seldom, ServiceThread
from rocketstore.units import monotonic_ms

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

    from rocketstore.config import StoreConfig
    from rocketstore.storage.store import BaseStore

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""4.9 waits so long after each failure."""

CONNECT_TIMEOUT_MS: Final = 5000

_log: Final = get_logger(__name__)


def master_address(config: StoreConfig) -> tuple[str, int]:
    """Return host and port of ``haMasterAddress``; `ConfigError` where it is not one."""
    text = config.ha_master_address or ""
    hint = "it is the address at which the master listens for slaves, its haListenPort"
    return parse_address("haMasterAddress", text, hint)


class SlaveService(Service):
    """Follows the master that the settings of `store` name.

    `trouble` is why the last connection ended, None while one works; `trouble_listeners` are called
    with it, on the slave's thread.
    """

    name = "replication"

    def __init__(self, store: BaseStore) -> None:
        self._config = config = store.config
        self._address = master_address(config)
        self._name = config.ha_master_address or ""
        self._tls = tls_context(config, is_master=False)
        self._limits = limits_of(config)
        self.log = store.replicated_log
        self._identity = int.from_bytes(os.urandom(8), "big") >> 1
        self._link: Link | None = None
        self._looking: Future[list[tuple[int, str]]] | None = None
        self._tries = -1
        self._session: SlaveSession | None = None
        self.trouble: Exception | None = None
        self._troubles = Seldom()
        self.trouble_listeners: list[Callable[[Exception], object]] = []
        self._thread = ServiceThread("rocketstore-follow", self._follow, wake=self._wake)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following; what is in the log stays."""
        self._thread.stop()

    def forget(self, _error: RocketStoreError) -> None:
        """Close a forked child's copy of the connection: it would keep it open for the master."""
        if self._link is not None:
            self._link.close()

    def _wake(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._link is not None:
            self._link.stop()

    @property
    def is_following(self) -> bool:
        """Whether a master with a matching log is connected."""
        return self._session is not None and self._session.is_following

    @property
    def behind_bytes(self) -> int:
        """How many bytes the master has and this log lacks; -1 unknown."""
        session = self._session
        if session is None or session.master_end < 0:
            return -1
        return max(session.master_end - self.log.end, 0)

    def _follow(self) -> None:
        pause_s, stopping = FIRST_PAUSE_S, self._thread.stopping
        while not stopping.is_set():
            before = self.log.end
            try:
                self._follow_once()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next try may work
                if not stopping.is_set():
                    self._note(error)
            if self.log.end > before:
                pause_s = FIRST_PAUSE_S
                self._troubles.is_due(None)
            stopping.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _follow_once(self) -> None:
        """Connect, and follow until the connection ends."""
        self.log.wait_flushed()  # left by an earlier connection
        self._looking = looked_up(self._address[0])
        if self._thread.stopping.is_set():  # it was set before there was anything to cancel
            return
        found = self._looking.result()
        self._tries += 1
        family, number = found[self._tries % len(found)]
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            link = self._link = Link(connection, clock=monotonic_ms, name=self._name)
            try:
                if self._thread.stopping.is_set():  # it was set before there was a link to stop
                    return
                link.connect((number, self._address[1]), CONNECT_TIMEOUT_MS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    link.shake_hands(self._tls, self._limits.silence_ms, is_master=False)
                session = self._session = SlaveSession(
                    self.log,
                    self._limits,
                    identity=self._identity,
                    from_last_file=self._config.sync_from_last_file,
                    now_ms=monotonic_ms(),
                )
                self.trouble = None
                _log.info("replication.connected", master=self._name, end=self.log.end)
                link.run(session, self._limits.silence_ms)
            finally:
                self._link = self._session = None
                link.close()

    def _note(self, error: Exception) -> None:
        trouble = error.trouble if isinstance(error, PeerError) else None
        say = _log.warning if isinstance(error, (RocketStoreError, OSError)) else _log.exception
        if trouble not in (None, Trouble.SILENT):
            say = _log.error
        if self._troubles.is_due(trouble or error):  # its text has times and ends that go on
            say(
                "replication.lost_master", master=self._name, error=str(error), end=self.log.end,
                next="tried again",
            )  # fmt: skip
        self.trouble = error
        for listen in self.trouble_listeners:
            listen(error)


def ask_master(config: StoreConfig) -> Welcome:
    """Return what the configured master says about its log, without following it.

    `OSError`: the master cannot be reached in time; `PeerError`: it is not one of ours.
    """
    try:
        return _asked(master_address(config), tls_context(config, is_master=False))
    except OSError as error:
        reason = error.strerror or str(error) or "no answer in time"
        raise OSError(error.errno, reason, config.ha_master_address) from error


def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of a host that takes one."""
    limit_s = CONNECT_TIMEOUT_MS / 1000
    refusal = OSError("no address")
    for _family, number in looked_up(host).result(limit_s):  # which a signal interrupts
        try:
            return socket.create_connection((number, port), limit_s)
        except OSError as error:
            refusal = error
    raise refusal


def _asked(address: tuple[str, int], tls: ssl.SSLContext | None) -> Welcome:
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(_connected(*address))
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection))
        # Twice, so that a master of 4.9 goes on to wait for a request.
        connection.sendall(NUMBER.pack(HELLO) * 2)
        reader = stack.enter_context(connection.makefile("rb"))
        head = reader.read(FRAME.size)
        if head != FRAME.pack(HELLO, WELCOME_BYTES):
            raise PeerError(Trouble.PROTOCOL, f"{address} answers {head.hex(' ') or 'nothing'}")
        return Welcome.decode(reader.read(WELCOME_BYTES))
