"""An exception out of a signal handler, at every place of an operation where one can be raised.

CPython runs the handlers of pending signals in the main thread, between two instructions, but at
certain ones only. So the n-th line inside the package makes SIGINT pending, by an instruction after
which it does not look, and the interpreter itself chooses the next place: in that line, in what it
calls, or some lines later. An exception out of the trace function could be raised where no signal
can, as between a lock's `__enter__` and the block after it.
"""

import ctypes
import faulthandler
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key  # no public name

import rocketstore
from support.patience import PATIENCE_S

_PACKAGE = Path(rocketstore.__file__).parent


class Interrupt(BaseException):
    """What the handler raises, as KeyboardInterrupt is raised."""


def _tripping() -> defaultdict[int, None]:
    """Return a mapping whose look-ups make SIGINT pending; a call would be followed by a look."""
    trip = ctypes.PyDLL(None).PyErr_SetInterrupt
    trip.argtypes, trip.restype = (), None
    return defaultdict(trip)


class InterruptAt:
    """Runs operations with an interrupt at their n-th line; for the main thread."""

    def __init__(self, part: str = "storage") -> None:
        self._root = (str(_PACKAGE / part), str(_PACKAGE / "at_once.py"), threading.__file__)
        self._lines_left = -1
        self._more = self._apart = 0
        self._trips = _tripping()
        self.where, self.caller = "", ""

    def run(
        self, lines: int, operation: Callable[[], Any], *, times: int = 1, apart: int = 1
    ) -> bool:
        """Call `operation` with an interrupt at its n-th line; False when it has fewer lines.

        Of several `times` each comes so many lines after the one before it.
        """
        self._lines_left, self.where, self.caller = lines, "", ""
        self._more, self._apart = times - 1, apart
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            self._run(operation)
        except Interrupt:
            return True
        finally:
            sys.settrace(None)  # again: one of several may have come as the operation returned
            signal.signal(signal.SIGINT, before)
        return self._lines_left == 0

    def _run(self, operation: Callable[[], Any]) -> None:
        sys.settrace(self._trace_call)
        try:
            operation()
        finally:
            sys.settrace(None)

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if frame is not None and (
            frame.f_code.co_filename.endswith("_weakrefset.py") or frame.f_code.co_name == "__del__"
        ):
            # A finalizer, or the callback of a weak reference: Python prints what is raised there.
            self._lines_left = 1
            self._trace_again(frame)
            return
        if self._more:
            self._more -= 1
            self._lines_left = self._apart
            self._trace_again(frame)
        if frame is not None:
            code = frame.f_code
            self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
            self.caller = frame.f_back and frame.f_back.f_code.co_name
        raise Interrupt(self.where)

    def _trace_again(self, frame: FrameType | None) -> None:
        while frame is not None:
            frame.f_trace = self._trace_call(frame, "", None)
            frame = frame.f_back
        sys.settrace(self._trace_call)

    def _trace_call(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._trace_line if frame.f_code.co_filename.startswith(self._root) else None

    def _trace_line(self, _frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line" and self._lines_left > 0:
            self._lines_left -= 1
            if self._lines_left == 0:
                sys.settrace(None)  # or the interpreter would look in here next
                self._trips.clear()
                return self._trips[0]
        return self._trace_line


@pytest.fixture
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Say where the process hangs, if it does: a lock that stays held is waited for in C."""
    uncaptured = request.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=uncaptured)
    yield
    faulthandler.cancel_dump_traceback_later()
