"""Sections on how long bodies are, and how long it took to store messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocketstore.pipeline.jobs.report import charts
from rocketstore.pipeline.jobs.report.buckets import bucket_numbers
from rocketstore.pipeline.jobs.report.charts import HistogramBar
from rocketstore.pipeline.jobs.report.distribution import Distribution
from rocketstore.pipeline.jobs.report.markup import element
from rocketstore.pipeline.jobs.report.tally import COMMITTED, DELAYED, DIRECT, RETRIED, WAYS
from rocketstore.pipeline.jobs.report.traffic import section
from rocketstore.pipeline.jobs.report.wording import (
    NOTHING,
    bound_text,
    count_text,
    duration_text,
    plural,
    rough_duration_text,
    share_text,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

    from rocketstore.pipeline.jobs.report.distribution import Bar

    Row = dict[str, Any]

LABELS_MAX: Final = 10
"""Labels below a histogram: of more bars, every second one has one."""

_WAY_TITLES: Final = {
    DIRECT: ("Sent directly", "stored less born"),
    DELAYED: ("Delivered after a delay", "the delay included"),
    RETRIED: ("Given back by consumers", "since it was first sent"),
    COMMITTED: ("Committed by a transaction", "since it was prepared"),
}


def size_bars(rows: list[Row]) -> list[Row]:
    """Return the bars of the chart of bodies."""
    bars = _distribution(rows, "lowBytes").bars()
    return [{"lowBytes": one.low, "highBytes": one.high, "messages": one.messages} for one in bars]


def latency_bars(rows: list[Row]) -> list[Row]:
    """Return the bars of the charts of latency."""
    return [
        {"way": way, "lowMs": one.low, "highMs": one.high, "messages": one.messages}
        for way in WAYS
        for one in _distribution([row for row in rows if row["way"] == way], "lowMs").bars()
    ]


def sizes(rows: list[Row], summary: Row) -> Element:
    """Return how long bodies are."""
    bars = _distribution(rows, "lowBytes").bars()
    return section(
        "sizes",
        "Body sizes",
        _percentiles(summary["bodySize"], size_text, "Smallest", "Largest"),
        charts.histogram(
            "Messages by size of body",
            "as stored; each bar twice as wide as the one before",
            _histogram_bars(bars, size_text, size_text),
            "Messages",
            _whole,
        ),
    )


def latencies(rows: list[Row], summary: Row) -> Element | None:
    """Return how long it took from born to stored, apart by how messages came."""
    if not rows:
        return None
    latency = summary["latency"]
    drawings = []
    for way in WAYS:
        chosen = [row for row in rows if row["way"] == way]
        if chosen:
            drawings.append(_latency_chart(way, chosen))
    aside = None
    if latency["negative"]:
        share = share_text(latency["negative"], latency["messages"])
        aside = element(
            "p",
            f"{plural(latency['negative'], 'message')} ({share}) state to be born after they were "
            f"stored, by up to {duration_text(-latency['least'])}: the clocks of producers and "
            "broker differ.",
            class_="aside warn",
        )
    return section(
        "latency",
        "Latency",
        element(
            "p", "From born, by the producer's clock, to stored, by the broker's.", class_="aside"
        ),
        _percentiles(latency, duration_text, "Shortest", "Longest")
        if latency["messages"]
        else None,
        aside,
        element("div", *drawings, class_="multiples"),
    )


def _latency_chart(way: str, rows: list[Row]) -> Element:
    found = _distribution(rows, "lowMs")
    title, note = _WAY_TITLES[way]
    return charts.histogram(
        title,
        f"{plural(found.count, 'message')}, {note}",
        _histogram_bars(found.bars(), rough_duration_text, duration_text),
        "Messages",
        _whole,
    )


def _histogram_bars(
    bars: list[Bar], label_of: Callable[[float], str], text_of: Callable[[float], str]
) -> list[HistogramBar]:
    """Return bars with labels at their lower ends, and at zero and below in their middles."""
    step = 1 if len(bars) <= LABELS_MAX else 2
    first = sum(1 for bar in bars if bar.low <= 0)
    shown = []
    for number, bar in enumerate(bars):
        if bar.high < 0:
            shown.append(HistogramBar(bar.messages, "< 0", "below 0", is_odd=True, is_middle=True))
            continue
        is_labelled = bar.low <= 0 or (number > first and (number - first) % step == 0)
        name = text_of(bar.low)
        if bar.high > bar.low:
            name += f" to {text_of(bar.high)}"
        label = label_of(bar.low) if is_labelled else ""
        shown.append(HistogramBar(bar.messages, label, name, is_middle=bar.low == 0))
    return shown


def _whole(value: float) -> str:
    return count_text(round(value))


def _distribution(rows: list[Row], name: str) -> Distribution:
    buckets = bucket_numbers(np.array([row[name] for row in rows], dtype=np.int64))
    return Distribution(
        (int(bucket), row["messages"]) for bucket, row in zip(buckets, rows, strict=True)
    )


def _figure(found: Row, name: str, text_of: Callable[[float], str]) -> str:
    text = NOTHING if found[name] is None else text_of(found[name])
    return bound_text(text, is_exact=found["isExact"] or name != "p50")


def _percentiles(found: Row, text_of: Callable[[float], str], least: str, most: str) -> Element:
    names = (("least", least), ("p50", "Median"), ("p90", "90 % ≤"), ("p99", "99 % ≤"))
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", title),
                element("dd", _figure(found, name, text_of)),
            )
            for name, title in (*names, ("most", most))
        ),
        class_="line",
    )
