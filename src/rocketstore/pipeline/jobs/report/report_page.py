"""The page: bounded figures asked of the tables, and the template that shows them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import jinja2
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute

from rocketstore.format.file_name import file_name
from rocketstore.pipeline.jobs.report import page_charts, report_tables
from rocketstore.pipeline.jobs.report.partial_groups import NAME_MAX_BYTES, NOTES, WAYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from duckdb import DuckDBPyConnection

    from rocketstore.pipeline.jobs.report.report_job import ReportPlan

    Row = dict[str, Any]
    Ask = Callable[..., list[Row]]

pa: Any = pyarrow
pc: Any = pyarrow.compute
_EPOCH: Final = pa.scalar(0, pa.timestamp("us", "UTC"))

SHOWN: Final = {
    "topics": 50, "queues": 200, "tags": 20, "allTags": 20, "keys": 20, "allKeys": 20,
    "delays": 50, "damage": 100, "groups": 50, "files": 60, "cards": 12, "queueBars": 64,
}  # fmt: skip
"""Rows of each table that the page shows; it says how many more there are."""

BARS_MAX: Final = 180
"""A bar and its gap then have four pixels of a page a thousand wide."""

BARS_MIN: Final = 20
"""So that one minute of traffic does not look like all there is."""

POWERS_MIN: Final = 8
"""Bars of a histogram, so that values that are all alike do not fill it as a wall."""

OUTLIER_SHARE: Final = 0.001
"""Of the messages, at either end: drawn only when they do not squeeze the others together."""

OUTLIER_STRETCH: Final = 4
"""How many times longer they may make the axis."""


def findings_of(plan: ReportPlan, engine: DuckDBPyConnection) -> Row:
    """Return all that the page shows, as JSON can hold it: times in ms, sizes in bytes.

    `engine` has views of the tables and of ``groups``; no answer has more than some thousand rows.
    """

    def ask(sql: str, **values: float) -> list[Row]:
        return _plain(engine.sql(sql.format(**values)).to_arrow_table())

    summary = _summary(plan, ask)
    found: Row = {"summary": summary}
    for name in ("topics", "queues", "tags", "allTags", "keys", "allKeys", "delays", "damage"):
        rows = f"FROM {name} {'WHERE tags IS NOT NULL' * ('ags' in name)}"
        found[name] = ask(f"{rows} LIMIT {{rows}}", rows=SHOWN[name])
        [summary[f"{name}Rows"]] = ask(f"SELECT count(*) AS rows {rows}")[0].values()
    cards = ask(report_tables.QUEUES_OF_TOPICS, topics=SHOWN["cards"], queues=SHOWN["queueBars"])
    found["cardQueues"] = [list(rows) for _, rows in groupby(cards, lambda row: row["place"])]
    found["traffic"] = _traffic(plan, ask) if summary["timed"] else None
    found["sizes"] = _powers(ask(report_tables.SIZES))
    measured = ask(report_tables.LATENCIES)
    by_way = {way: [row for row in measured if row["way"] == way] for way in WAYS}
    found["latencies"] = {way: _powers(rows) for way, rows in by_way.items() if rows}
    times = {row["times"]: row["messages"] for row in ask(report_tables.RETRY_TIMES)}
    listed = range(min(times, default=0), max(times, default=-1) + 1)
    found["retryTimes"] = [{"times": one, "messages": times.get(one, 0)} for one in listed]
    found["groups"] = ask(report_tables.GROUPS, rows=SHOWN["groups"])
    found["files"] = ask(report_tables.FILES, rows=SHOWN["files"])
    for row in found["files"]:
        row["name"] = file_name(row["physicalOffset"])
    return found


def _plain(rows: Any) -> list[Row]:
    """Return rows with sums as numbers, and times as ms under names that end in ``Ms``."""
    columns = {}
    for field in rows.schema:
        name, column = field.name, rows[field.name]
        if pa.types.is_timestamp(field.type):
            name, column = name.replace("Timestamp", "Ms"), pc.milliseconds_between(_EPOCH, column)
        columns[name] = column.cast(pa.int64()) if pa.types.is_decimal(column.type) else column
    plain: list[Row] = pa.table(columns).to_pylist()
    return plain


def _summary(plan: ReportPlan, ask: Ask) -> Row:
    """Return the figures of the whole."""
    [row] = ask(report_tables.SUMMARY)
    summary: Row = {name: row[name] or (None if "Ms" in name else 0) for name in row}
    [measured] = ask(report_tables.ALL_PERCENTILES) or [{}]
    notes = {row["name"]: row["messages"] for row in ask(report_tables.NOTES)}

    def percentiles(prefix: str) -> Row:
        names = ("Least", "P50", "P90", "P99", "Most", "P50Exact")
        return {name[0].lower() + name[1:]: measured.get(prefix + name) for name in names}

    latency = {name: measured.get(name) or 0 for name in ("sent", "negative")}
    summary |= {"bodySize": percentiles("bodyBytes"), "latency": percentiles("latencyMs") | latency}
    summary |= {name: notes.get(name, 0) for name in NOTES}
    summary |= {"reportedMs": plan.now_ms, "nameMaxBytes": NAME_MAX_BYTES}
    summary["stores"] = [
        {
            "brokerName": place.broker_name,
            "location": place.location,
            "isOpen": place.is_open,
            "hasDelayOffsets": plan.delivered[place.broker_name] is not None,
        }
        for place, _ in plan.stores
    ]
    summary["timed"] = summary["messages"] - summary["withoutStoreTime"]
    return summary


# --- what the charts draw -----------------------------------------------------------------------


def _traffic(plan: ReportPlan, ask: Ask) -> Row:
    """Return messages and bytes by bar, of all topics and of the first ones."""
    [row] = ask(report_tables.SPAN, width_ms=plan.width_ms, share=OUTLIER_SHARE)
    first, last, width = row["firstMs"], row["lastMs"], plan.width_ms
    if last - first > OUTLIER_STRETCH * (row["highMs"] - row["lowMs"] + BARS_MIN * width):
        first, last = row["lowMs"], row["highMs"]
    width = next(
        one
        for one in page_charts.STEPS_MS
        if one >= width and last // one - first // one < BARS_MAX
    )
    start = first // width * width
    count = (last - start) // width + 1
    if count < BARS_MIN:
        start = max(0, start - (BARS_MIN - count) // 2 * width)
        count = BARS_MIN
    times = {"start_ms": start, "stop_ms": start + count * width, "width_ms": width}
    messages, sizes, topics = [0] * count, [0] * count, dict[str, list[int]]()
    for bar in ask(report_tables.BARS, topics=SHOWN["cards"], **times):
        messages[bar["bar"]] += bar["messages"]
        sizes[bar["bar"]] += bar["bytes"]
        if bar["topic"] is not None:
            topics.setdefault(bar["topic"], [0] * count)[bar["bar"]] = bar["messages"]
    most = max(range(count), key=messages.__getitem__)
    return {
        "startMs": start,
        "widthMs": width,
        "barsMs": [start + number * width for number in range(count)],
        "messages": messages,
        "bytes": sizes,
        "topics": topics,
        "mostMessages": messages[most],
        "mostFromMs": start + most * width,
        "mostBytes": max(sizes),
        "leftOut": row["messages"] - sum(messages),
    }


def _powers(rows: list[Row]) -> list[Row]:
    """Return counts by power of two; all negative values are one bar, and so is 0."""
    powers: dict[int, int] = {}
    for row in rows:
        power = -1 if row["bucket"] < 0 else row["bucket"].bit_length()
        powers[power] = powers.get(power, 0) + row["messages"]
    negative = powers.pop(-1, 0)
    bars = [{"low": None, "high": -1, "messages": negative}] if negative else []
    if powers:
        first, last = min(powers), max(powers)
        first = max(0, first - max(0, POWERS_MIN - (last - first + 1)) // 2)
        for power in range(first, max(last, first + POWERS_MIN - 1) + 1):
            low, high = (1 << power) // 2, max(0, (1 << power) - 1)
            bars.append({"low": low, "high": high, "messages": powers.get(power, 0)})
    return bars


# --- the page -----------------------------------------------------------------------------------


def report_page(findings: Row) -> str:
    """Return the page as HTML."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names come from producers: they are escaped, and nothing in them stays unseen.
        finalize=lambda value: page_charts.visible(value) if type(value) is str else value,
    )
    templates.filters |= page_charts.FILTERS
    return templates.get_template("page.html.j2").render(
        findings,
        shown=SHOWN,
        cells=report_tables.MAP_CELLS,
        words=page_charts.FILTERS,
        charts=page_charts,
    )
