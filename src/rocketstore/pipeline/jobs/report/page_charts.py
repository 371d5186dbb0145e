"""Charts of the page: pygal's drawings, made part of the page.

pygal lays out axes and bars. Of its file only the drawing is kept: colours and letters are those of
the page's style sheet, and instead of its script each bar can be pointed at and reached by the
keyboard, and then says its value.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from rocketstore.pipeline.jobs.report.wording import (
    DAY_MS,
    count_text,
    moment_text,
    size_text,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LABELS: Final = 7
"""Most labels below a chart of times."""

_TICK_STEPS_MS: Final = (
    *(1_000 * one for one in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800)),
    *(3_600_000 * one for one in (1, 2, 6, 12)),
    *(DAY_MS * one for one in (1, 2, 5, 10, 30, 100, 365, 3_650, 36_500, 365_000)),
)
LEAST_BAR: Final = 2
"""Of what is drawn in: what is there is seen."""


class Bar(NamedTuple):
    """A bar: its value, what it is of and its value in words, and what stands below it if any."""

    value: int
    name: str
    text: str
    label: str = ""
    is_odd: bool = False


class Chart(NamedTuple):
    """A drawing as HTML, and its bars for the table behind it."""

    caption: str
    svg: str
    bars: Sequence[Bar]


def bar_chart(
    caption: str,
    bars: Sequence[Bar],
    text_of: Callable[[float], str] = count_text,
    width: int = 1_000,
) -> Chart:
    """Return bars with both axes; each can be reached by the keyboard."""
    top = nice_top(max(bar.value for bar in bars), in_bytes=text_of is size_text)
    drawing = _drawing(
        bars,
        width=width,
        height=190,
        margin=20,
        margin_bottom=2,
        y_labels=[{"value": top * part / 2, "label": text_of(top * part / 2)} for part in range(3)],
        range=(0, top),
        x_labels=[bar.label for bar in bars],
        x_labels_major=[bar.label for bar in bars if bar.label],
        show_minor_x_labels=False,
        truncate_label=-1,
    )
    for shape, bar in _shapes(drawing, bars):
        rect = shape.find("rect")
        assert rect is not None
        at = float(rect.get("x", 0)) + float(rect.get("width", 0)) / 2
        anchor = "start" if at < width / 4 else "middle" if at < width * 0.7 else "end"
        tip = {"class": "tip", "x": f"{at:.0f}", "y": "-6", "text-anchor": anchor}
        ET.SubElement(shape, "text", tip).text = f"{visible(bar.name)}: {visible(bar.text)}"
        shape.attrib |= {"tabindex": "0", "role": "img"}
    return _chart(caption, drawing, bars, role="group")


def small_chart(caption: str, bars: Sequence[Bar], width: int) -> Chart:
    """Return bars without axes: too many of them on the page to go through by the keyboard."""
    drawing = _drawing(
        bars,
        width=width,
        height=50,
        margin=0,
        show_x_labels=False,
        show_y_labels=False,
        show_y_guides=False,
    )
    drawing.attrib |= {"preserveAspectRatio": "none", "class": "spark"}
    return _chart(caption, drawing, bars, role="img")


def time_bars(
    start_ms: int, width_ms: int, values: Sequence[int], text_of: Callable[[float], str]
) -> list[Bar]:
    """Return bars over time, labelled where a round time begins."""
    length = width_ms * len(values)
    step = next((one for one in _TICK_STEPS_MS if length / one <= LABELS), _TICK_STEPS_MS[-1])
    step = -(-step // width_ms) * width_ms
    pattern = "%H:%M:%S" if step < 60_000 else "%H:%M" if step < DAY_MS else "%Y-%m-%d"
    bars = []
    for number, value in enumerate(values):
        at = start_ms + number * width_ms
        # Midnight is called by the day that begins.
        label = moment_text(at, "%m-%d" if at % DAY_MS == 0 and step < DAY_MS else pattern)
        bars.append(Bar(value, moment_text(at), text_of(value), "" if at % step else label))
    return bars


def nice_top(value: float, *, in_bytes: bool = False) -> float:
    """Return a round number that is not below a value and can be halved.

    Examples
    --------
    >>> nice_top(1), nice_top(61_234), nice_top(1500, in_bytes=True)
    (2, 80000.0, 1638.4)
    """
    if value <= 2:
        return 2
    unit: float = (
        1024 ** math.ceil(math.log(value / 1000, 1024)) if in_bytes and value >= 1000 else 1
    )
    power = math.pow(10, int(math.log10(value / unit)))
    step = next(one for one in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if one * power * unit >= value)
    return step * power * unit


def _drawing(bars: Sequence[Bar], **settings: Any) -> ET.Element:
    """Return what pygal draws, without its style, script and tooltips."""
    import pygal  # noqa: PLC0415 - an extra; and only the driver draws

    # pygal leaves an import hook of Python 3.3's kind, for plugins that nobody has here.
    # No other hook may go: a library that pygal imports has put its own in place of Python's.
    fixer = pygal.PluginImportFixer
    sys.meta_path[:] = [hook for hook in sys.meta_path if not isinstance(hook, fixer)]
    chart = pygal.Bar(js=[], css=[], show_legend=False, **settings)
    chart.add("", [bar.value or None for bar in bars])
    text = chart.render(is_unicode=True, disable_xml_declaration=True)
    whole = ET.fromstring(text.replace(' xmlns="http://www.w3.org/2000/svg"', ""))  # noqa: S314
    plot = whole.find("g/g[@class='plot']")
    assert plot is not None
    drawing = ET.Element("svg", {"viewBox": whole.get("viewBox", "")})
    drawing.append(plot)
    for guides in plot.iter("g"):
        for title in guides.findall("title"):
            guides.remove(title)
    return drawing


def _shapes(drawing: ET.Element, bars: Sequence[Bar]) -> list[tuple[ET.Element, Bar]]:
    drawn = (bar for bar in bars if bar.value)
    return list(zip(drawing.iterfind(".//g[@class='bar']"), drawn, strict=True))


def _chart(caption: str, drawing: ET.Element, bars: Sequence[Bar], role: str) -> Chart:
    """Let bars be seen however small, say what they are, and write the drawing as HTML."""
    for shape, bar in _shapes(drawing, bars):
        rect = shape.find("rect")
        assert rect is not None
        x, y, width, height = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        taller = max(height, LEAST_BAR)
        sides = {"x": x, "y": y + height - taller, "width": width, "height": taller}
        rect.attrib.clear()
        rect.attrib |= {name: f"{number:.2f}" for name, number in sides.items()}
        for described in shape.findall("desc"):
            shape.remove(described)
        text = f"{visible(bar.name)}: {visible(bar.text)}"
        ET.SubElement(shape, "title").text = text
        if "role" in shape.attrib:
            shape.set("aria-label", text)
        if bar.is_odd:
            shape.set("class", "bar odd")
    drawing.attrib |= {"role": role, "aria-label": visible(caption)}
    return Chart(caption, ET.tostring(drawing, "unicode", short_empty_elements=False), bars)
