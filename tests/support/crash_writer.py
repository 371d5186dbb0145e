"""Writers that are killed: a warmed process forks one per run, and ends it with SIGKILL.

Starting Python and loading kernels takes longer than a run, so one process does it once and forks;
it starts no thread itself. A writer opens the store with all its threads, puts from several of them
and reads beside, and says on a pipe what was acknowledged and what it saw. The process that forked
it kills it after so many lines, or while it still recovers.

Run as a program it answers JSON lines (see `LineProcess`); `CrashWriter` is the other end.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from rocketstore import MessageStore
from rocketstore.config import StoreConfig
from rocketstore.storage.results import PutMessageStatus
from support.fault_workload import LABEL, LIGHT, QUEUE_COUNT, TOPICS, small_files, step_of
from support.line_process import LineProcess

MOST_LINES: Final = 150
"""Acknowledgements after which the latest writer is killed."""

MOST_RECOVERY_S: Final = 0.04
"""A writer that is killed while it opens the store gets at most so long."""

CLOCK_SPEED: Final = 1000
"""A writer's clock runs that much faster, so that a checkpoint of "3 s ago" exists."""

CYCLE_MS: Final = 10_000_000


def writer_config(flush: str) -> StoreConfig:
    """Return settings with which flushes, checkpoints and rolls happen all the time."""
    return small_files(
        flush,
        flush_interval_commit_log=5,
        flush_interval_consume_queue=7,
        flush_consume_queue_thorough_interval=20 * CLOCK_SPEED,
        flush_commit_log_thorough_interval=20 * CLOCK_SPEED,
        os_page_cache_busy_time_out_mills=2**31 - 1,
        max_msgs_num_batch=1000,
    )


class CrashWriter(LineProcess):
    """The process that forks writers."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "-W", "ignore", __file__])

    def run(self, root: Path, flush: str, *, seed: int, cycle: int) -> dict[str, Any]:
        """Let a writer work until it is killed; return what it said."""
        return self.ask("run", root=str(root), flush=flush, seed=seed, cycle=cycle)


# --- the process that forks ---------------------------------------------------------------------


def serve() -> None:
    """Answer commands until the input ends."""
    for line in sys.stdin:
        command = json.loads(line)
        del command["cmd"]
        print(json.dumps(run_and_kill(**command)), flush=True)  # noqa: T201 - the answer


def run_and_kill(root: str, flush: str, seed: int, cycle: int) -> dict[str, Any]:
    """Fork a writer, kill it, and return its lines."""
    chance = random.Random(f"kill {seed} {cycle}")
    is_early = chance.random() < 0.3
    wanted = 0 if is_early else chance.randint(1, MOST_LINES)
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        with contextlib.suppress(BaseException):
            _write_until_killed(Path(root), flush, seed, cycle, sink)
        os._exit(1)
    os.close(sink)
    said = _Lines(source)
    said.read_until(wanted)
    time.sleep(chance.random() * (MOST_RECOVERY_S if is_early else 0.003))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    said.read_until(None)
    os.close(source)
    lines = [json.loads(line) for line in said.lines()]
    errors = [line["error"] for line in lines if "error" in line]
    if errors or not os.WIFSIGNALED(status):
        return {"ok": False, "error": errors or f"the writer ended by itself, status {status}"}
    return {"ok": True, "lines": lines, "wanted": wanted}


class _Lines:
    """What comes through a pipe, in whole lines."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""

    def read_until(self, count: int | None) -> None:
        """Read until there are so many lines, or until the end."""
        while count is None or self._data.count(b"\n") < count:
            piece = os.read(self._descriptor, 1 << 16)
            if not piece:
                return
            self._data += piece

    def lines(self) -> list[bytes]:
        # The last one may have been cut off by the kill.
        return self._data.split(b"\n")[:-1]


# --- the writer ---------------------------------------------------------------------------------


def _write_until_killed(root: Path, flush: str, seed: int, cycle: int, sink: int) -> None:
    began = time.monotonic()
    start_ms = 1_700_000_000_000 + cycle * CYCLE_MS

    def clock() -> int:
        return start_ms + int((time.monotonic() - began) * 1000 * CLOCK_SPEED)

    def say(**line: Any) -> None:
        # Shorter than PIPE_BUF: written as a whole or not at all.
        os.write(sink, json.dumps(line).encode() + b"\n")

    def guarded(work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
            say(error=traceback.format_exc()[-3000:])

    def work() -> None:
        store = MessageStore.open(root, writer_config(flush), clock=clock)
        writers = random.Random(f"threads {seed} {cycle}").randint(1, 3)
        run = seed * 1000 + cycle
        threads = [
            threading.Thread(target=guarded, args=(_put_for_ever, store, run, number, say))
            for number in range(writers)
        ]
        threads.append(threading.Thread(target=guarded, args=(_read_for_ever, store, say)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    guarded(work)


def _put_for_ever(store: MessageStore, run: int, thread: int, say: Any) -> None:
    number = 0
    while True:
        number += 1
        step = step_of(run, thread, number)
        result = step.do(store)
        assert result.status is PutMessageStatus.PUT_OK, result
        offsets = result.record_offsets
        say(put=[run, thread, number], at=offsets, queue_offset=result.queue_offset)


def _read_for_ever(store: MessageStore, say: Any) -> None:
    chance = random.Random()
    while True:
        topic = chance.choice((*TOPICS, LIGHT.topic))
        queue_id = 0 if topic == LIGHT.topic else chance.randrange(QUEUE_COUNT)
        offset = max(store.max_offset(topic, queue_id) - 3, 0)
        for message in store.get(topic, queue_id, offset).messages:
            say(seen=message.properties[LABEL], at=message.physical_offset)
        time.sleep(0.002)


if __name__ == "__main__":
    serve()
