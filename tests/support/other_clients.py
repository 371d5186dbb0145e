"""Clients of RocketMQ that neither Java wrote nor we: installed once, each in a place of its own.

Where one cannot be installed the calling test is skipped with that reason, except in CI.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.patience import START_S

if TYPE_CHECKING:
    from collections.abc import Callable

INTEROP = Path(__file__).resolve().parents[1] / "interop"


class InstallationError(Exception):
    """There is no such tool here, or the client could not be fetched."""


def python_client() -> list[str]:
    """Return the command that runs a script with the PyPI client, whose package has our name's."""
    target = INTEROP / "pyclient" / "target"
    python = target / "bin" / "python"

    def install() -> None:
        venv.create(target, with_pip=True, clear=False)
        run([str(python), "-m", "pip", "install", "-q", "--only-binary=:all:", "rocketmq==0.4.4"])

    installed(target, install)
    return [str(python)]


def node_client() -> list[str]:
    """Return the command that runs a script with the npm client."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise InstallationError("no node or npm on the PATH")
    target = INTEROP / "nodeclient" / "target"
    prefix = ["--prefix", str(target), "--no-audit", "--no-fund", "--silent"]
    installed(target, lambda: run([npm, "install", *prefix, "ali-ons@3.12.0"]))
    return ["env", f"NODE_PATH={target / 'node_modules'}", node]


def installed(target: Path, install: Callable[[], None]) -> None:
    """Install a client unless it is there; test processes run side by side."""
    target.mkdir(exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "done").exists():
            install()
            (target / "done").touch()


def run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, timeout=START_S, capture_output=True, text=True)
    if done.returncode:
        raise InstallationError(f"{' '.join(command)} failed: {done.stderr[-1000:]}")


def required(client: Callable[[], list[str]]) -> list[str]:
    """Return a client's command, or skip the calling test, unless this is CI."""
    try:
        return client()
    except InstallationError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(f"{missing} ({sys.platform})")
