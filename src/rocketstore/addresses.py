"""Addresses of machines: what a name stands for, and sockets that listen.

Law: only here is a name looked up, and never by an event loop: the threads of uvloop's end the
whole process where the system grants none of them, and each end of it waits for them.
"""

import contextlib
import errno
import os
import socket
import threading
from concurrent.futures import Future, InvalidStateError
from ipaddress import ip_address
from typing import Final

from rocketstore.errors import RemotingError
from rocketstore.format.host import address_text
from rocketstore.locks import begin

_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What a machine without IPv6, or without IPv4, says of an address of that kind."""


def addresses_of(host: str, flags: int = 0) -> list[tuple[int, str]]:
    """Return family and number of each address of a host, those of IPv4 first, as in Java.

    An `OSError` where it is not known.
    """
    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=flags)
    numbers = {(int(family), str(address[0])) for family, *_, address in found}
    return sorted(numbers, key=lambda one: one[0])


def resolved(host: str) -> tuple[int, str]:
    """Return the first of `addresses_of` a host."""
    return addresses_of(host)[0]


def looked_up(host: str) -> Future[list[tuple[int, str]]]:
    """Look a host up without waiting: where no server of names answers, that takes half a minute.

    A name is looked up on a thread that the end of the process does not wait for.
    """
    found: Future[list[tuple[int, str]]] = Future()
    with contextlib.suppress(OSError):  # a name, or nothing at all
        found.set_result(addresses_of(host, socket.AI_NUMERICHOST))
        return found

    def look() -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            try:
                found.set_result(addresses_of(host))
            except (OSError, UnicodeError) as error:
                found.set_exception(error)

    try:
        begin(threading.Thread(target=look, name="rocketstore-lookup", daemon=True))
    except RuntimeError as error:  # no thread
        found.set_exception(OSError(errno.EAGAIN, str(error)))
    return found


def listener(family: int, number: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens at an address."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((number, port))
        made.listen(backlog)
        stack.pop_all()
    return made


def _everywhere() -> list[tuple[int, str]]:
    """Return what stands for every address, of the kind that this machine has first."""
    found = socket.getaddrinfo(None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(int(family), str(address[0])) for family, *_, address in found]


def listeners(host: str, port: int, port_key: str, backlog: int = 1) -> list[socket.socket]:
    """Return sockets that listen at each address of a host which this machine has, at one port.

    ``""`` is every address. A `RemotingError`, where that cannot be, names the port's key.
    """
    try:
        return _listeners(host, port, backlog)
    except (OSError, OverflowError, UnicodeError) as error:
        raise cannot_listen(host, port, port_key, error) from error


def _listeners(host: str, port: int, backlog: int) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        refusal = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        places = addresses_of(host) if host else _everywhere()
        for family, number in places:
            try:
                one = listener(family, number, made[0].getsockname()[1] if made else port, backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                refusal = error
            else:
                made.append(stack.enter_context(one))
        if not made:
            raise refusal
        stack.pop_all()
    return made


def cannot_listen(host: str, port: int, port_key: str, error: Exception) -> RemotingError:
    """Return the error of a server that `listeners` refused an address; it names the port's key."""
    number = getattr(error, "errno", None)
    if isinstance(error, (socket.gaierror, UnicodeError)) or number in _NOT_HERE:
        hint = "give an address of this machine, or a name that stands for one"
    elif number in (errno.EMFILE, errno.ENFILE):
        hint = "raise the limit of open files of this process (ulimit -n)"
    else:
        hint = f"set {port_key} to another port, or to 0 for any free one"
    reason = getattr(error, "strerror", None) or error
    return RemotingError(f"cannot listen at {address_text(host, port)}: {reason}", hint=hint)


def listening_host(address: str) -> str:
    """Return where a broker at ``brokerIP1`` listens: there, or everywhere (``""``).

    Everywhere where that is an address of another machine, as in a container, whose host forwards
    what comes: 4.9 always listens everywhere (NettyRemotingServer.start). The loopback never is
    another machine's, also where this one has none.
    """
    family, number = resolved(address)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((number, 0))
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        return address if ip_address(number.partition("%")[0]).is_loopback else ""
    return address
