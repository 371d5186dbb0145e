"""What a rebuild reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions, Built, Plan
    from rocketstore.pipeline.jobs.rebuild.parts import Broken


class RebuildReport(NamedTuple):
    """What a rebuild found and made.

    Attributes
    ----------
    refused_count
        Records without an entry because another one has the place, or because topic, queue id or
        queue offset cannot be true.
    damage
        Damaged ranges inside the log; records are missing there.
    kept_places
        Places of each queue whose records are gone, by topic and queue id: numbers that were given
        out, and are not given again.
    gone_queues
        Queues that had entries before and have no record left in the log.
    kept
        Where the old queues and index are, relative to the store; None when there were none.
    """

    store: str
    plan: Plan
    record_count: int
    entry_count: int
    refused_count: int
    queue_count: int
    index_item_count: int
    log_end: int
    damage: list[Broken]
    kept_places: dict[str, int]
    gone_queues: list[str]
    kept: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "store": self.store,
            "plan": self.plan,
            "recordCount": self.record_count,
            "entryCount": self.entry_count,
            "refusedCount": self.refused_count,
            "queueCount": self.queue_count,
            "indexItemCount": self.index_item_count,
            "logEnd": self.log_end,
            "damage": [msgspec.structs.asdict(one) for one in self.damage],
            "keptPlaces": self.kept_places,
            "goneQueues": self.gone_queues,
            "kept": self.kept,
            "seconds": round(self.seconds, 3),
        }


def report_of(  # noqa: PLR0913, PLR0917 - the parts of a report
    store: str,
    options: BuildOptions,
    built: Built,
    queues: tuple[set[str], set[str]],
    kept_places: dict[str, int],
    kept: str | None,
    began: float,
) -> RebuildReport:
    """Return the report of what was built.

    Parameters
    ----------
    queues
        Old and new ones, as topic and queue id.
    began
        By ``time.perf_counter``.
    """
    old, new = queues
    return RebuildReport(
        store,
        options.plan,
        sum(one.record_count for one in built.manifests),
        built.entry_count,
        built.refused_count,
        len(new),
        built.index_item_count,
        built.log_end,
        built.damage,
        kept_places,
        sorted(old - new),
        kept,
        time.perf_counter() - began,
    )
