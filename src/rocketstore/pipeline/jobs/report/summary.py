"""The figures that come first: what a reader wants to know before any table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.pipeline.jobs.report.tables import distribution_of
from rocketstore.pipeline.jobs.report.tally import DIRECT, NAME_MAX_BYTES
from rocketstore.pipeline.jobs.report.topics import DEAD_LETTER, RETRY

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.report.counts import Counts
    from rocketstore.pipeline.jobs.report.distribution import Distribution
    from rocketstore.pipeline.jobs.report.plan import ReportPlan


def summary_of(counts: Counts, plan: ReportPlan, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the whole, as JSON can hold them: times in ms, sizes in bytes."""
    rows = {
        name: tables[name].to_pylist()
        for name in ("topics", "queues", "delays", "retries", "files")
    }
    queues = counts.rows("queues")
    sizes = distribution_of(counts.rows("sizes"), counts.rows("exactSizes"), "Bytes")
    sent = [row for row in counts.rows("latencies") if row["way"] == DIRECT]
    direct = distribution_of(sent, counts.rows("exactLatencies"), "Ms")
    return {
        "stores": [
            {
                "brokerName": place.broker_name,
                "location": place.location,
                "isOpen": place.is_open,
                "hasDelayOffsets": plan.delays[place.broker_name].has_offsets,
            }
            for place, _ in plan.stores
        ],
        "reportedMs": plan.now_ms,
        "messages": _sum(queues, "messages"),
        "bytes": _sum(queues, "bytes"),
        "bodyBytes": _sum(queues, "bodyBytes"),
        "topics": len(rows["topics"]),
        "queues": len(queues),
        "firstStoreMs": min(_known(queues, "firstStoreMs"), default=None),
        "lastStoreMs": max(_known(queues, "lastStoreMs"), default=None),
        "files": len(rows["files"]),
        "fileBytes": sum(row["size"] for row in rows["files"] if row["state"] != "missing"),
        "bodySize": _percentiles(sizes),
        "latency": _percentiles(direct)
        | {"messages": direct.count, "negative": direct.share_below(0)},
        "scheduled": _sum(rows["delays"], "messages"),
        "waiting": _sum(rows["delays"], "waiting"),
        "overdue": _sum(rows["delays"], "overdue"),
        "retries": _sum([r for r in rows["retries"] if r["kind"] == RETRY], "messages"),
        "deadLetters": _sum([r for r in rows["retries"] if r["kind"] == DEAD_LETTER], "messages"),
        "damagedRanges": _sum(rows["files"], "damagedRanges"),
        "damagedBytes": _sum(rows["files"], "damagedBytes"),
        "damagedFiles": sum(1 for row in rows["files"] if row["damagedRanges"]),
        "unlistedDamagedRanges": counts.notes.get("unlistedDamage", 0),
        "keys": counts.notes.get("keys", 0),
        "keysMissedAtMost": counts.missed_at_most("keys"),
        "tagsMissedAtMost": counts.missed_at_most("tags"),
        "namesCut": counts.notes.get("cutNames", 0),
        "nameMaxBytes": NAME_MAX_BYTES,
        "withoutStoreTime": counts.notes.get("timeless", 0),
        "withoutLatency": counts.notes.get("clockless", 0),
        "minutesWidthMs": counts.width_ms("minutes"),
        "trafficWidthMs": counts.width_ms("traffic"),
    }


def _sum(rows: list[dict[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)


def _known(rows: list[dict[str, Any]], name: str) -> list[int]:
    return [row[name] for row in rows if row[name] is not None]


def _percentiles(found: Distribution) -> dict[str, int | None]:
    return {
        "least": found.least,
        "p50": found.percentile(50),
        "p90": found.percentile(90),
        "p99": found.percentile(99),
        "most": found.most,
        "isExact": found.is_exact,
    }
