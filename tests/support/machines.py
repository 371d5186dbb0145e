"""Machines: namespaces of this one, on a switch, each with a disk that no other one sees.

Sockets, addresses and links are real, so a machine can be cut off, and its link be slow; a process
on it can be stopped. What is not the same is the kernel, and the clock.

A machine lasts as long as its first process, which ends when its input does: whatever becomes of a
test, even `kill -9`, neither processes nor namespaces nor links are left.
"""

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from support.patience import PATIENCE_S
from support.skipping import skip_but_in_ci

NEEDED = "Linux namespaces of network, mounts and processes, veth, a bridge, and tc with tbf"
SLOW = ("tbf", "rate", "4mbit", "burst", "32kbit", "latency", "400ms")

_NEW = ("unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork")
_FIRST = 'mount -t tmpfs none "$0" && echo up && exec cat'
_ON_ITS_DISK = 'cd "$0" && exec "$@"'


def require_machines() -> None:
    """Skip the calling test where namespaces cannot be made; root in CI (``CI`` is set) fails."""
    if os.geteuid() != 0:
        pytest.skip("only root can make machines of namespaces")
    problem = _problem()
    if problem is not None:
        skip_but_in_ci(f"no machines of namespaces: {NEEDED} are needed, as root: {problem}")


@functools.cache
def _problem() -> str | None:
    try:
        with (
            tempfile.TemporaryDirectory() as place,
            Machines(["probe"], place) as machines,
            machines.slow("probe"),
        ):
            subprocess.run(machines.command("probe", "true"), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{error} {getattr(error, 'stderr', None) or ''}".strip()
    return None


class Machines:
    """Named machines, 10.77.0.1 the first; `place` is where each has its own disk."""

    def __init__(self, names: list[str], place: Path | str) -> None:
        self.place = str(place)
        self.addresses = {name: f"10.77.0.{at}" for at, name in enumerate(names, 1)}
        self._first: dict[str, subprocess.Popen[str]] = {}
        self._numbers: dict[str, int] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._boot("switch")
            self._ip("switch", "link", "add", "name", "bridge", "type", "bridge")
            self._ip("switch", "link", "set", "dev", "bridge", "up")
            for name, address in self.addresses.items():
                self._boot(name)
                peer = ("peer", "name", "eth0", "netns", str(self._numbers[name]))
                self._ip("switch", "link", "add", "name", name, "type", "veth", *peer)
                self._ip("switch", "link", "set", "dev", name, "master", "bridge", "up")
                self._ip(name, "address", "add", f"{address}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    self._ip(name, "link", "set", "dev", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _boot(self, name: str) -> None:
        """Start the first process of a machine; all others end with it."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [*_NEW, "--kill-child", "--mount-proc", "sh", "-c", _FIRST, self.place]
        first = self._first[name] = subprocess.Popen(command, text=True, **pipes)
        if first.stdout.readline() != "up\n":
            raise OSError(first.stderr.read().strip())
        (inside,) = psutil.Process(first.pid).children()
        self._numbers[name] = inside.pid

    def __exit__(self, *_: object) -> None:
        for first in self._first.values():
            first.stdin.close()
        for process in self._started:
            process.kill()  # what it ran has ended with its machine
        for process in (*self._first.values(), *self._started):
            process.wait(PATIENCE_S)
        for first in self._first.values():
            first.stdout.close()
            first.stderr.close()

    def command(self, name: str, *command: str) -> list[str]:
        """Return the command that runs another one on a machine."""
        inside = ("--net", "--mount", "--pid", "sh", "-c", _ON_ITS_DISK, self.place)
        return ["nsenter", "--target", str(self._numbers[name]), *inside, *command]

    def start(self, name: str, command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start a process on a machine, with which it ends."""
        self._started.append(subprocess.Popen(self.command(name, *command), **settings))
        return self._started[-1]

    @contextlib.contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """Pull a machine's cable for so long."""
        self._ip("switch", "link", "set", "dev", name, "down")
        try:
            yield
        finally:
            self._ip("switch", "link", "set", "dev", name, "up")

    @contextlib.contextmanager
    def slow(self, name: str) -> Iterator[None]:
        """Let what a machine sends, and what is sent to it, go through a slow link for so long."""
        ends = ((name, "eth0"), ("switch", name))
        for space, device in ends:
            self._in(space, "tc", "qdisc", "replace", "dev", device, "root", *SLOW)
        try:
            yield
        finally:
            for space, device in ends:
                self._in(space, "tc", "qdisc", "delete", "dev", device, "root")

    def _ip(self, space: str, *arguments: str) -> None:
        self._in(space, "ip", *arguments)

    def _in(self, space: str, *command: str) -> None:
        enter = ("nsenter", "--target", str(self._numbers[space]), "--net")
        subprocess.run([*enter, *command], capture_output=True, text=True, check=True)


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a process with all that it started for so long; their connections stay open."""
    entered = psutil.Process(process.pid)  # stops and goes on as what it runs, and after it
    processes = entered.children(recursive=True)
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in (*processes, entered):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
