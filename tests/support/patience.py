"""How long tests wait for what should happen.

No test that succeeds needs so long, however loaded the machine is: where what is waited for cannot
come any more, because its process died, the wait ends at once.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = float(os.environ.get("ROCKETSTORE_PATIENCE", "240"))
"""For what other threads and processes do in a moment where nothing else runs.

Less where a test is expected to fail (`mutation/tool.py`).
"""

PATIENCE_MS: Final = int(PATIENCE_S * 1000)

START_S: Final = 600.0
"""For what starts JVMs, or builds something."""


def wait_until(is_true: Callable[[], object], what: str = "") -> None:
    """Wait until something is true that other threads or processes make true."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.002)


def within_time(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return what a call returns or raises; one that waits for ever is seen, as it has a thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - judged by the test
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"{call} hangs, given {arguments} {named}"
    return outcome[0]
