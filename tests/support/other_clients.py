"""Clients of RocketMQ in other languages than Java: installed once, each in a place of its own.

Each has a driver in ``tests/interop`` that answers lines of JSON: ``send`` with a topic and bodies,
``consume`` with a topic and the name of a consumer, ``received``, ``close`` with the name of a
consumer, ``exit``. Where one cannot be installed the calling test is skipped with that reason,
except in CI.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.line_process import InHome, LineProcess
from support.patience import PATIENCE_S, START_S
from support.skipping import skip_but_in_ci

INTEROP = Path(__file__).resolve().parents[1] / "interop"

QUICK_GO = {"GOFLAGS": "-gcflags=all=-l -vet=off"}
"""No function is inlined and nothing is vetted: a quarter less of the half minute of processor time
that Go takes to compile its own library. What shares the compiled library needs the same flags."""


class InstallationError(Exception):
    """There is no such tool here, or the client could not be fetched."""


class OtherClient(InHome):
    """A producer and consumers of one group in one process; a context manager."""

    ends_in_order = True

    def __init__(self, client: Callable[[], list[str]], name_server: str) -> None:
        super().__init__()
        quiet = {"HOME": self._home.name, "ROCKETMQ_GO_LOG_LEVEL": "error"}
        self._process = LineProcess(
            [*required(client), name_server], environment={**os.environ, **quiet}
        )

    def send(self, topic: str, *bodies: str) -> list[object]:
        """Send messages one by one; return their statuses."""
        statuses: list[object] = self._process.ask("send", topic=topic, bodies=bodies)["statuses"]
        return statuses

    def consume(self, topic: str, name: str) -> None:
        """Start a consumer of the client's group."""
        self._process.ask("consume", topic=topic, name=name)

    def received(self, count: int, timeout_s: float = PATIENCE_S) -> list[Any]:
        """Return so many messages that consumers got, fewer where they do not come in time.

        Each is body, number of tries before, tags, queue and the name of the consumer.
        """
        messages: list[Any] = self._process.ask("received", count=count, seconds=timeout_s)[
            "messages"
        ]
        return messages

    def close(self, name: str) -> None:
        """Stop a consumer."""
        self._process.ask("close", name=name)


def python_client() -> list[str]:
    """Return the command of the PyPI client, whose package has our name's."""
    target = INTEROP / "pyclient" / "target"
    python = target / "bin" / "python"

    def install() -> None:
        venv.create(target)  # this interpreter's pip serves it: one of its own takes seconds
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        run([*pip, "install", "-q", "--only-binary=:all:", "rocketmq==0.4.4"])

    installed(target, install)
    return [str(python), str(INTEROP / "pyclient" / "client.py")]


def node_client() -> list[str]:
    """Return the command of the npm client."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise InstallationError("no node or npm on the PATH")
    target = INTEROP / "nodeclient" / "target"
    prefix = ["--prefix", str(target), "--no-audit", "--no-fund", "--silent"]
    installed(target, lambda: run([npm, "install", *prefix, "ali-ons@3.12.0"]))
    script = INTEROP / "nodeclient" / "client.js"
    return ["env", f"NODE_PATH={target / 'node_modules'}", node, str(script)]


def go_client() -> list[str]:
    """Return the command of the Go client, built when its source is newer."""
    go = shutil.which("go")
    if go is None:
        raise InstallationError("no go on the PATH")
    project = INTEROP / "goclient"
    made = project / "target" / "goclient"
    sources = [project / name for name in ("go.mod", "go.sum", "main.go")]
    command = [go, "build", "-C", str(project), "-o", str(made)]
    installed(made.parent, lambda: run(command, QUICK_GO), sources)
    return [str(made)]


def installed(target: Path, install: Callable[[], None], sources: Sequence[Path] = ()) -> None:
    """Install a client unless it is there; test processes run side by side."""
    target.mkdir(exist_ok=True)
    done = target / "done"
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max((one.stat().st_mtime for one in sources), default=0.0)
        if not done.exists() or done.stat().st_mtime < newest:
            install()
            done.touch()


def run(command: list[str], environment: Mapping[str, str] = MappingProxyType({})) -> None:
    done = subprocess.run(
        command, check=False, timeout=START_S, capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        raise InstallationError(f"{' '.join(command)} failed: {done.stderr[-1000:]}")


def required(client: Callable[[], list[str]]) -> list[str]:
    """Return a client's command, or skip the calling test, unless this is CI."""
    try:
        return client()
    except InstallationError as missing:
        skip_but_in_ci(f"{missing} ({sys.platform})")
