"""Sections on traffic by time, topic and queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.pipeline.jobs.report import charts
from rocketstore.pipeline.jobs.report.buckets import MINUTE_MS, SECOND_MS
from rocketstore.pipeline.jobs.report.markup import Node, element, table
from rocketstore.pipeline.jobs.report.topics import NORMAL
from rocketstore.pipeline.jobs.report.wording import (
    bound_text,
    count_text,
    duration_text,
    moment_text,
    plural,
    share_text,
    size_text,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from rocketstore.pipeline.jobs.report.timeline import Timeline

    Row = dict[str, Any]

CARDS: Final = 12
TOPIC_ROWS: Final = 50
QUEUE_ROWS: Final = 200
QUEUE_BARS: Final = 64
"""More of each is in the tables beside the page, which the page says."""


def section(identifier: str, title: str, *content: Node) -> Element:
    """Return a section with its heading."""
    return element(
        "section",
        element("h2", title, id=f"{identifier}-title"),
        *content,
        id=identifier,
        aria_labelledby=f"{identifier}-title",
    )


def over_time(line: Timeline, summary: Row) -> Element:
    """Return the traffic of all topics, in messages and bytes."""
    width = _width_text(line.axis.width_ms)
    busiest = max(range(line.axis.bar_count), key=line.messages.__getitem__)
    at = moment_text(line.axis.start_ms + busiest * line.axis.width_ms)
    most = max(line.sizes)
    aside = None
    if line.left_out:
        aside = element(
            "p",
            f"{plural(line.left_out, 'message')} stored far from all others "
            f"({moment_text(summary['firstStoreMs'])} to {moment_text(summary['lastStoreMs'])}) "
            "would squeeze the rest together and are not drawn.",
            class_="aside",
        )
    return section(
        "traffic",
        "Traffic",
        charts.time_chart(
            f"Messages per {width}",
            f"most {count_text(line.messages[busiest])} from {at}",
            line.axis,
            line.messages,
            _whole,
        ),
        charts.time_chart(
            f"Bytes per {width}", f"most {size_text(most)}", line.axis, line.sizes, size_text
        ),
        aside,
    )


def _width_text(width_ms: int) -> str:
    names = {SECOND_MS: "second", MINUTE_MS: "minute", 60 * MINUTE_MS: "hour"}
    return names.get(width_ms, duration_text(width_ms))


def _whole(value: float) -> str:
    return count_text(round(value))


# --- topics and queues --------------------------------------------------------------------------


def by_topic(topics: list[Row], queues: list[Row], line: Timeline | None) -> Element:
    """Return a card for each of the first topics, and tables of topics and queues."""
    queues_of: dict[str, list[Row]] = {}
    for row in queues:
        queues_of.setdefault(row["topic"], []).append(row)
    cards = [_card(row, queues_of[row["topic"]], line) for row in topics[:CARDS]]
    more = len(topics) - CARDS
    return section(
        "topics",
        "Topics and queues",
        element("p", _balance_text(queues_of), class_="aside"),
        element("div", *cards, class_="cards"),
        element("p", f"{plural(more, 'more topic')} in the table.", class_="aside")
        if more > 0
        else None,
        _topic_table(topics),
        _queue_details(queues, has_stores=len({row["brokerName"] for row in queues}) > 1),
    )


def _balance_text(queues_of: dict[str, list[Row]]) -> str:
    return (
        "Left, messages over time, each topic to its own height; right, messages by queue: bars of "
        "one height mean that the queues share the work evenly."
        if any(len(queues) > 1 for queues in queues_of.values())
        else "Messages over time, each topic to its own height."
    )


def _card(topic: Row, queues: list[Row], line: Timeline | None) -> Element:
    name = topic["topic"]
    values = line.by_topic.get(name) if line is not None else None
    listed = queues[:QUEUE_BARS]
    least, most = (f(row["messages"] for row in queues) for f in (min, max))
    spread = f"{count_text(least)} to {count_text(most)}" if least != most else count_text(most)
    drawings = element(
        "div",
        charts.sparkline(f"Messages of {name} over time", values) if values else None,
        charts.columns(
            f"Messages of {name} by queue",
            (
                (row["messages"], f"queue {row['queueId']}: {count_text(row['messages'])}")
                for row in listed
            ),
        )
        if len(queues) > 1
        else None,
        class_="pair",
    )
    kind = None if topic["kind"] == NORMAL else element("span", topic["kind"], class_="kind")
    return element(
        "article",
        element("h3", element("bdi", name), kind, title=name),
        element(
            "p",
            element("b", count_text(topic["messages"])),
            f" {'message' if topic['messages'] == 1 else 'messages'}, {size_text(topic['bytes'])}",
        ),
        drawings,
        element(
            "p",
            f"{plural(len(queues), 'queue')}"
            + (f", {spread} messages each" if len(queues) > 1 else ""),
            class_="note",
        ),
    )


def _topic_table(topics: list[Row]) -> Element:
    most = topics[0]["messages"]
    total = sum(row["messages"] for row in topics)
    heads = (
        ("Topic", False), ("Messages", False), ("Share", True), ("Log", True), ("Queues", True),
        ("Body median", True), ("99 % ≤", True), ("Latency median", True), ("99 % ≤", True),
    )  # fmt: skip
    rows = (
        (
            element("bdi", row["topic"]),
            charts.meter(row["messages"], most, count_text(row["messages"])),
            share_text(row["messages"], total),
            size_text(row["bytes"]),
            count_text(row["queues"]),
            bound_text(size_text(row["bodyBytesP50"]), is_exact=row["bodyBytesExact"]),
            size_text(row["bodyBytesP99"]),
            bound_text(duration_text(row["latencyMsP50"]), is_exact=row["latencyMsExact"]),
            duration_text(row["latencyMsP99"]),
        )
        for row in topics[:TOPIC_ROWS]
    )
    return element(
        "div",
        table(heads, rows, caption="Topics by messages"),
        more_rows(topics, TOPIC_ROWS, "topics"),
    )


def _queue_details(queues: list[Row], *, has_stores: bool) -> Element:
    store_head = [("Store", False)] if has_stores else []
    heads = (
        ("Topic", False), *store_head, ("Queue", True), ("Messages", True), ("Log", True),
        ("First offset", True), ("Last offset", True), ("Last stored (UTC)", True),
    )  # fmt: skip
    rows = (
        (
            element("bdi", row["topic"]),
            *([row["brokerName"]] if has_stores else []),
            str(row["queueId"]),
            count_text(row["messages"]),
            size_text(row["bytes"]),
            count_text(row["minQueueOffset"]),
            count_text(row["maxQueueOffset"]),
            moment_text(row["lastStoreMs"]),
        )
        for row in queues[:QUEUE_ROWS]
    )
    return element(
        "details",
        element("summary", f"All queues ({count_text(len(queues))})"),
        table(heads, rows, caption="Queues"),
        more_rows(queues, QUEUE_ROWS, "queues"),
    )


def more_rows(rows: list[Row], shown: int, name: str) -> Element | None:
    """Return where the rows are that a table does not show."""
    if len(rows) <= shown:
        return None
    text = f"{count_text(len(rows) - shown)} more in {name}.parquet."
    return element("p", text, class_="aside")
