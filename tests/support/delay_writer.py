"""Stores with delayed messages whose process is killed at a chosen step of delivery.

Run as a program it forks a store for each command (see `LineProcess`); `DelayWriter` is the other
end. The steps that count: before and after each delivering put, and around each system call of
saving ``delayOffset.json``. `transaction_writer` does the same with transactions.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collections.abc import Callable

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.storage.files.disk import Disk
from support.configured_store import small_config
from support.line_process import LineProcess
from support.patience import wait_until

TOPIC: Final = "kill"
MESSAGES: Final = 12


def delay_config() -> StoreConfig:
    """Return settings with which all is due at once, and saved all the time."""
    return small_config(
        message_delay_level="0s 0s 0s", flush_delay_offset_interval=1, flush_interval_commit_log=1
    )


class DelayWriter(LineProcess):
    """The process that forks."""

    program = __file__

    def __init__(self) -> None:
        super().__init__([sys.executable, "-W", "ignore", self.program])

    def run(self, root: Path, *, life: int, steps: int) -> dict[str, Any]:
        """Open a store, work with it, and be killed at a step; say how it ended."""
        return self.ask("run", root=str(root), life=life, steps=steps)


class Steps:
    """Counts down to the kill."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def count_puts(self, store: MessageStore) -> None:
        """Take a step before and after each put of a record as it is."""
        put_record = store.put_record

        def counted(*args: Any, **named: Any) -> Any:
            self.take()
            result = put_record(*args, **named)
            self.take()
            return result

        store.put_record = counted  # type: ignore[method-assign]


class KillingDisk(Disk):
    """Takes a step around each call that makes a file of offsets."""

    def __init__(self, steps: Steps, file_name: str) -> None:
        self._steps = steps
        self._file_name = file_name

    def write_at(self, descriptor: int, path: Path, position: int, data: bytes) -> None:
        self._step(path)
        super().write_at(descriptor, path, position, data)
        self._step(path)

    def replace(self, source: Path, target: Path) -> None:
        self._step(target)
        super().replace(source, target)
        self._step(target)

    def _step(self, path: Path) -> None:
        if path.name.startswith(self._file_name):
            self._steps.take()


def _live(root: Path, life: int, steps: Steps) -> None:
    """Put messages of all levels, each acknowledged in a file, and wait for their delivery."""
    with (
        MessageStore.open(
            root, delay_config(), disk=KillingDisk(steps, "delayOffset.json")
        ) as store,
        (root.parent / "acknowledged").open("a") as said,
    ):
        steps.count_puts(store)
        for number in range(MESSAGES):
            label = f"{life}-{number}"
            properties = {"DELAY": str(1 + number % 3)}
            message = Message(topic=TOPIC, body=label.encode(), properties=properties)
            store.put(message, number % 2).raise_for_status()
            said.write(label + "\n")
            said.flush()
        wait_until(lambda: is_all_delivered(store), "all are delivered")


def is_all_delivered(store: MessageStore) -> bool:
    """Whether nothing waits in any level."""
    delivery = store.delays.delivery if store.delays else None
    return delivery is not None and all(
        level.offset >= store.next_queue_offset("SCHEDULE_TOPIC_XXXX", level.queue_id)
        for level in delivery.levels
    )


def serve(live: Callable[[Path, int, Steps], None]) -> None:
    """Answer commands until the input ends, each by a life in a process of its own."""
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                live(Path(command["root"]), command["life"], Steps(command["steps"]))
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        was_killed = os.WIFSIGNALED(status)
        is_fine = was_killed or os.WEXITSTATUS(status) == 0
        answer = {"ok": is_fine, "killed": was_killed, "error": status}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(_live)
