"""Brokers in processes of their own, ours and the genuine one, started as users start them."""

from __future__ import annotations

import compileall
import contextlib
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import rocketstore
from support.genuine_broker import genuine_class_path
from support.java_program import OPEN
from support.java_store import DISK_MAY_BE_FULL, CommandFailedError, java_tool
from support.patience import PATIENCE_S, START_S

if TYPE_CHECKING:
    from collections.abc import Sequence

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""The least processor time that the system tells."""

_QUIET = "<configuration><root level='OFF'/></configuration>"
"""No log: the genuine broker's takes part of a core."""


class Server:
    """A process that says when it is ready; `ready_s` after its start it was."""

    def __init__(self, command: Sequence[str], said: str, home: Path, **environment: str) -> None:
        self._tail: list[str] = []
        self._is_ready = False
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=home,
            env={**os.environ, **environment},
        )  # fmt: skip
        ready = threading.Event()
        threading.Thread(target=self._read, args=(said, ready), daemon=True).start()
        if not ready.wait(START_S) or not self._is_ready:
            self.stop()
            raise CommandFailedError(f"{command[0]} did not start:\n{''.join(self._tail)}")
        self.ready_s = time.perf_counter() - began

    def _read(self, said: str, ready: threading.Event) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tail[:-20] = []
            self._tail.append(line)
            if said in line:
                self._is_ready = True
                ready.set()
        ready.set()  # it ended

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def stop(self) -> None:
        """End it in order."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    """Return the resident memory of a process; ``RssAnon`` without the pages of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def free_ports() -> tuple[int, int]:
    """Return free ports of a broker and its name server.

    The genuine broker takes those two below and one above its own too. All are below those that
    the system gives to clients, which come and go.
    """
    while True:
        first = random.randrange(12_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in (first - 2, first, first + 1, first + 2):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first, first + 2


class Broker:
    """A broker with its name server: `name_server` is for clients, `server` the broker's process.

    `more` are settings besides those that both sides have.
    """

    def __init__(self, directory: Path, **more: object) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="broker-", dir=directory))
        self._stack = contextlib.ExitStack()
        self._stack.callback(_remove, self.home)
        self.port, name_port = free_ports()
        self.name_server = f"127.0.0.1:{name_port}"
        store = self.home / "store"
        self._settings = {
            "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "listenPort": self.port,
            "storePathRootDir": store, "storePathCommitLog": store / "commitlog", **more,
        }  # fmt: skip
        try:
            self.server = self._started(name_port)
        except BaseException:
            self._stack.close()
            raise

    def _started(self, name_port: int) -> Server:
        _compile_modules()
        conf = self._conf("broker.conf", namesrvPort=name_port)
        command = str(Path(sys.executable).with_name("rocketstore"))
        return self._running([command, "serve", "broker", "-c", conf], "ready")

    def _running(self, command: Sequence[str], said: str, **environment: str) -> Server:
        server = Server(command, said, self.home, **environment)
        self._stack.callback(server.stop)
        return server

    def _conf(self, name: str, **more: object) -> str:
        path = self.home / name
        path.write_text("".join(f"{k}={v}\n" for k, v in {**self._settings, **more}.items()))
        return str(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


class GenuineBroker(Broker):
    """The same of Apache RocketMQ; its name server is a process that is there before."""

    def __init__(self, directory: Path, jvm_options: Sequence[str], **more: object) -> None:
        self._jvm_options = jvm_options
        super().__init__(directory, **more)

    def _started(self, name_port: int) -> Server:
        (self.home / "conf").mkdir()
        for name in ("logback_namesrv.xml", "logback_broker.xml"):
            (self.home / "conf" / name).write_text(_QUIET)
        conf = self.home / "name-server.conf"
        conf.write_text(f"listenPort={name_port}\n")
        self._java("namesrv.NamesrvStartup", str(conf))
        return self._java(
            "broker.BrokerStartup", self._conf("broker.conf", namesrvAddr=self.name_server)
        )

    def _java(self, main: str, conf: str) -> Server:
        command = [java_tool("java"), *self._jvm_options, *OPEN, DISK_MAY_BE_FULL]
        command += [f"-Duser.home={self.home}", "-cp", genuine_class_path()]
        command += [f"org.apache.rocketmq.{main}", "-c", conf]
        return self._running(command, "boot success", ROCKETMQ_HOME=str(self.home))


@functools.cache
def _compile_modules() -> None:
    """Compile our modules as pip does when it installs them; a tree of sources may have none so."""
    compileall.compile_dir(Path(rocketstore.__file__).parent, quiet=1)


def _remove(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
