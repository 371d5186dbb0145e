"""A child process that answers JSON lines with JSON lines.

Both sides of a comparison speak this: the genuine Java store (``java_store.py``) and the Python
worker of ``bench/``.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from typing import IO, Any, Self, cast

from support.patience import PATIENCE_S

STDERR_TAIL_BYTES = 4000


class CommandFailedError(Exception):
    """The process answered ``ok: false``, or died before it answered."""


class LineProcess:
    """Start a process and talk to it; a context manager that never leaves it behind."""

    def __init__(
        self,
        command: list[str],
        *,
        cwd: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in kill()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
            cwd=cwd,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, cmd: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and return its answer; raise when it says that it failed."""
        stdin, stdout = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"cmd": cmd, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise CommandFailedError(f"{cmd}: the process died: {self.stderr_tail()}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise CommandFailedError(f"{cmd}: {answer['error']}")
        return answer

    def tell_last(self, cmd: str) -> int:
        """Send a command that ends the process without an answer; return its exit code."""
        stdin = cast("IO[str]", self.process.stdin)
        stdin.write(json.dumps({"cmd": cmd}) + "\n")
        stdin.flush()
        return self._reap()

    def exit(self) -> int:
        """End the process in order: its store is closed first."""
        if self.process.poll() is None:
            self.ask("exit")
        return self._reap()

    def kill(self) -> None:
        """End the process as ``kill -9`` does."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def stderr_tail(self) -> str:
        """Return the end of what the process wrote to its standard error."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL_BYTES))
        return self._stderr.read().decode("utf-8", "replace")

    def _reap(self) -> int:
        code = self.process.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        if not self._stderr.closed:
            self._stderr.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


class InHome:
    """Something in a process of its own, with a directory for its logs; a context manager."""

    ends_in_order = False
    """Whether it is told to exit, where nothing failed, and not killed."""

    _process: LineProcess

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="rocketstore-home-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        if kind is None and self.ends_in_order:
            self._process.ask("exit")
        self._process.kill()
        self._home.cleanup()
