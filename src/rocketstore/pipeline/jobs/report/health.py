"""Sections on what waits, what came back, and what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.format.file_name import file_name
from rocketstore.pipeline.jobs.report import charts
from rocketstore.pipeline.jobs.report.markup import element, svg, table
from rocketstore.pipeline.jobs.report.task import MAP_CELLS
from rocketstore.pipeline.jobs.report.topics import DEAD_LETTER, RETRY
from rocketstore.pipeline.jobs.report.traffic import section
from rocketstore.pipeline.jobs.report.wording import (
    count_text,
    duration_text,
    moment_text,
    plural,
    size_text,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    Row = dict[str, Any]

FILE_ROWS: Final = 60
DAMAGE_ROWS: Final = 100
GROUP_ROWS: Final = 50


# --- delayed messages ---------------------------------------------------------------------------


def delays(rows: list[Row], summary: Row) -> Element:
    """Return what waits for its delay to pass, by level."""
    if not rows:
        text = "No message was delayed: the log has no record of SCHEDULE_TOPIC_XXXX."
        return section("delays", "Delayed messages", element("p", text, class_="aside"))
    several = len(summary["stores"]) > 1
    heads = [("Level", False), ("Delay", True), ("Waiting", False), ("Overdue", True)]
    heads += [("Seen", True), ("Next due (UTC)", True), ("Last due (UTC)", True)]
    most = max(row["waiting"] for row in rows)
    lines = (
        (
            f"{row['level']}" + (f" of {row['brokerName']}" if several else ""),
            duration_text(row["delayMs"]),
            charts.meter(row["waiting"], most, count_text(row["waiting"])),
            count_text(row["overdue"]),
            count_text(row["messages"]),
            moment_text(row["firstDueMs"]),
            moment_text(row["lastDueMs"]),
        )
        for row in rows
    )
    return section(
        "delays",
        "Delayed messages",
        element("p", _basis_text(summary), class_="aside"),
        table(heads, lines, caption="Delayed messages by level"),
    )


def _basis_text(summary: Row) -> str:
    by_file = [store for store in summary["stores"] if store["hasDelayOffsets"]]
    if len(by_file) == len(summary["stores"]):
        return (
            "Waiting: not delivered yet by config/delayOffset.json, which a broker writes every "
            "10 seconds. Overdue: waiting although its time had come when this was counted."
        )
    if not by_file:
        return (
            "Waiting: not due when this was counted. What was due counts as delivered, since there "
            "is no config/delayOffset.json that would tell."
        )
    return (
        "Waiting: not delivered yet by config/delayOffset.json; in stores that have none, not due "
        "when this was counted."
    )


# --- retries and dead letters -------------------------------------------------------------------


def retries(rows: list[Row], summary: Row) -> Element:
    """Return what consumer groups gave back, and what they gave up."""
    if not rows:
        text = "No message came back: the log has no record of a retry or dead letter topic."
        return section("retries", "Retries and dead letters", element("p", text, class_="aside"))
    text = (
        f"{plural(summary['retries'], 'record')} of %RETRY% topics, "
        f"{plural(summary['deadLetters'], 'dead letter')}."
    )
    groups = _groups(rows)
    most = max(max(group["retries"], group["deadLetters"]) for group in groups)
    heads = (
        ("Consumer group", False), ("Retries", False), ("Most times", True),
        ("Dead letters", False), ("Last stored (UTC)", True),
    )  # fmt: skip
    lines = (
        (
            element("bdi", group["consumerGroup"]),
            charts.meter(group["retries"], most, count_text(group["retries"])),
            count_text(group["times"]),
            charts.meter(group["deadLetters"], most, count_text(group["deadLetters"])),
            moment_text(group["lastStoreMs"]),
        )
        for group in groups[:GROUP_ROWS]
    )
    return section(
        "retries",
        "Retries and dead letters",
        element("p", text, class_="aside"),
        table(heads, lines, caption="Retries and dead letters by consumer group"),
        _times_chart(rows),
    )


def _groups(rows: list[Row]) -> list[Row]:
    found: dict[str, Row] = {}
    for row in rows:
        group = found.setdefault(
            row["consumerGroup"],
            {
                "consumerGroup": row["consumerGroup"],
                "retries": 0,
                "deadLetters": 0,
                "times": 0,
                "lastStoreMs": None,
            },
        )
        group["retries" if row["kind"] == RETRY else "deadLetters"] += row["messages"]
        group["times"] = max(group["times"], row["reconsumeTimes"])
        known = [one for one in (group["lastStoreMs"], row["lastStoreMs"]) if one is not None]
        group["lastStoreMs"] = max(known, default=None)
    return sorted(
        found.values(), key=lambda one: (-one["deadLetters"], -one["retries"], one["consumerGroup"])
    )


def _times_chart(rows: list[Row]) -> Element | None:
    times: dict[int, int] = {}
    for row in rows:
        if row["kind"] != DEAD_LETTER:
            times[row["reconsumeTimes"]] = times.get(row["reconsumeTimes"], 0) + row["messages"]
    if len(times) < 2:
        return None
    bars = [
        charts.HistogramBar(times.get(one, 0), str(one), f"{one} times", is_middle=True)
        for one in range(min(times), max(times) + 1)
    ]
    return charts.histogram(
        "Retries by how often a message was given back", "", bars, "Messages",
        lambda value: count_text(round(value)),
    )  # fmt: skip


# --- damage -------------------------------------------------------------------------------------


def damage(files: list[Row], ranges: list[Row], cells: list[Row], summary: Row) -> Element:
    """Return where in which file bytes are that are no message and should be."""
    damaged = [row for row in files if row["damagedRanges"]]
    shown = (damaged or files)[:FILE_ROWS]
    marked: dict[tuple[str, str], list[Row]] = {}
    for row in cells:
        marked.setdefault((row["brokerName"], row["file"]), []).append(row)
    strips = [_strip(row, marked.get((row["brokerName"], row["file"]), [])) for row in shown]
    left_out = len(files) - len(shown)
    what = "more files without damage" if damaged and len(damaged) <= FILE_ROWS else "more files"
    return section(
        "damage",
        "Damage map",
        element(
            "p",
            element("span", class_="key data"), "messages ",
            element("span", class_="key lost"), "damage ",
            element("span", class_="key free"), "not written",
            class_="legend",
        ),
        element("div", *strips, class_="strips"),
        element("p", f"{count_text(left_out)} {what}.", class_="aside") if left_out else None,
        _damage_table(ranges, summary) if ranges else None,
    )  # fmt: skip


def _strip(row: Row, cells: list[Row]) -> Element:
    name = file_name(row["physicalOffset"])
    is_missing = row["state"] == "missing"
    size = max(row["size"], 1)
    hint = f"{name}: {plural(row['messages'], 'message')}"
    if row["damagedRanges"]:
        hint += f", {size_text(row['damagedBytes'])} damaged"
    shapes = [element("title", hint)]
    if is_missing:
        shapes.append(_block(0, MAP_CELLS, "lost"))
    else:
        shapes.append(_block(0, MAP_CELLS * min(row["dataEnd"], size) / size, "data"))
        shapes += [_block(start, count, "lost") for start, count in _runs(cells)]
    note = "missing" if is_missing else plural(row["messages"], "message")
    if row["damagedRanges"] and not is_missing:
        note += f", {size_text(row['damagedBytes'])} damaged"
    drawing = svg(
        *shapes, view_box=f"0 0 {MAP_CELLS} 10", class_="strip", role="img", aria_label=hint
    )
    return element(
        "div",
        element("code", name),
        drawing,
        element("span", note, class_="note"),
        class_="bad" if row["damagedRanges"] else None,
    )


def _runs(cells: list[Row]) -> list[tuple[int, int]]:
    """Return where runs of damaged cells begin, and how long they are."""
    runs: list[tuple[int, int]] = []
    for cell in sorted(row["cell"] for row in cells):
        if runs and sum(runs[-1]) == cell:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((cell, 1))
    return runs


def _block(start: float, width: float, kind: str) -> Element:
    return element("rect", x=f"{start:.2f}", y=0, width=f"{width:.2f}", height=10, class_=kind)


def _damage_table(ranges: list[Row], summary: Row) -> Element:
    store_head = [("Store", False)] if len(summary["stores"]) > 1 else []
    heads = (
        ("File", False), ("Position", True), ("Bytes", True), ("Reason", False), ("Found", False),
        *store_head,
    )  # fmt: skip
    lines = (
        (
            element("code", row["file"].rpartition("/")[2]),
            count_text(row["position"]),
            count_text(row["size"]),
            row["reason"],
            row["evidence"],
            *([row["brokerName"]] if store_head else []),
        )
        for row in ranges[:DAMAGE_ROWS]
    )
    hidden = len(ranges) - DAMAGE_ROWS
    note = None
    if hidden > 0:
        note = element("p", f"{count_text(hidden)} more in damage.parquet.", class_="aside")
    if summary["unlistedDamagedRanges"]:
        unlisted = plural(summary["unlistedDamagedRanges"], "more range")
        note = element("p", f"{unlisted} are counted but not listed.", class_="aside")
    return element("div", table(heads, lines, caption="Damaged ranges"), note)
