"""A store that another thread closes while a call of this one stands at its n-th line."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import rocketstore

_PACKAGE = str(Path(rocketstore.__file__).parent)
_HELD_S = 0.005
"""A close that waits for a lock of the call goes on when the call does: both orders are tried."""

LIMIT_S = 30.0


class CloseAt:
    """Runs a call; `where` tells the line of the close, `left` how many were not reached."""

    def __init__(self, line: int, close: Callable[[], object]) -> None:
        self.where = ""
        self.left = line
        self._closer = threading.Thread(target=self._close, args=(close,), daemon=True)
        self._failure: BaseException | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns, or raises."""
        sys.settrace(self._trace_call)
        try:
            return call()
        except BaseException as error:  # noqa: BLE001 - judged by the test
            return error
        finally:
            sys.settrace(None)
            if self.where:
                self._closer.join(LIMIT_S)
                assert not self._closer.is_alive(), f"close hangs: {self.where}"
                assert self._failure is None, (self.where, self._failure)

    def _close(self, close: Callable[[], object]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - judged above
            self._failure = error

    def _trace_call(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._trace_line if frame.f_code.co_filename.startswith(_PACKAGE) else None

    def _trace_line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line" and self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                self._closer.start()
                self._closer.join(_HELD_S)
        return self._trace_line
