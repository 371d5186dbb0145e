"""The page: bounded figures asked of tables and groups, and the template that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.format.file_name import file_name
from rocketstore.pipeline.jobs.report import page_charts, report_tables, wording
from rocketstore.pipeline.jobs.report.page_charts import Bar
from rocketstore.pipeline.jobs.report.partial_groups import (
    MAP_CELLS,
    MINUTE_MS,
    NAME_MAX_BYTES,
    WAYS,
)
from rocketstore.pipeline.stores import SegmentState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rocketstore.pipeline.jobs.report.report_plan import ReportPlan

    Row = dict[str, Any]
    Text = Callable[[float | None], str]
    Ask = Callable[..., list[Row]]

SHOWN: Final = {
    "cards": 12, "topics": 50, "queues": 200, "queueBars": 64, "tags": 20, "allTags": 20,
    "keys": 20, "allKeys": 20, "delays": 50, "groups": 50, "files": 60, "damage": 100,
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

TITLES: Final = {
    "sizes": "Messages by size of body",
    "direct": "Sent directly",
    "delayed": "Delivered after a delay",
    "retried": "Given back by consumers",
    "committed": "Committed by a transaction",
    "retries": "Retries by how often a message was given back",
}

_WIDTHS_MS: Final = (
    *(1_000 * one for one in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800)),
    *(3_600_000 * one for one in (1, 2, 3, 6, 12)),
    *(wording.DAY_MS * one for one in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 10**6)),
)


def findings_of(plan: ReportPlan, summary: Row, tables: Path, ask: Ask) -> Row:
    """Return all that the page shows, as JSON can hold it: times in ms, sizes in bytes.

    Parameters
    ----------
    summary
        What `summary_of` says.
    tables
        Where the tables are.
    ask
        Answers a statement over ``groups``; none of them has more than some thousand rows.
    """
    import pyarrow.dataset as ds  # noqa: PLC0415 - an import of this package loads no Arrow

    found: Row = {"summary": summary}
    tagged = ds.field("tags").is_valid()
    for name in ("topics", "queues", "tags", "allTags", "keys", "allKeys", "delays", "damage"):
        chosen = tagged if name in ("tags", "allTags") else None
        found[name] = _head(tables / f"{name}.parquet", SHOWN[name], chosen)
        summary[f"{name}Rows"] = _count(tables / f"{name}.parquet", chosen)
    untagged = _head(tables / "allTags.parquet", 1, ~tagged)
    summary["untagged"] = untagged[0]["messages"] if untagged else 0
    found["cardQueues"] = _of_topics(tables, found["topics"][: SHOWN["cards"]])
    found["traffic"] = _traffic(plan, ask) if summary["timed"] else None
    found |= _histograms(ask)
    came_back = summary["retries"] or summary["deadLetters"]
    found["groups"] = ask(report_tables.GROUPS, rows=SHOWN["groups"]) if came_back else []
    found["files"] = _files(tables, summary, ask)
    return found


def _head(path: Path, count: int, chosen: Any = None) -> list[Row]:
    """Return the first rows of a table, with times as ms under names that end in ``Ms``."""
    import pyarrow as pa  # noqa: PLC0415 - an import of this package loads no Arrow
    import pyarrow.dataset as ds  # noqa: PLC0415 - as above

    rows: Any = ds.dataset(path).scanner(filter=chosen, use_threads=False).head(count)
    columns = {}
    for field in rows.schema:
        column, name = rows[field.name], field.name
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("ms", field.type.tz)).cast(pa.int64())
            name = name.removesuffix("Timestamp") + "Ms"
        columns[name] = column
    found: list[Row] = pa.table(columns).to_pylist()
    return found


def _count(path: Path, chosen: Any = None) -> int:
    import pyarrow.dataset as ds  # noqa: PLC0415 - as above

    count: int = ds.dataset(path).count_rows(filter=chosen)
    return count


def _of_topics(tables: Path, topics: list[Row]) -> list[list[Row]]:
    """Return the first queues of each of some topics."""
    import pyarrow.dataset as ds  # noqa: PLC0415 - as above

    return [
        _head(tables / "queues.parquet", SHOWN["queueBars"], ds.field("topic") == row["topic"])
        for row in topics
    ]


def _files(tables: Path, summary: Row, ask: Ask) -> list[Row]:
    """Return the files of the damage map with their damaged cells: damaged ones if there are."""
    import pyarrow.dataset as ds  # noqa: PLC0415 - as above

    chosen = ds.field("damagedRanges") > 0 if summary["damagedFiles"] else None
    files = _head(tables / "files.parquet", SHOWN["files"], chosen)
    cells: dict[tuple[str, str], list[int]] = {}
    if summary["damagedFiles"]:
        for cell in ask(report_tables.CELLS, files=SHOWN["files"]):
            cells.setdefault((cell["brokerName"], cell["file"]), []).append(cell["cell"])
    for row in files:
        lost = _runs(cells.get((row["brokerName"], row["file"]), []))
        data = MAP_CELLS * min(row["dataEnd"], row["size"]) / max(row["size"], 1)
        if row["state"] == SegmentState.MISSING.value:
            data, lost = 0, [(0, MAP_CELLS)]
        row |= {"name": file_name(row["physicalOffset"]), "dataCells": data, "lostCells": lost}
    return files


def _runs(cells: Iterable[int]) -> list[tuple[int, int]]:
    """Return where runs of damaged cells begin, and how long they are."""
    runs: list[tuple[int, int]] = []
    for cell in cells:
        if runs and sum(runs[-1]) == cell:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((cell, 1))
    return runs


def summary_of(plan: ReportPlan, ask: Ask) -> Row:
    """Return the figures of the whole."""
    totals = {(row["part"], row["kind"]): row for row in ask(report_tables.TOTALS)}
    [measured] = ask(report_tables.ALL_PERCENTILES) or [{}]

    def total(part: str, name: str, kind: str | None = None) -> Any:
        return totals.get((part, kind), {}).get(name) or 0

    def times(name: str) -> int | None:
        return totals.get(("queues", None), {}).get(name)

    def note(name: str) -> int:
        return int(total("notes", "messages", name))

    def percentiles(prefix: str) -> Row:
        names = ("Least", "P50", "P90", "P99", "Most", "P50Exact")
        return {name[0].lower() + name[1:]: measured.get(prefix + name) for name in names}

    files = [one for _, segments in plan.stores for one in segments]
    present = [one for one in files if one.state is not SegmentState.MISSING]
    return {
        "stores": _stores(plan),
        "reportedMs": plan.now_ms,
        **{name: total("queues", name) for name in ("messages", "bytes", "bodyBytes", "topics")},
        "queues": total("queues", "groups"),
        "firstStoreMs": times("firstMs"),
        "lastStoreMs": times("lastMs"),
        "files": len(files),
        "fileBytes": sum(one.size for one in present),
        "bodySize": percentiles("bodyBytes"),
        "latency": percentiles("latencyMs")
        | {name: measured.get(name) or 0 for name in ("sent", "negative")},
        "scheduled": total("delays", "messages"),
        "waiting": total("delays", "waiting"),
        "overdue": total("delays", "overdue"),
        "retries": sum(
            row["messages"]
            for (part, kind), row in totals.items()
            if part == "retries" and kind != "%DLQ%"
        ),
        "deadLetters": total("retries", "messages", "%DLQ%"),
        **{
            name: total("files", name)
            for name in ("damagedRanges", "damagedBytes", "damagedFiles")
        },
        **{
            name: note(name)
            for name in (
                "unlistedDamage", "keys", "keysMissedAtMost", "tagsMissedAtMost", "namesCut",
                "withoutStoreTime", "withoutLatency",
            )
        },
        "nameMaxBytes": NAME_MAX_BYTES,
        "timed": total("queues", "messages") - note("withoutStoreTime"),
    }  # fmt: skip


def _stores(plan: ReportPlan) -> list[Row]:
    return [
        {
            "brokerName": place.broker_name,
            "location": place.location,
            "isOpen": place.is_open,
            "hasDelayOffsets": plan.delays[place.broker_name].has_offsets,
        }
        for place, _ in plan.stores
    ]


# --- what the charts draw -----------------------------------------------------------------------


def _traffic(plan: ReportPlan, ask: Ask) -> Row:
    """Return messages and bytes by bar, of all topics and of the first ones."""
    width = plan.width_ms
    [row] = ask(report_tables.SPAN, width_ms=width, share=OUTLIER_SHARE)
    if width < MINUTE_MS and row["lastMs"] - row["firstMs"] > 10 * MINUTE_MS:
        width = MINUTE_MS
        [row] = ask(report_tables.SPAN, width_ms=width, share=OUTLIER_SHARE)
    first, last = row["firstMs"], row["lastMs"]
    if last - first > OUTLIER_STRETCH * (row["highMs"] - row["lowMs"] + BARS_MIN * width):
        first, last = row["lowMs"], row["highMs"]
    width = next(
        one for one in _WIDTHS_MS if one >= width and last // one - first // one < BARS_MAX
    )
    start = first // width * width
    count = (last - start) // width + 1
    if count < BARS_MIN:
        start = max(0, start - (BARS_MIN - count) // 2 * width)
        count = BARS_MIN
    bars = ask(
        report_tables.BARS,
        start_ms=start,
        stop_ms=start + count * width,
        width_ms=width,
        topics=SHOWN["cards"],
    )
    messages, sizes, topics = [0] * count, [0] * count, dict[str, list[int]]()
    for bar in bars:
        number = bar["place"] // width
        if bar["topic"] is None:
            messages[number], sizes[number] = bar["messages"], bar["bytes"]
        else:
            topics.setdefault(bar["topic"], [0] * count)[number] = bar["messages"]
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


def _histograms(ask: Ask) -> Row:
    rows = ask(report_tables.DISTRIBUTIONS)
    parts: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        parts.setdefault((row["part"], row["way"]), []).append(row)
    ways = [way for way in WAYS if ("latencies", way) in parts]
    return {
        "sizes": _powers(parts.get(("sizes", None), [])),
        "latencies": {way: _powers(parts["latencies", way]) for way in ways},
        "retryTimes": [
            {"times": row["bucket"], "messages": row["messages"]}
            for row in parts.get(("retries", None), [])
        ],
    }


def _powers(rows: list[Row]) -> list[Row]:
    """Return counts by power of two; all negative values are one bar, and so is 0."""
    if not rows:
        return []
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


def _power_bars(bars: list[Row], text_of: Text, most_labels: int) -> list[Bar]:
    """Return bars of a histogram, labelled where they begin."""
    step = -(-len(bars) // most_labels)
    found = []
    for number, bar in enumerate(bars):
        if bar["low"] is None:
            found.append(_count_bar("below 0", bar["messages"], "< 0")._replace(is_odd=True))
            continue
        low = text_of(bar["low"])
        name = low if bar["low"] == bar["high"] else f"{low} to {text_of(bar['high'])}"
        found.append(_count_bar(name, bar["messages"], "" if number % step else low))
    return found


# --- the page -----------------------------------------------------------------------------------


def report_page(findings: Row) -> str:
    """Return the page as HTML."""
    import jinja2  # noqa: PLC0415 - an extra; and only the driver makes pages

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names come from whoever wrote the store: escaped, and nothing in them unseen.
        finalize=lambda value: wording.visible(value) if type(value) is str else value,
    )
    templates.filters |= {
        name.removesuffix("_text"): getattr(wording, name)
        for name in ("count_text", "size_text", "duration_text", "bound_text", "share_text",
                     "moment_text", "width_text", "plural")
    }  # fmt: skip
    return templates.get_template("page.html.j2").render(
        findings,
        shown=SHOWN,
        cells=MAP_CELLS,
        charts=_charts(findings),
        size_text=wording.size_text,
        duration_text=wording.duration_text,
        iso=lambda at: wording.moment_text(at, "%Y-%m-%dT%H:%M:%SZ"),
    )


def _charts(findings: Row) -> dict[Any, page_charts.Chart]:
    """Return the charts of the page, by what they are of."""
    charts: dict[Any, page_charts.Chart] = {}
    traffic = findings["traffic"]
    if traffic:
        start, width = traffic["startMs"], traffic["widthMs"]
        forms: dict[str, Text] = {"messages": wording.count_text, "bytes": wording.size_text}
        for name, text_of in forms.items():
            bars = page_charts.time_bars(start, width, traffic[name], text_of)
            caption = f"{name.title()} per {wording.width_text(width)}"
            charts[name] = page_charts.bar_chart(caption, bars, text_of)
        for topic, counts in traffic["topics"].items():
            bars = page_charts.time_bars(start, width, counts, wording.count_text)
            caption = f"Messages of {topic} over time, at most {wording.count_text(max(counts))}"
            charts["topic", topic] = page_charts.small_chart(caption, bars, 200)
    for queues in findings["cardQueues"]:
        bars = [_count_bar(f"queue {one['queueId']}", one["messages"]) for one in queues]
        topic = queues[0]["topic"]
        caption = f"Messages of {topic} by queue"
        charts["queues", topic] = page_charts.small_chart(caption, bars, 100)
    histograms: dict[str, tuple[list[Row], Text]] = {
        "sizes": (findings["sizes"], wording.size_text)
    } | {way: (powers, wording.duration_text) for way, powers in findings["latencies"].items()}
    for name, (powers, text_of) in histograms.items():
        if powers:
            width = 1_000 if name == "sizes" else 480
            bars = _power_bars(powers, text_of, most_labels=width // 80)
            charts[name] = page_charts.bar_chart(TITLES[name], bars, width=width)
    times = {row["times"]: row["messages"] for row in findings["retryTimes"]}
    if len(times) > 1:
        listed = range(min(times), max(times) + 1)
        bars = [_count_bar(f"{one} times", times.get(one, 0), str(one)) for one in listed]
        charts["retries"] = page_charts.bar_chart(TITLES["retries"], bars)
    return charts


def _count_bar(name: str, messages: int, label: str = "") -> Bar:
    return Bar(messages, name, wording.count_text(messages), label)
