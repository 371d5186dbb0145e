"""The clock of a test: it stands still until the test moves it, or ticks."""

START_MS = 1_700_000_000_000


class Clock:
    """A clock that a test moves, in milliseconds."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class TickingClock(Clock):
    """A clock on which a second passes before each look, or as long as is said."""

    def __init__(self, now_ms: int = START_MS, step_ms: int = 1_000) -> None:
        super().__init__(now_ms)
        self.step_ms = step_ms

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms
