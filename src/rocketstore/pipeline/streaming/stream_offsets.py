"""How far a stream has come, as Spark keeps it in its checkpoint.

A place is the number of what comes next (a physical offset, or a queue offset) and the evidence of
the record before it: where that record starts and the CRC-32 of all its bytes. Evidence of the
record *at* the place would be impossible where a stream mostly stands, at the end of the log::

    {"version": 1, "log": {"broker-a": {"offset": 4711, "record": 4500, "crc": 1234}}}
    {"version": 1, "queues": {"broker-a": {"orders": {"0": {"offset": 23, "record": 4500, ...}}}}}

A batch usually begins where the one before ended. Where it does not, the place has `since`: of the
first batch, of a store or queue that appeared, and after a loss that was accepted. So a batch that
Spark plans again after a restart is the same, although Spark asks for the initial offset again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1
LOG: Final = "log"
QUEUES: Final = "queues"

Key = tuple[str, ...]
"""Of a log ``(broker,)``, of a queue ``(broker, topic, queue id)``."""


class Evidence(NamedTuple):
    """A record that was there when its offset was saved: its first byte, CRC-32 of all bytes."""

    record: int
    crc: int


class Place(NamedTuple):
    """What comes next, evidence of the record before, and where the batch began if elsewhere."""

    offset: int
    evidence: Evidence | None = None
    since: int | None = None

    def to_json(self) -> dict[str, int]:
        """Return the place as Spark keeps it."""
        saved = {"offset": self.offset}
        saved |= {} if self.evidence is None else self.evidence._asdict()
        return saved if self.since is None else {**saved, "since": self.since}


@dataclass(frozen=True)
class StreamOffset:
    """How far a stream has come; no batch ends at an initial one, where a new query begins."""

    kind: str
    places: dict[Key, Place] = field(default_factory=dict)
    is_initial: bool = False

    def settled(self) -> dict[Key, Place]:
        """Return the places as the batch after them sees them."""
        return {key: place._replace(since=None) for key, place in self.places.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it; equal offsets give equal text."""
        head = {"version": VERSION, **({"initial": True} if self.is_initial else {})}
        return {**head, self.kind: _nested({k: p.to_json() for k, p in self.places.items()})}


def latest_json(of: str, ends: Mapping[Key, Place], reached: StreamOffset) -> dict[str, Any]:
    """Return where logs or queues end as Spark shows it in a query's progress.

    ``lag`` is how much of each comes after the batch at hand: bytes of a log, messages of a queue.
    `of` says what is followed, which nothing else of a Python source can say there.
    """
    shown = {
        key: {"offset": ends[key].offset, "lag": max(0, ends[key].offset - place.offset)}
        for key, place in reached.places.items()
        if key in ends
    }
    return {"version": VERSION, "of": of, reached.kind: _nested(shown)}


def from_json(saved: dict[str, Any], kind: str) -> StreamOffset:
    """Return an offset that a checkpoint holds, unless that is another version's or query's."""
    hint = "give this query a checkpointLocation of its own"
    other = LOG if kind == QUEUES else QUEUES
    if saved.get("version") != VERSION or (kind not in saved and other not in saved):
        what = f"the checkpoint's offset is not one of this version: {saved!r:.200}"
        raise ConfigError(what, hint=hint)
    if other in saved:
        had, has = ("had no", "has one") if other == LOG else ("had a", "has none")
        what = f"the checkpoint is of a query that {had} subscribe, subscribePattern or assign"
        raise ConfigError(f"{what}, and this query {has}", hint=hint)
    places: dict[Key, Place] = {}
    try:
        _collect(saved[kind], (), 1 if kind == LOG else 3, places)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"the checkpoint's offset is malformed: {saved!r:.200}"
        raise ConfigError(what, hint=hint) from error
    return StreamOffset(kind, places, bool(saved.get("initial", False)))


def _collect(nested: Any, key: Key, depth: int, places: dict[Key, Place]) -> None:
    if depth:
        for name, inner in nested.items():
            _collect(inner, (*key, name), depth - 1, places)
        return
    evidence = Evidence(nested["record"], nested["crc"]) if "record" in nested else None
    places[key] = Place(nested["offset"], evidence, nested.get("since"))


def _nested(flat: Mapping[Key, dict[str, int]]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    # Queues by number, whatever the order they were found in.
    for key in sorted(flat, key=lambda key: (*key[:-1], int(key[-1])) if key[1:] else key):
        inner = nested
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        inner[key[-1]] = flat[key]
    return nested
