"""Every call of the system that a store makes, below any object of its own: counted, and failed.

`FailingCalls` puts wrappers around the functions of `os`, `mmap` and `io` through which a store
reaches its files, so that also those calls are seen that do not pass through `Disk`. Only calls on
files below one directory are counted, and with them, if wanted, those on Python's sockets and
selectors and the starts of a store's threads; what a fault does to them is `Fault`.
"""

import contextlib
import errno
import io
import mmap
import os
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from rocketstore.storage.files import disk as disk_module

NO_MEMORY = -1
"""Instead of an errno: Python itself finds no memory for what the call needs."""
BESIDE = -2
"""Instead of an errno: something else happens first (`FailingCalls.beside`), and the call works."""

BY_PATH = ("open", "listdir", "scandir", "mkdir", "replace", "unlink", "rmdir", "stat")
BY_DESCRIPTOR = (
    "posix_fallocate", "ftruncate", "pread", "preadv", "pwrite", "fdatasync", "fsync", "fstat",
    "lseek",
)  # fmt: skip
_SYNCS = ("fdatasync", "fsync")
CALLS = (*BY_PATH, *BY_DESCRIPTOR, "link", "mmap", "io.open", "zero_range")
OF_SOCKETS = {
    socket: ("socketpair", "getaddrinfo"),
    socket.socket: (
        "__init__", "bind", "listen", "accept", "connect", "getsockname", "getsockopt",
        "setsockopt", "send", "recv",
    ),
    selectors.EpollSelector: ("__init__", "register", "modify", "select"),
    threading.Thread: ("start",),
}  # fmt: skip
SOCKET_CALLS = tuple(
    f"{one.__name__}.{name}" for one, names in OF_SOCKETS.items() for name in names
)


class Fault(NamedTuple):
    """Which call fails, and how.

    Attributes
    ----------
    call
        Of `CALLS`, or of `SOCKET_CALLS`.
    number
        The first that fails, from 0.
    code
        An errno, `NO_MEMORY`, or `BESIDE`.
    lasting
        Whether all later ones fail too.
    """

    call: str
    number: int
    code: int
    lasting: bool

    def __str__(self) -> str:
        code = {NO_MEMORY: "MemoryError", BESIDE: "beside"}.get(self.code)
        code = code or errno.errorcode[self.code]
        return f"{self.call}-{self.number}{'-and-on' if self.lasting else ''}-{code}"

    def hits(self, call: str, number: int) -> bool:
        if call != self.call:
            return False
        return number >= self.number if self.lasting else number == self.number

    def error(self, path: str) -> BaseException:
        if self.call == "Thread.start":
            return RuntimeError("can't start new thread")
        if self.code == NO_MEMORY:
            return MemoryError()
        return OSError(self.code, os.strerror(self.code), path)


class FailingCalls:
    """Counts the calls below `root` while it is entered, and fails those that `fault` names.

    Attributes
    ----------
    counts
        Calls so far, by name; with a fault only those of its kind, and syncs.
    counts_opened, made
        Those when the store was open, and when it was closed, as a test notes them.
    fault
        None fails nothing.
    hits
        Calls that failed.
    beside
        What is called before a call at which the fault is `BESIDE`.
    """

    def __init__(self, root: Path, fault: Fault | None = None, *, sockets: bool = False) -> None:
        self.root = str(root)
        self.fault = fault
        self.sockets = sockets
        self.beside: Callable[[], object] = lambda: None
        self.counts: Counter[str] = Counter()
        self.counts_opened, self.made = self.counts, self.counts
        self.hits = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for name in BY_PATH:
            self._wrap(os, name, name, lambda path, *_: _text(path))
        for name in BY_DESCRIPTOR:
            self._wrap(os, name, name, lambda descriptor, *_: _name_of(descriptor))
        self._wrap(os, "link", "link", lambda source, *_: _linked(source))
        self._wrap(mmap, "mmap", "mmap", lambda descriptor, *_: _name_of(descriptor))
        self._wrap(io, "open", "io.open", lambda path, *_: _text(path))
        real_zero_range = disk_module._fallocate_zero_range

        def zero_range(descriptor: int, *rest: int) -> bool:
            # C's fallocate answers by a number: where it cannot, zeros are written.
            try:
                self._note("zero_range", _name_of(descriptor))
            except OSError:
                return False
            return real_zero_range(descriptor, *rest)

        if self._is_wanted("zero_range"):
            self._set(disk_module, "_fallocate_zero_range", zero_range)
        for owner, names in OF_SOCKETS.items() if self.sockets else ():
            for name in names:
                self._wrap(owner, name, f"{owner.__name__}.{name}", self._of_a_store)
        return self

    def _of_a_store(self, owner: object, *rest: object) -> str:
        is_other = isinstance(owner, threading.Thread) and not owner.name.startswith("rocketstore")
        return (
            "" if is_other or rest[3:] else self.root
        )  # a socket of a descriptor asks for nothing

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _is_wanted(self, call: str) -> bool:
        return self.fault is None or call in {self.fault.call, *_SYNCS}

    def _wrap(self, module: Any, name: str, call: str, path_of: Callable[..., str]) -> None:
        if not self._is_wanted(call):
            return
        real = getattr(module, name)

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            is_below = self._note(
                call, path_of(*arguments, *keywords.values()) if arguments else ""
            )
            # Nobody pulls the plug here: a sync that works need not be done.
            return None if is_below and call in _SYNCS else real(*arguments, **keywords)

        self._set(module, name, wrapper)

    def _set(self, module: Any, name: str, value: object) -> None:
        if name in vars(module):
            self._undo.callback(setattr, module, name, vars(module)[name])
        else:
            self._undo.callback(delattr, module, name)
        setattr(module, name, value)

    def _note(self, call: str, path: str) -> bool:
        if not path.startswith(self.root) or os.getpid() != self._pid:
            return False
        with self._lock:
            number = self.counts[call]
            self.counts[call] += 1
            fault = self.fault
            if fault is None or not fault.hits(call, number):
                return True
            self.hits += 1
        if fault.code == BESIDE:
            self.beside()
            return True
        raise fault.error(path)


_real_readlink = os.readlink


def _text(path: object) -> str:
    if isinstance(path, int):
        return _name_of(path)
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""


def _name_of(descriptor: int) -> str:
    try:
        return _real_readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _linked(source: object) -> str:
    with contextlib.suppress(OSError):
        return _real_readlink(str(source))
    return str(source)


def bad_sector(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk fail to read the second 4 KiB of a file, as Linux does: what is before comes."""
    pread, preadv = os.pread, os.preadv

    def readable(descriptor: int, position: int, size: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path and position < 8192:
            if position >= 4096 and size:
                raise OSError(errno.EIO, "bad sector")
            return min(size, 4096 - position)
        return size

    def read(descriptor: int, size: int, position: int) -> bytes:
        return pread(descriptor, readable(descriptor, position, size), position)

    def read_into(descriptor: int, views: list[memoryview], position: int) -> int:
        size = readable(descriptor, position, len(views[0]))
        return preadv(descriptor, [views[0][:size]], position)

    monkeypatch.setattr(os, "pread", read)
    monkeypatch.setattr(os, "preadv", read_into)
