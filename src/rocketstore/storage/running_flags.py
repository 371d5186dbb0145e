"""Why a store may not be read or written at the moment.

Law: a bit stands for one cause, and is cleared when its cause ends (K-C6): a full CommitLog disk
and a full queue disk are two causes (K-E4). A bit is set with a reason, and a refused put repeats
it.

How derived: RunningFlags of 4.9 (spec B2); 64 is a bit of 5.x, and COMMIT_ERROR one of ours.
"""

from __future__ import annotations

import enum

from rocketstore.arguments import checked
from rocketstore.errors import NotReadableError
from rocketstore.locks import Lock
from rocketstore.process import OfOneProcess


class RunningFlag(enum.IntFlag):
    """Causes, with the bits that 4.9 and 5.x give them, if they have one.

    NOT_WRITEABLE: a thread of the store died. NOT_READABLE and INDEX_ERROR are for programs to set:
    an index that cannot be written holds up dispatch, which is QUEUE_WRITE_ERROR here.
    """

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    QUEUE_WRITE_ERROR = 4
    INDEX_ERROR = 8
    DISK_FULL = 16
    QUEUE_DISK_FULL = 64
    COMMIT_ERROR = 1 << 16


STOPS_PUTS = ~int(RunningFlag.NOT_READABLE)
"""Any of these bits refuses puts."""


class RunningFlags(OfOneProcess):
    """The flags of one open store; safe to change from any thread.

    `bits` is a plain int because every put looks at it; change it by `set` and `clear`.
    """

    __slots__ = ("_lock", "_reasons", "bits")

    def __init__(self) -> None:
        self.bits = 0
        self._reasons: dict[RunningFlag, str] = {}
        self._lock = Lock()

    @checked
    def set(self, flag: RunningFlag, reason: str) -> bool:
        """Set `flag` for a reason that users will read; return whether it was clear before."""
        with self._lock:
            was_clear = not self.bits & flag
            self.bits |= int(flag)
            self._reasons[flag] = reason
        return was_clear

    @checked
    def clear(self, flag: RunningFlag) -> bool:
        """Clear `flag`; return whether it was set before."""
        with self._lock:
            was_set = bool(self.bits & flag)
            self.bits &= ~int(flag)
            self._reasons.pop(flag, None)
        return was_set

    def note_death(self, thread: str, error: BaseException) -> None:
        """Refuse puts from now on: a thread died, and called this as its ``on_death``."""
        self.set(
            RunningFlag.NOT_WRITEABLE,
            f"the thread {thread} ended by an unforeseen error: {type(error).__name__}: {error}",
        )

    @property
    def is_readable(self) -> bool:
        """Whether pages are returned."""
        return not self.bits & 1

    def check_readable(self) -> None:
        """Raise `NotReadableError` unless pages are returned (DefaultMessageStore.getMessage)."""
        if not self.is_readable:
            raise NotReadableError(
                "pages are refused at the moment: " + "; ".join(self.reasons),
                hint="running_flags.clear(RunningFlag.NOT_READABLE) allows it again",
            )

    @property
    def reasons(self) -> list[str]:
        """One sentence per flag that is set."""
        with self._lock:
            return [f"{flag.name}: {reason}" for flag, reason in self._reasons.items()]
