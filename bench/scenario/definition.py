"""What a scenario is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    """How a figure of ours is set against Java's."""

    RATE = "ours/Java, at least"
    LATENCY = "ours/Java, at most"
    SPEED_UP = "Java/ours, at least"
    LEAST = "ours, at least"
    MOST = "ours, at most"

    @property
    def compares(self) -> bool:
        """Whether the figure is set against Java's, not against a fixed number."""
        return self in (Verdict.RATE, Verdict.LATENCY, Verdict.SPEED_UP)

    def of(self, ours: float, java: float | None) -> float:
        """Return the number that `holds` judges."""
        if not self.compares or java is None:
            return ours
        return java / ours if self is Verdict.SPEED_UP else ours / java

    def holds(self, value: float, target: float) -> bool:
        """Whether `value` reaches `target`."""
        return value <= target if self in (Verdict.LATENCY, Verdict.MOST) else value >= target


@dataclass(frozen=True)
class Measure:
    """One figure of a scenario.

    Attributes
    ----------
    answer
        Name of the figure in a worker's answer.
    unit
        As printed; ``msg/s`` figures are the scenario's message count over the answer's seconds.
    target
        What to reach, None where the figure is for information.
    """

    name: str
    answer: str
    unit: str
    verdict: Verdict
    target: float | None = None

    def figure(self, answer: dict[str, Any], message_count: int) -> float:
        """Return the figure that a worker's answer holds."""
        value = float(answer[self.answer])
        return message_count / value if self.unit == "msg/s" else value


@dataclass(frozen=True)
class Scenario:
    """A named piece of work.

    Attributes
    ----------
    command
        What the workers are asked: ``put``, ``get``, ``query``, ``restart``, ``scan``, ``open``,
        ``delay``, ``put_latency``, ``kill_loss``, or ``catch_up`` of two workers of a side.
    spec
        Arguments of the command, the same for both sides.
    smoke
        What `spec` becomes in a short run, whose figures mean nothing.
    warm_up_part
        Part of a put's messages that is put before the clocks.
    counted
        Key of `spec` that a ``msg/s`` figure counts; pages hold 32 messages.
    """

    name: str
    claim: str
    command: str
    spec: dict[str, Any]
    measures: tuple[Measure, ...]
    smoke: dict[str, Any] = field(default_factory=dict)
    against_java: bool = True
    warm_up_part: float = 0.5

    def specification(self, *, smoke: bool) -> dict[str, Any]:
        """Return the arguments for a full or a short run."""
        return {**self.spec, **self.smoke} if smoke else dict(self.spec)

    def warm_up(self) -> dict[str, Any]:
        """Return a smaller run that comes before the clocks: Java's compiler needs the calls."""
        spec = dict(self.spec)
        if self.command == "put":
            spec["messages"] = max(spec["batch"], int(self.spec["messages"] * self.warm_up_part))
            spec["openBeforeSeconds"] = 0
        return spec

    def counted_messages(self, spec: dict[str, Any]) -> int:
        """Return how many messages the clock saw."""
        return int(spec["pages"]) * 32 if "pages" in spec else int(spec.get("messages", 0))
