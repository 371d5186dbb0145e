"""The page: bounded figures asked of the tables, bars drawn of them, and the template around.

pygal lays out axes and bars. Only the drawing of its file is kept: colours and letters are those of
the page's style sheet, and instead of its script each bar can be pointed at and reached by the
keyboard, and then says its value.
"""

from __future__ import annotations

import datetime as dt
import functools
import sys
import unicodedata
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree as ET

import jinja2
import jinja2.filters
import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.pipeline.jobs.report import report_tables
from rocketstore.pipeline.jobs.report.partial_groups import NAME_MAX_BYTES, NOTES, WAYS, ReportPlan
from rocketstore.places.small_files import read_damage_map
from rocketstore.scan.arrow import LAST_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duckdb import DuckDBPyConnection

    from rocketstore.places.stores import StorePlace

    Row = dict[str, Any]
    Ask = Callable[..., list[Row]]
    TextOf = Callable[[float], str]

_EPOCH: Final = pa.scalar(0, pa.timestamp("us", "UTC"))
DAY_MS: Final = 86_400_000
STEPS_MS: Final = (  # widths of bars of time, and steps between their labels
    *(1_000 * one for one in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1_800)),
    *(3_600_000 * one for one in (1, 2, 3, 6, 12)),
    *(DAY_MS * one for one in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 10**6)),
)

MOST_LABELS: Final = 7  # below a chart of times
LEAST_BAR: Final = 0.013  # of the height: so that every value is visible
MINUS, NOTHING = "\u2212", "\u2013"  # the second one where there is no message
_TIME_UNITS: Final = {
    "y": 365.25 * DAY_MS, "d": DAY_MS, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1,
}  # fmt: skip
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidirectional overrides among them), halves of pairs."""

SHOWN: Final = {  # rows of each table that the page shows; it says how many more there are
    "topics": 50, "queues": 200, "tags": 20, "allTags": 20, "keys": 20, "allKeys": 20,
    "delays": 50, "transactions": 50, "damage": 100, "groups": 50, "files": 60, "cards": 12,
    "queueBars": 64,
}  # fmt: skip

BARS_MAX: Final = 180  # a bar and its gap have four pixels of a page that is a thousand wide
BARS_MIN: Final = 20  # so that one minute of traffic does not look like all there is
POWERS_MIN: Final = 8  # of a histogram: values that are all alike do not fill it as a wall

OUTLIER_SHARE = 0.001  # of the messages, at either end: drawn unless they make the axis
OUTLIER_STRETCH = 4  # so many times longer


def findings_of(plan: ReportPlan, engine: DuckDBPyConnection) -> Row:
    """Return the content of the page in JSON types; `engine` has each table."""

    def ask(sql: str, **values: float) -> list[Row]:
        return _plain(engine.sql(sql.format(**values)).to_arrow_table())

    summary = _summary(plan, ask)
    found: Row = {"summary": summary}
    names = "topics queues tags allTags keys allKeys delays transactions damage"
    rows = {one: f"FROM {one} {'WHERE tags IS NOT NULL' * ('ags' in one)}" for one in names.split()}
    found |= {name: ask(f"{one} LIMIT {{rows}}", rows=SHOWN[name]) for name, one in rows.items()}
    counts = (f"SELECT '{name}Rows' AS name, count(*) AS rows {one}" for name, one in rows.items())
    summary |= {row["name"]: row["rows"] for row in ask(" UNION ALL ".join(counts))}
    cards = ask(report_tables.QUEUES_OF_TOPICS, topics=SHOWN["cards"], queues=SHOWN["queueBars"])
    found["cardQueues"] = [list(rows) for _, rows in groupby(cards, lambda row: row["place"])]
    found["traffic"] = _traffic(plan.common.width_ms, ask) if summary["timed"] else None
    found["sizes"] = _powers(ask(report_tables.SIZES))
    measured = ask(report_tables.LATENCIES)
    by_way = {way: [row for row in measured if row["way"] == way] for way in WAYS}
    found["latencies"] = {way: _powers(rows) for way, rows in by_way.items() if rows}
    found["groups"] = ask(report_tables.GROUPS, rows=SHOWN["groups"])
    found["files"] = ask(report_tables.FILES, rows=SHOWN["files"])
    for row in found["topics"]:
        row["share"] = share_text(row["messages"], summary["messages"])
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
    [row] = ask(report_tables.SUMMARY)
    summary: Row = {name: row[name] or (None if "Ms" in name else 0) for name in row}
    of_all = {row["part"]: row for row in ask("FROM percentiles WHERE topic IS NULL")}
    none = dict.fromkeys(("p50", "p90", "p99", "least", "most")) | {"sent": 0, "negative": 0}
    summary |= {"bodySize": of_all.get("sizes", none), "latency": of_all.get("latencies", none)}
    notes = ask(report_tables.NOTES)
    summary |= dict.fromkeys(NOTES, 0) | {row["name"]: row["messages"] for row in notes}
    summary |= {"reportedMs": plan.common.now_ms, "nameMaxBytes": NAME_MAX_BYTES}
    summary["stores"] = [
        {
            "brokerName": place.broker_name,
            "location": place.location,
            "hasDelayOffsets": plan.common.delivered[place.broker_name] is not None,
            "scrub": _scrub(place),
        }
        for place, _ in plan.stores
    ]
    summary["timed"] = summary["messages"] - summary["withoutStoreTime"]
    return summary


def _scrub(place: StorePlace) -> Row | None:
    """Return the result of the store's own check of its old files, None where it never ended."""
    known = read_damage_map(place)
    if not known.passes:
        return None
    last_ms, ranges = known.last_pass_timestamp, len(known.damage)
    return {"passes": known.passes, "lastPassMs": last_ms, "damagedRanges": ranges}


# --- what the charts draw -----------------------------------------------------------------------


def _traffic(width: int, ask: Ask) -> Row:
    """Return messages and bytes by bar, of all topics and of the first ones."""
    [row] = ask(report_tables.SPAN, width_ms=width, share=OUTLIER_SHARE)
    first, last = row["firstMs"], row["lastMs"]
    if last - first > OUTLIER_STRETCH * (row["highMs"] - row["lowMs"] + BARS_MIN * width):
        first, last = row["lowMs"], row["highMs"]
    width = next(one for one in STEPS_MS if one >= width and last // one - first // one < BARS_MAX)
    count = last // width - first // width + 1
    start = first // width * width
    if count < BARS_MIN:
        start, count = max(0, start - (BARS_MIN - count) // 2 * width), BARS_MIN
    messages, sizes, topics = [0] * count, [0] * count, dict[str, list[int]]()
    times = {"start_ms": start, "stop_ms": start + count * width, "width_ms": width}
    for bar in ask(report_tables.BARS, topics=SHOWN["cards"], **times):
        messages[bar["bar"]] += bar["messages"]
        sizes[bar["bar"]] += bar["bytes"]
        if bar["topic"] is not None:
            topics.setdefault(bar["topic"], [0] * count)[bar["bar"]] = bar["messages"]
    bars = [start + number * width for number in range(count)]
    of_bars = {"barsMs": bars, "messages": messages, "bytes": sizes, "topics": topics}
    return {"widthMs": width, **of_bars, "leftOut": row["messages"] - sum(messages)}


def _powers(rows: list[Row]) -> list[Row]:
    """Return counts by power of two; all negative values are one bar, and so is 0."""
    powers: Counter[int] = Counter()
    for row in rows:
        powers[-1 if row["bucket"] < 0 else row["bucket"].bit_length()] += row["messages"]
    negative = powers.pop(-1, 0)
    bars = [{"low": None, "high": -1, "messages": negative}] if negative else []
    if powers:
        first, last = min(powers), max(powers)
        first = max(0, first - max(0, POWERS_MIN - (last - first + 1)) // 2)
        for power in range(first, max(last, first + POWERS_MIN - 1) + 1):
            low, high = (1 << power) // 2, max(0, (1 << power) - 1)
            bars.append({"low": low, "high": high, "messages": powers[power]})
    return bars


# --- bars ---------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """A bar: its value, what it is of and its value in words, and what stands below it if any."""

    value: int
    name: str
    text: str
    label: str = ""
    is_negative: bool = False


def bar_chart(caption: str, bars: Sequence[Bar], text_of: TextOf, width: int = 1_000) -> str:
    """Return a drawing of bars with both axes, as HTML; the keyboard reaches each bar."""
    import pygal  # noqa: PLC0415 - what importing it leaves is removed here

    # pygal leaves an import hook of Python 3.3's kind, for plugins that are not used here.
    # No other hook may be removed: a library that pygal imports replaces Python's own.
    fixer = pygal.PluginImportFixer
    sys.meta_path[:] = [hook for hook in sys.meta_path if not isinstance(hook, fixer)]
    top = max(bar.value for bar in bars)
    named = [{"value": one, "label": text_of(one)} for one in sorted({0, top // 2, top})]
    labels = [bar.label for bar in bars]
    sizes = {"width": width, "height": 190, "margin": 20, "margin_bottom": 2, "range": (0, top)}
    chart = pygal.Bar(js=[], css=[], show_legend=False, truncate_label=-1, y_labels=named, **sizes)
    chart.x_labels, chart.x_labels_major = labels, [one for one in labels if one]
    chart.show_minor_x_labels = False
    chart.add("", [max(bar.value, top * LEAST_BAR) if bar.value else None for bar in bars])
    whole = chart.render_tree()
    names = {"viewBox": whole.get("viewBox"), "role": "group", "aria-label": visible(caption)}
    drawing = ET.Element("svg", names)
    drawing.extend(whole.findall("g/g[@class='plot']"))
    shown = (bar for bar in bars if bar.value)
    for shape, bar in zip(drawing.iterfind(".//g[@class='bar']"), shown, strict=True):
        text = f"{visible(bar.name)}: {visible(bar.text)}"
        [drawn] = shape.findall("rect")
        rect = {name: float(drawn.attrib[name]) for name in ("x", "y", "width", "height")}
        middle = rect["x"] + rect["width"] / 2
        place = {"class": "tip", "x": f"{min(max(middle, 100), width - 170):.0f}", "y": "-6"}
        shape[:] = [ET.Element("rect", {name: f"{side:.2f}" for name, side in rect.items()})]
        ET.SubElement(shape, "text", place).text = ET.SubElement(shape, "title").text = text
        shape.attrib |= {"tabindex": "0", "role": "img", "aria-label": text}
        shape.set("class", "bar odd" if bar.is_negative else "bar")
    return ET.tostring(drawing, "unicode", short_empty_elements=False)


def time_bars(traffic: dict[str, Any], values: Sequence[int], text_of: TextOf) -> list[Bar]:
    """Return bars over time, labelled where a round time begins."""
    width = traffic["widthMs"]
    step = next((one for one in STEPS_MS if width * len(values) / one <= MOST_LABELS), STEPS_MS[-1])
    step = -(-step // width) * width
    pattern = "%H:%M:%S" if step < 60_000 else "%H:%M" if step < DAY_MS else "%Y-%m-%d"
    bars = []
    for at, value in zip(traffic["barsMs"], values, strict=True):
        # Midnight is called by the day that begins.
        label = moment_text(at, "%m-%d" if at % DAY_MS == 0 and step < DAY_MS else pattern)
        bars.append(Bar(value, moment_text(at), text_of(value), "" if at % step else label))
    return bars


def power_bars(powers: Sequence[dict[str, Any]], text_of: TextOf, most_labels: int) -> list[Bar]:
    """Return bars by power of two, labelled where they begin."""
    step = -(-len(powers) // most_labels)
    bars = []
    for number, bar in enumerate(powers):
        low, high, count = bar["low"], bar["high"], bar["messages"]
        name, label = "below 0", "< 0"
        if low is not None:
            name = text_of(low) if low == high else f"{text_of(low)} to {text_of(high)}"
            label = "" if number % step else text_of(low)
        bars.append(Bar(count, name, count_text(count), label, is_negative=low is None))
    return bars


def queue_bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return a bar for each queue."""
    return [
        Bar(row["messages"], f"queue {row['queueId']}", count_text(row["messages"])) for row in rows
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
    name, unit = next((one for one in _TIME_UNITS.items() if amount >= one[1]), ("ms", 1))
    sign = MINUS if milliseconds < 0 else ""
    return f"{sign}{float(f'{amount / unit:.3g}'):,g} {name}"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; a share above 0 is never shown as 0."""
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return "> 99.9 %" if part < whole and percent > 99.9 else f"{percent:.1f} %"


def moment_text(timestamp_ms: int | None, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time of the calendar, its first or last where there is no such time."""
    if timestamp_ms is None:
        return NOTHING
    at = min(max(timestamp_ms, 0), LAST_TIMESTAMP_MS)
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at)
    return moment.strftime(pattern)


def width_text(width_ms: int) -> str:
    """Return what a bar stands for, to come after "per"."""
    names = {1_000: "second", 60_000: "minute", 3_600_000: "hour", DAY_MS: "day"}
    return names.get(width_ms, duration_text(width_ms))


FILTERS: Final = {
    "count": count_text, "plural": plural, "size": size_text, "duration": duration_text,
    "share": share_text, "moment": moment_text, "width": width_text,
}  # fmt: skip


def report_page(findings: Row) -> str:
    """Return the page as HTML."""
    charts = {one.__name__: one for one in (bar_chart, time_bars, power_bars, queue_bars)}
    cells = report_tables.MAP_CELLS
    return _template().render(findings, shown=SHOWN, cells=cells, words=FILTERS, **charts)


@functools.cache
def _template() -> jinja2.Template:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names come from producers: they are escaped, and no character stays invisible.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    templates.filters |= FILTERS
    return templates.get_template("page.html.j2")
