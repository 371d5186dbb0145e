"""Put together what the tasks counted, on the driver.

Law: the same for every cut of the work, as long as the tasks counted exactly: sums, least and
greatest do not mind, and time widths grow by rules that do not.
"""

from __future__ import annotations

import json
from typing import Any, Final

from rocketstore.pipeline.jobs.report.buckets import MINUTE_MS, SECOND_MS
from rocketstore.pipeline.jobs.report.groups import (
    SHAPES,
    ExactGroups,
    FrequentGroups,
    Groups,
    TimeGroups,
    concatenated,
    from_bytes,
)
from rocketstore.pipeline.jobs.report.tally import (
    EXACT_VALUES,
    NAME_CAPACITY,
    SECOND_ROWS,
    TIME_ROWS,
)
from rocketstore.pipeline.jobs.report.task import damage_table

DRIVER_NAME_CAPACITY: Final = 8 * NAME_CAPACITY
"""Tags and keys that the driver keeps of all tasks together."""

DRIVER_DAMAGE_ROWS: Final = 100_000
"""Damaged ranges that are listed; more are only counted."""


class Counts:
    """The counts of all tasks that were taken in so far."""

    def __init__(self) -> None:
        self.groups: dict[str, Groups] = {name: Groups(name) for name in SHAPES}
        self.groups["tags"] = FrequentGroups("tags", DRIVER_NAME_CAPACITY)
        self.groups["keys"] = FrequentGroups("keys", DRIVER_NAME_CAPACITY)
        self.groups["seconds"] = TimeGroups("seconds", SECOND_MS, SECOND_ROWS)
        for name in ("traffic", "minutes"):
            self.groups[name] = TimeGroups(name, MINUTE_MS, TIME_ROWS)
        for name in ("exactSizes", "exactLatencies"):
            self.groups[name] = ExactGroups(name, EXACT_VALUES)
        self.notes: dict[str, int] = {}
        self._damage: list[Any] = []
        self._damage_rows = 0

    def take_in(self, rows: Any) -> None:
        """Add the rows that tasks sent (``task.SCHEMA``)."""
        parts = list(
            zip(rows["part"].to_pylist(), rows["content"].to_pylist(), strict=True),
        )
        notes = [json.loads(content) for part, content in parts if part == "notes"]
        self._take_notes(notes)
        for part, content in parts:
            if part == "damage":
                self.add_damage(from_bytes(content))
            elif part != "notes":
                self.groups[part].add(from_bytes(content))

    def _take_notes(self, notes: list[dict[str, int]]) -> None:
        for note in notes:
            for name, value in note.items():
                groups = self.groups.get(name.removesuffix("WidthMs"))
                if isinstance(groups, TimeGroups):
                    if value > groups.width_ms:
                        groups.widen(value)
                else:
                    self.notes[name] = self.notes.get(name, 0) + value

    def add_damage(self, rows: Any) -> None:
        """Add damaged ranges to the list."""
        kept = rows.slice(0, max(0, DRIVER_DAMAGE_ROWS - self._damage_rows))
        self.notes["unlistedDamage"] = (
            self.notes.get("unlistedDamage", 0) + rows.num_rows - kept.num_rows
        )
        self._damage.append(kept)
        self._damage_rows += kept.num_rows

    def damage(self) -> Any:
        """Return the damaged ranges, in no order."""
        return concatenated(self._damage) if self._damage else damage_table([])

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the groups of a table in no order."""
        table = self.groups[name].settle()
        return [] if table is None else table.to_pylist()

    def width_ms(self, name: str) -> int:
        """Return how long the buckets of a table by time are."""
        groups = self.groups[name]
        assert isinstance(groups, TimeGroups)
        groups.settle()
        return groups.width_ms

    def missed_at_most(self, name: str) -> int:
        """Return by how much counts of tags or keys may be too low."""
        groups = self.groups[name]
        assert isinstance(groups, FrequentGroups)
        groups.settle()
        return groups.missed_at_most + self.notes.get(f"{name}MissedAtMost", 0)
