"""``rocketstore serve namesrv`` as a process, and questions to any name server."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.command import Command
from support.patience import PATIENCE_S


@contextmanager
def name_server(*options: str, ends_by: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Run the command until the block ends; the value is where it listens."""
    command = [sys.executable, "-m", "rocketstore", "serve", "namesrv", "--port", "0", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            assert process.stderr.readline() == "ready\n"
            said = process.stdout.readline()
            assert said.startswith("name server at ")
            yield said.split()[-1]
            began = time.monotonic()
            process.send_signal(ends_by)
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert [line for line in errors.splitlines() if "request.refused" not in line] == []
            assert time.monotonic() - began < 60  # of 120 s for which a client may be silent
        finally:
            process.kill()


def ask(address: str, command: Command, *, timeout_s: float = PATIENCE_S) -> Command:
    """Return the reply of a server."""

    async def main() -> Command:
        async with RemotingClient() as client:
            return await client.ask(address, command, timeout_ms=int(timeout_s * 1000))

    return asyncio.run(main())
