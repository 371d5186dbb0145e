"""A process that puts sample messages until it is killed.

Run as a program it says a line for each that is acknowledged; `kill_a_writer` is the other end.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rocketstore import MessageStore
from support.both_sides import queue_of, sample_messages, small_config


def kill_a_writer(
    root: Path, flush: str, *pool: str, lines: int, look: Callable[[], object] = lambda: None
) -> int:
    """Kill a writer after so many lines, and a `look`; return how many it acknowledged.

    It has a transient store pool where `pool` says "true".
    """
    writer = subprocess.Popen(
        [sys.executable, __file__, str(root), flush, *pool],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert writer.stdout is not None
    with writer, writer.stdout:
        said = [writer.stdout.readline() for _ in range(lines)]
        look()
        os.kill(writer.pid, signal.SIGKILL)
        said += writer.stdout.readlines()
    return sum(line.endswith(b"\n") for line in said)


def main() -> None:
    """Put until killed."""
    path, flush, *pool = sys.argv[1:]
    config = small_config(flushDiskType=flush, transientStorePoolEnable=bool(pool))
    with MessageStore.open(path, config) as store:
        for first in itertools.count(0, 3):
            for number, message in enumerate(sample_messages(3, first=first)):
                assert store.put(message, queue_id=queue_of(number)).status.name == "PUT_OK"
                os.write(1, b"%d\n" % (first + number))


if __name__ == "__main__":
    main()
