"""A connection and its session: one thread waits for bytes, for the clock, and for being rung.

Law: the only system call that blocks is the one that waits, so `Link.ring` reaches it at any time,
and TLS is used by one thread. A peer that takes no bytes is given up after the time that it may be
silent; what goes out meanwhile is one piece of `Session.outgoing`, never a queue that grows.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from rocketstore.errors import ConfigError
from rocketstore.replication.protocol import PeerError, SessionLimits, Trouble
from rocketstore.storage.threads import Bell
from rocketstore.units import KiB, MiB

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.replication.master_session import MasterSession
    from rocketstore.replication.slave_session import SlaveSession

    Session: TypeAlias = MasterSession | SlaveSession

_READ_BYTES: Final = 256 * KiB
"""Most bytes that are taken at once; as much goes out at once."""

_RECORD_BYTES: Final = 4 * MiB
"""4.9's default of maxMessageSize: a slave takes at least such bodies, whatever its own limit."""

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
_WANT: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LinkBell(Bell):
    """A bell whose ring ends a wait for sockets; rings meanwhile count as one."""

    def __init__(self) -> None:
        super().__init__()
        self._is_rung = False
        self.ear, self._clapper = socket.socketpair()
        self.ear.settimeout(0)
        self._clapper.settimeout(0)

    def ring(self) -> None:
        """Wake the thread, or let its next wait return at once."""
        if not self._is_rung:
            try:
                self._is_rung = True
                self._clapper.send(b"\0")
            except BaseException as error:  # no effect: so the next ring tries again
                self._is_rung = False
                if not isinstance(error, OSError):  # closed, or no memory for it
                    raise

    def hush(self) -> None:
        """Forget the rings so far; called before the thread looks."""
        with contextlib.suppress(OSError):
            self.ear.recv(16)
        self._is_rung = False

    def close(self) -> None:
        """Give the sockets back."""
        self.ear.close()
        self._clapper.close()


class Link:
    """One connection; `run` works on it until `stop`, an error, or the other side's end."""

    def __init__(self, connection: socket.socket, *, clock: Callable[[], int], name: str) -> None:
        self.name = name
        self._socket = connection
        self._clock = clock
        self._is_stopping = False
        connection.settimeout(0)
        with contextlib.ExitStack() as undo:  # any of them may exceed the limit of descriptors
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self.bell = LinkBell()
            undo.callback(self.bell.close)
            self._selector.register(self.bell.ear, _READ)
            self._selector.register(connection, _READ)
            undo.pop_all()

    def stop(self) -> None:
        """Let `run` return; from any thread."""
        self._is_stopping = True
        self.bell.ring()

    def close(self) -> None:
        """Let go of the sockets; after `run`."""
        self._selector.close()
        self._socket.close()
        self.bell.close()

    def connect(self, address: tuple[str, int], timeout_ms: int) -> None:
        """Connect a new socket; `OSError` where that fails or takes too long."""
        with contextlib.suppress(BlockingIOError):
            self._socket.connect(address)
        self._wait_until(_WRITE, self._clock() + timeout_ms)
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code), self.name)

    def shake_hands(self, tls: ssl.SSLContext, timeout_ms: int, *, is_master: bool) -> None:
        """Continue in TLS; `OSError` where the other side shows no certificate that is trusted."""
        self._selector.unregister(self._socket)
        secured = tls.wrap_socket(
            self._socket, server_side=is_master, do_handshake_on_connect=False
        )
        self._socket = secured
        self._selector.register(secured, _READ)
        deadline = self._clock() + timeout_ms
        while not self._is_stopping:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                self._wait_until(_READ, deadline)
            except ssl.SSLWantWriteError:
                self._wait_until(_WRITE, deadline)
            else:
                return

    def _wait_until(self, event: int, deadline_ms: int) -> None:
        """Wait for the socket, or for `stop`."""
        self._selector.modify(self._socket, event)
        while not self._is_stopping:
            left_ms = deadline_ms - self._clock()
            if left_ms <= 0:
                raise TimeoutError(f"{self.name} did not answer in time")
            found = self._selector.select(left_ms / 1000)
            self.bell.hush()
            if any(key.fileobj is self._socket for key, _ in found):
                return

    def run(self, session: Session, silence_ms: int) -> None:
        """Carry bytes between the session and the other side.

        `PeerError` says that the session ends the connection, `OSError` that the connection broke
        or the other side closed it.
        """
        left, moved_ms = memoryview(b""), 0
        while not self._is_stopping:
            # Before silence is judged: what came while this process was stopped is not read yet.
            now_ms = self._clock()
            has_come = self._receive(session, now_ms)
            if not left:
                left, moved_ms = memoryview(session.outgoing(now_ms)), now_ms
            if sent := self._send(left):
                left, moved_ms = left[sent:], now_ms
            elif left and now_ms - moved_ms >= silence_ms:
                raise PeerError(Trouble.SILENT, f"it takes no byte for {now_ms - moved_ms} ms")
            if has_come or (sent and not left):
                continue
            due_ms = session.next_due_ms() if not left else moved_ms + silence_ms
            self._selector.modify(self._socket, _READ | _WRITE if left else _READ)
            self._selector.select(max(due_ms - self._clock(), 0) / 1000)
            self.bell.hush()

    def _send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data) if data else 0
        except _WANT:
            return 0

    def _receive(self, session: Session, now_ms: int) -> bool:
        try:
            data = self._socket.recv(_READ_BYTES)
        except _WANT:
            return False
        if not data:
            raise ConnectionResetError("the other side closed the connection")
        session.receive(data, now_ms)
        return True


def limits_of(config: StoreConfig) -> SessionLimits:
    """Return what the settings say of a connection."""
    return SessionLimits(
        heartbeat_ms=config.ha_send_heartbeat_interval,
        silence_ms=config.ha_housekeeping_interval,
        transfer_bytes=config.ha_transfer_batch_size,
        longest_record_bytes=max(config.max_message_size, _RECORD_BYTES) + 128 * KiB,
    )


def tls_context(config: StoreConfig, *, is_master: bool) -> ssl.SSLContext | None:
    """Return what TLS needs, None without; both sides show a certificate and check the other's.

    The certificate counts, not the name in it: slaves have none, and a master is chosen by its
    address.
    """
    certificate, authorities = config.ha_tls_certificate, config.ha_tls_authorities
    if certificate is None and authorities is None:
        return None
    if certificate is None or authorities is None:
        raise ConfigError(
            "TLS needs both haTlsCertificate and haTlsAuthorities; one of them is unset",
            key="haTlsCertificate" if certificate is None else "haTlsAuthorities",
            hint="set both on master and slave, or neither",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_master else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate)
        context.load_verify_locations(authorities)
    except OSError as error:
        raise ConfigError(
            f"cannot read {certificate} or {authorities}: {error}", key="haTlsCertificate"
        ) from error
    return context
