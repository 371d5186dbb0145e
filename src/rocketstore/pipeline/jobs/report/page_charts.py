"""Charts of the page, and numbers and names as people read them.

pygal lays out axes and bars. Of its file only the drawing is kept: colours and letters are those of
the page's style sheet, and instead of its script each bar can be pointed at and reached by the
keyboard, and then says its value.
"""

from __future__ import annotations

import datetime as dt
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree as ET

import jinja2.filters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DAY_MS: Final = 86_400_000
STEPS_MS: Final = (
    *(1_000 * one for one in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800)),
    *(3_600_000 * one for one in (1, 2, 3, 6, 12)),
    *(DAY_MS * one for one in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 10**6)),
)
"""Widths of bars of time, and steps between their labels."""

LABELS: Final = 7
"""Most labels below a chart of times."""

LEAST_BAR: Final = 2
"""Of what is drawn in: what is there is seen."""

MINUS: Final = "\u2212"
NOTHING: Final = "\u2013"
"""Where there is nothing to say."""

_TIME_UNITS: Final = (
    (365.25 * DAY_MS, "y"), (DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"),
    (1, "ms"),
)  # fmt: skip
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidirectional overrides among them), halves of pairs."""


class Bar(NamedTuple):
    """A bar: its value, what it is of and its value in words, and what stands below it if any."""

    value: int
    name: str
    text: str
    label: str = ""
    is_odd: bool = False


def bar_chart(
    caption: str,
    bars: Sequence[Bar],
    text_of: Callable[[float], str] | None = None,
    width: int = 1_000,
) -> str:
    """Return a drawing of bars with both axes, as HTML; the keyboard reaches each bar."""
    import pygal  # noqa: PLC0415 - what importing it leaves is removed here

    # pygal leaves an import hook of Python 3.3's kind, for plugins that nobody has here.
    # No other hook may go: a library that pygal imports has put its own in place of Python's.
    fixer = pygal.PluginImportFixer
    sys.meta_path[:] = [hook for hook in sys.meta_path if not isinstance(hook, fixer)]
    top = max(bar.value for bar in bars)
    text_of = text_of or count_text
    chart = pygal.Bar(
        js=[],
        css=[],
        show_legend=False,
        width=width,
        height=190,
        margin=20,
        margin_bottom=2,
        y_labels=[{"value": one, "label": text_of(one)} for one in sorted({0, top // 2, top})],
        range=(0, top),
        x_labels=[bar.label for bar in bars],
        x_labels_major=[bar.label for bar in bars if bar.label],
        show_minor_x_labels=False,
        truncate_label=-1,
    )
    chart.add("", [bar.value or None for bar in bars])
    text = chart.render(is_unicode=True, disable_xml_declaration=True)
    whole = ET.fromstring(text.replace(' xmlns="http://www.w3.org/2000/svg"', ""))  # noqa: S314
    named = {"viewBox": whole.get("viewBox", ""), "role": "group", "aria-label": visible(caption)}
    drawing = ET.Element("svg", named)
    drawing.extend(whole.findall("g/g[@class='plot']"))
    for guides in drawing.iter("g"):
        for title in guides.findall("title"):
            guides.remove(title)
    shown = (bar for bar in bars if bar.value)
    for shape, bar in zip(drawing.iterfind(".//g[@class='bar']"), shown, strict=True):
        _finish(shape, bar, width)
    return ET.tostring(drawing, "unicode", short_empty_elements=False)


def _finish(shape: ET.Element, bar: Bar, chart_width: int) -> None:
    """Let a bar be seen however small, and say what it is to pointer, keyboard and reader."""
    [rect] = shape.findall("rect")
    x, y, width, height = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
    taller = max(height, LEAST_BAR)
    sides = {"x": x, "y": y + height - taller, "width": width, "height": taller}
    text = f"{visible(bar.name)}: {visible(bar.text)}"
    part = (x + width / 2) / chart_width
    anchor = "start" if part < 0.25 else "middle" if part < 0.7 else "end"
    tip = {"class": "tip", "x": f"{x + width / 2:.0f}", "y": "-6", "text-anchor": anchor}
    shape[:] = []
    ET.SubElement(shape, "rect", {name: f"{number:.2f}" for name, number in sides.items()})
    ET.SubElement(shape, "text", tip).text = text
    ET.SubElement(shape, "title").text = text
    shape.attrib |= {"tabindex": "0", "role": "img", "aria-label": text}
    if bar.is_odd:
        shape.set("class", "bar odd")


def time_bars(
    start_ms: int, width_ms: int, values: Sequence[int], text_of: Callable[[float], str]
) -> list[Bar]:
    """Return bars over time, labelled where a round time begins."""
    length = width_ms * len(values)
    step = next((one for one in STEPS_MS if length / one <= LABELS), STEPS_MS[-1])
    step = -(-step // width_ms) * width_ms
    pattern = "%H:%M:%S" if step < 60_000 else "%H:%M" if step < DAY_MS else "%Y-%m-%d"
    bars = []
    for number, value in enumerate(values):
        at = start_ms + number * width_ms
        # Midnight is called by the day that begins.
        label = moment_text(at, "%m-%d" if at % DAY_MS == 0 and step < DAY_MS else pattern)
        bars.append(Bar(value, moment_text(at), text_of(value), "" if at % step else label))
    return bars


def power_bars(
    powers: Sequence[dict[str, Any]], text_of: Callable[[float], str], most_labels: int
) -> list[Bar]:
    """Return bars by power of two, labelled where they begin."""
    step = -(-len(powers) // most_labels)
    bars = []
    for number, bar in enumerate(powers):
        name, label, count = "below 0", "< 0", bar["messages"]
        if bar["low"] is not None:
            name = label = text_of(bar["low"])
            name += "" if bar["low"] == bar["high"] else f" to {text_of(bar['high'])}"
            label = "" if number % step else label
        bars.append(Bar(count, name, count_text(count), label, is_odd=bar["low"] is None))
    return bars


def count_bars(rows: Sequence[dict[str, Any]], name: str, label: str = "") -> list[Bar]:
    """Return a bar for each row, called as patterns such as ``queue {queueId}`` say."""
    return [
        Bar(row["messages"], name.format(**row), count_text(row["messages"]), label.format(**row))
        for row in rows
    ]


# --- words --------------------------------------------------------------------------------------


def visible(text: str) -> str:
    r"""Return a text in which everything can be seen.

    Examples
    --------
    >>> print(visible("a\u202eb\x00"))
    a\u202eb\u0000
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{ord(one):04x}" if unicodedata.category(one) in _UNSEEN else one for one in text
    )


def count_text(count: float | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if count is None else f"{round(count):,}".replace("-", MINUS)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count_text(count)} {noun if count == 1 else many or noun + 's'}"


def size_text(size: float | None) -> str:
    """Return a number of bytes in a unit of powers of 1,024."""
    return NOTHING if size is None else jinja2.filters.do_filesizeformat(size, binary=True)


def duration_text(milliseconds: float | None) -> str:
    """Return a length of time in one unit, with three digits or so."""
    if milliseconds is None:
        return NOTHING
    amount = abs(milliseconds)
    unit, name = next((one for one in _TIME_UNITS if amount >= one[0]), _TIME_UNITS[-1])
    sign = MINUS if milliseconds < 0 else ""
    return f"{sign}{float(f'{amount / unit:.3g}'):,g} {name}"


def bound_text(text: str, is_exact: bool | None) -> str:  # noqa: FBT001 - a filter's argument
    """Return a figure, marked where the value itself may be less."""
    return text if is_exact or text == NOTHING else f"≤ {text}"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; what is there is never 0."""
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if part < whole and percent > 99.9 else f"{percent:.1f} %"


def moment_text(timestamp_ms: int | None, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time of the calendar, its first or last where there is no such time."""
    if timestamp_ms is None:
        return NOTHING
    at = min(max(timestamp_ms, 0), 253_402_300_799_999)
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at)
    return moment.strftime(pattern)


def width_text(width_ms: int) -> str:
    """Return what a bar stands for, to come after "per"."""
    names = {1_000: "second", 60_000: "minute", 3_600_000: "hour", DAY_MS: "day"}
    return names.get(width_ms, duration_text(width_ms))


FILTERS: Final = {
    "count": count_text, "plural": plural, "size": size_text, "duration": duration_text,
    "bound": bound_text, "share": share_text, "moment": moment_text, "width": width_text,
}  # fmt: skip
"""For the template."""
