"""Charts as drawings inside the page, without a script.

A drawing stretches to the width it has; labels are text of the page beside it, so they stay as
large on a phone as on a desk. Every bar says its value to the pointer, and each chart has a table.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.pipeline.jobs.report.buckets import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from rocketstore.pipeline.jobs.report.markup import element, extend, svg, table
from rocketstore.pipeline.jobs.report.wording import moment, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from xml.etree.ElementTree import Element

HEIGHT: Final = 100
BAR_SHARE: Final = 0.86
"""Of the room a bar has; the rest keeps it apart from the next."""

SEPARATE_BARS: Final = 64
"""More bars stand without gaps: on a phone these would be less than a pixel."""

LEAST_BAR: Final = 1.2
"""Of `HEIGHT`: what is there is seen."""

LABELS: Final = 7
"""Most labels below a chart of times."""

_TICK_STEPS_MS: Final = (
    SECOND_MS, 2 * SECOND_MS, 5 * SECOND_MS, 10 * SECOND_MS, 30 * SECOND_MS,
    MINUTE_MS, 2 * MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 30 * MINUTE_MS,
    HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS,
    DAY_MS, 2 * DAY_MS, 5 * DAY_MS, 10 * DAY_MS, 30 * DAY_MS, 100 * DAY_MS,
    365 * DAY_MS, 3_650 * DAY_MS, 36_500 * DAY_MS, 365_000 * DAY_MS,
)  # fmt: skip


class TimeAxis(NamedTuple):
    """Bars of equal width from a time on."""

    start_ms: int
    width_ms: int
    bar_count: int

    @property
    def stop_ms(self) -> int:
        """End of the last bar."""
        return self.start_ms + self.width_ms * self.bar_count


def time_chart(
    caption: str,
    note: str,
    axis: TimeAxis,
    values: Sequence[int],
    text_of: Callable[[float], str],
) -> Element:
    """Return bars over time with both axes, and their table."""
    most = max(values, default=0)
    top = nice_top(most, _unit(most, text_of))
    is_close = axis.bar_count > SEPARATE_BARS
    bars = element("g", class_="bars close" if is_close else "bars")
    share = 1 if is_close else BAR_SHARE
    for number, value in enumerate(values):
        if value:
            start = moment(axis.start_ms + number * axis.width_ms)
            hint = f"{start:%Y-%m-%d %H:%M:%S}: {text_of(value)}"
            bars.append(_bar(number, value / top, hint, share=share))
    drawing = svg(
        element("title", caption),
        *_grid(axis.bar_count),
        bars,
        view_box=f"0 0 {axis.bar_count} {HEIGHT}",
        role="img",
        aria_label=f"{caption}: {note}",
    )
    rows = [
        (f"{moment(axis.start_ms + number * axis.width_ms):%Y-%m-%d %H:%M:%S}", text_of(value))
        for number, value in enumerate(values)
        if value
    ]
    heads = (("From (UTC)", False), (caption, True))
    return _figure(
        caption, note, _plot(drawing, _levels(top, text_of), _time_labels(axis)),
        table(heads, rows, caption=caption),
    )  # fmt: skip


class HistogramBar(NamedTuple):
    """A bar: its value, what stands below its left edge (maybe nothing), its name in the table.

    An odd one has another colour; the label of a bar that is no range stands below its middle.
    """

    value: int
    label: str
    name: str
    is_odd: bool = False
    is_middle: bool = False


def histogram(
    caption: str,
    note: str,
    bars: Sequence[HistogramBar],
    value_name: str,
    text_of: Callable[[float], str],
) -> Element:
    """Return a bar for each of some groups; odd ones stand out."""
    top = nice_top(max((bar.value for bar in bars), default=0))
    shapes = element("g", class_="bars")
    for number, bar in enumerate(bars):
        if bar.value:
            hint = f"{bar.name}: {text_of(bar.value)}"
            shapes.append(_bar(number, bar.value / top, hint, "odd" if bar.is_odd else None))
    drawing = svg(
        element("title", caption),
        *_grid(len(bars)),
        shapes,
        view_box=f"0 0 {max(len(bars), 1)} {HEIGHT}",
        role="img",
        aria_label=f"{caption}: {note}",
    )
    labels = element("div", class_="x", aria_hidden="true")
    for number, bar in enumerate(bars):
        if bar.label:
            at = number + (0.5 if bar.is_middle else 0)
            labels.append(element("span", bar.label, style=f"left:{100 * at / len(bars):.2f}%"))
    rows = [(bar.name, text_of(bar.value)) for bar in bars]
    return _figure(
        caption, note, _plot(drawing, _levels(top, text_of), labels),
        table((("", False), (value_name, True)), rows, caption=caption),
    )  # fmt: skip


def sparkline(caption: str, values: Sequence[int]) -> Element:
    """Return a shape of values without axes."""
    top = max(values, default=0) or 1
    path = [f"M0 {HEIGHT}"]
    for number, value in enumerate(values):
        height = max(LEAST_BAR, HEIGHT * value / top) if value else 0
        path.append(f"V{HEIGHT - height:.1f}H{number + 1}")
    path.append(f"V{HEIGHT}Z")
    return svg(
        element("title", caption),
        element("path", d="".join(path)),
        view_box=f"0 0 {max(len(values), 1)} {HEIGHT}",
        class_="spark",
        role="img",
        aria_label=caption,
    )


def columns(caption: str, bars: Iterable[tuple[int, str]]) -> Element:
    """Return small bars side by side without axes, each with what it says to the pointer."""
    listed = list(bars)
    top = max((value for value, _ in listed), default=0) or 1
    shapes = element("g", class_="bars")
    for number, (value, hint) in enumerate(listed):
        shapes.append(_bar(number, value / top, hint))
    return svg(
        element("title", caption),
        shapes,
        view_box=f"0 0 {max(len(listed), 1)} {HEIGHT}",
        class_="spark",
        role="img",
        aria_label=caption,
    )


def meter(part: float, whole: float, text: str) -> Element:
    """Return a number on a bar that shows its share."""
    width = 100 * part / whole if whole else 0
    return element(
        "span",
        element("span", class_="fill", style=f"width:{max(width, 0.5 if part else 0):.2f}%"),
        element("span", text, class_="over"),
        class_="meter",
    )


def nice_top(value: float, unit: float = 1) -> float:
    """Return a round number of units that is not below a value and can be halved.

    Examples
    --------
    >>> nice_top(1), nice_top(61_234), nice_top(1500, unit=1024)
    (2, 80000, 1638.4)
    """
    amount = value / unit
    if amount <= 2 and unit == 1:
        return 2
    power = 10 ** math.floor(math.log10(amount)) if amount else 1
    step = next(one for one in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if one * power >= amount)
    return step * power * unit


def _unit(value: float, text_of: Callable[[float], str]) -> float:
    """Return what round numbers are multiples of: sizes are written in powers of 1024."""
    if text_of is not size_text or value < 1000:
        return 1
    return float(1024 ** max(1, math.floor(math.log(value / 1000, 1024)) + 1))


def _bar(
    number: int, level: float, hint: str, kind: str | None = None, share: float = BAR_SHARE
) -> Element:
    height = max(LEAST_BAR, HEIGHT * level) if level else 0
    bar = element("rect", element("title", hint), class_=kind)
    bar.set("x", f"{number + (1 - share) / 2:.2f}")
    bar.set("y", f"{HEIGHT - height:.2f}")
    bar.set("width", f"{share}")
    bar.set("height", f"{height:.2f}")
    return bar


def _grid(width: int) -> list[Element]:
    return [
        element("line", x1=0, x2=max(width, 1), y1=y, y2=y, class_="grid")
        for y in (0, HEIGHT // 2, HEIGHT)
    ]


def _levels(top: float, text_of: Callable[[float], str]) -> Element:
    labels = [
        element("span", text_of(top * part / 2), style=f"bottom:{50 * part}%") for part in (0, 1, 2)
    ]
    return element("div", *labels, class_="y", aria_hidden="true")


def _time_labels(axis: TimeAxis) -> Element:
    length = axis.stop_ms - axis.start_ms
    step = next((one for one in _TICK_STEPS_MS if length / one <= LABELS), _TICK_STEPS_MS[-1])
    pattern = "%H:%M:%S" if step < MINUTE_MS else "%H:%M" if step < DAY_MS else "%Y-%m-%d"
    labels = element("div", class_="x", aria_hidden="true")
    at = -(-axis.start_ms // step) * step
    while at <= axis.stop_ms:
        left = 100 * (at - axis.start_ms) / length
        # Midnight is called by the day that begins.
        text = moment(at).strftime("%m-%d" if at % DAY_MS == 0 and step < DAY_MS else pattern)
        if 2 <= left <= 98:
            labels.append(element("span", text, style=f"left:{left:.2f}%"))
        at += step
    return labels


def _plot(drawing: Element, levels: Element, labels: Element) -> Element:
    return element("div", levels, element("div", drawing, labels, class_="area"), class_="plot")


def _figure(caption: str, note: str, plot: Element, fallback: Element) -> Element:
    heading = element(
        "figcaption", element("strong", caption), element("span", note, class_="note")
    )
    details = element("details", element("summary", "As a table"), fallback)
    return extend(element("figure"), (heading, plot, details))
