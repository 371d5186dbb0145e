"""The page: one file that needs nothing else, neither network nor script."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.pipeline.jobs.report import health, names, spread, traffic
from rocketstore.pipeline.jobs.report.buckets import MINUTE_MS, SECOND_MS
from rocketstore.pipeline.jobs.report.markup import Node, document, element, extend
from rocketstore.pipeline.jobs.report.tally import EXACT_VALUES, TIME_ROWS
from rocketstore.pipeline.jobs.report.timeline import Timeline, timeline
from rocketstore.pipeline.jobs.report.wording import (
    NOTHING,
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


_RECORDS_NOTE: Final = (
    "A message is counted where its record stands: one that was delayed, given back or committed "
    "by a transaction has a record in each topic it went through."
)


class Findings(NamedTuple):
    """What the page shows.

    Attributes
    ----------
    rows
        The rows of each table, times under names that end in ``Ms``.
    seconds
        Traffic in narrower buckets than table ``traffic``, maybe none.
    cells
        Damaged bytes by file and cell.
    """

    summary: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]]
    seconds: list[dict[str, Any]]
    cells: list[dict[str, Any]]


def drawn(findings: Findings) -> dict[str, Any]:
    """Return the numbers that the page draws and no table has, as JSON can hold them."""
    line = _line(findings)
    bars: list[dict[str, Any]] = []
    if line is not None:
        axis = line.axis
        bars = [
            {
                "startTimestamp": _iso(axis.start_ms + number * axis.width_ms),
                "widthMs": axis.width_ms,
                "messages": messages,
                "bytes": size,
            }
            for number, (messages, size) in enumerate(zip(line.messages, line.sizes, strict=True))
            if messages
        ]
    return {
        "traffic": bars,
        "trafficMost": max(bars, key=lambda bar: bar["messages"], default=None),
        "trafficNotDrawn": 0 if line is None else line.left_out,
        "sizes": spread.size_bars(findings.rows["sizes"]),
        "latencies": spread.latency_bars(findings.rows["latencies"]),
        "damage": findings.cells,
    }


def report_page(findings: Findings, *, tables_name: str, json_name: str) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    findings
        What was counted.
    tables_name, json_name
        Directory and file beside the page, to tell of.
    """
    summary = findings.summary
    name = ", ".join(store["brokerName"] for store in summary["stores"][:3])
    name += ", …" if len(summary["stores"]) > 3 else ""
    line = _line(findings)
    sections = _sections(findings, line)
    tiles = _tiles(summary, line) if summary["messages"] or summary["damagedRanges"] else None
    body = element(
        "body",
        element("a", "Skip to the figures", href="#figures", class_="skip"),
        extend(element("header"), _header(summary, name)),
        _navigation(sections) if sections else None,
        extend(element("main", id="figures"), [tiles, *sections]),
        _footer(findings, tables_name, json_name),
    )
    style = resources.files(__package__ or "").joinpath("page.css").read_text("utf-8")
    return document(f"{name}: message store report", style, body)


def _line(findings: Findings) -> Timeline | None:
    rows = findings.rows
    if not rows["minutes"]:
        return None
    return timeline(rows["minutes"], rows["traffic"], findings.seconds)


def _header(summary: dict[str, Any], name: str) -> list[Node]:
    if summary["messages"]:
        what = (
            f"{plural(summary['messages'], 'message')} of {plural(summary['topics'], 'topic')} in "
            f"{plural(summary['queues'], 'queue')}"
        )
        first, last = summary["firstStoreMs"], summary["lastStoreMs"]
        lede = element("p", what, *_range(first, last), ".", class_="lede")
    else:
        lede = element("p", "This store holds no messages.", class_="lede")
    places = ", ".join(store["location"] for store in summary["stores"][:5])
    more = len(summary["stores"]) - 5
    return [
        element("p", "Message store report", class_="eyebrow"),
        element("h1", name),
        lede,
        _verdict(summary),
        element("p", places + (f" and {more} more" if more > 0 else ""), class_="place"),
    ]


def _range(first_ms: int | None, last_ms: int | None) -> list[Node]:
    """Return when messages were stored, each time on one line."""
    if first_ms is None or last_ms is None:
        return []
    first, last = moment_text(first_ms), moment_text(last_ms)
    if first == last:
        return [", stored ", element("time", f"{first} UTC", datetime=_iso(first_ms))]
    end = last.partition(" ")[2] if first[:10] == last[:10] else last
    return [
        ", stored ",
        element("time", first, datetime=_iso(first_ms)),
        " to ",
        element("time", f"{end} UTC", datetime=_iso(last_ms)),
        f" ({duration_text(last_ms - first_ms)})",
    ]


def _iso(timestamp_ms: int) -> str:
    return moment_text(timestamp_ms).replace(" ", "T") + "Z"


def _verdict(summary: dict[str, Any]) -> Element:
    files = plural(summary["files"], "file")
    if summary["damagedRanges"]:
        ranges = plural(summary["damagedRanges"], "damaged range")
        where = element(
            "span",
            element("a", ranges, href="#damage"),
            f", {size_text(summary['damagedBytes'])}, in {count_text(summary['damagedFiles'])} of "
            f"{files}. The figures are those of the intact messages.",
        )
        return element("p", element("b", "Damage."), " ", where, class_="verdict bad")
    if not summary["files"]:
        return element("p", "No CommitLog file is there.", class_="verdict")
    text = f"Every message in {files} ({size_text(summary['fileBytes'])}) agrees with its CRC."
    return element("p", element("b", "No damage found."), f" {text}", class_="verdict good")


def _sections(findings: Findings, line: Timeline | None) -> list[Element]:
    rows, summary = findings.rows, findings.summary
    found: list[Element | None] = []
    if line is not None:
        found.append(traffic.over_time(line, summary))
    if summary["messages"]:
        found += [
            traffic.by_topic(rows["topics"], rows["queues"], line),
            names.by_tag(rows["tags"], rows["allTags"], summary),
            names.by_key(rows["keys"], rows["allKeys"], summary),
            spread.sizes(rows["sizes"], summary),
            spread.latencies(rows["latencies"], summary),
            health.delays(rows["delays"], summary),
            health.retries(rows["retries"], summary),
        ]
    if rows["files"]:
        found.append(health.damage(rows["files"], rows["damage"], findings.cells, summary))
    return [one for one in found if one is not None]


def _navigation(sections: list[Element]) -> Element:
    links = [
        element("a", section.findtext("h2") or "", href=f"#{section.get('id')}")
        for section in sections
    ]
    return element("nav", *links, aria_label="Sections")


def _tiles(summary: dict[str, Any], line: Timeline | None) -> Element:
    size, latency = summary["bodySize"], summary["latency"]
    ranges, files = summary["damagedRanges"], summary["damagedFiles"]
    damaged = f"{plural(ranges, 'range')} in {plural(files, 'file')}" if ranges else "none found"
    retried = "none in the log"
    if summary["retries"]:
        retried = f"{share_text(summary['retries'], summary['messages'])} of the messages"
    waiting = "none was delayed"
    if summary["scheduled"]:
        overdue, seen = count_text(summary["overdue"]), count_text(summary["scheduled"])
        waiting = f"{overdue} overdue, {seen} in the log"
    tiles = [
        ("Messages", count_text(summary["messages"]), f"{size_text(summary['bytes'])} of log"),
        _peak_tile(line),
        (
            "Body size, median",
            bound_text(size_text(size["p50"]), is_exact=size["isExact"]),
            f"99 % ≤ {size_text(size['p99'])}, largest {size_text(size['most'])}",
        ),
        (
            "Latency, median",
            bound_text(duration_text(latency["p50"]), is_exact=latency["isExact"]),
            f"99 % ≤ {duration_text(latency['p99'])}, longest {duration_text(latency['most'])}",
        ),
        (
            "Delayed, waiting",
            count_text(summary["waiting"]),
            waiting,
        ),
        (
            "Retries",
            count_text(summary["retries"]),
            retried,
        ),
        (
            "Dead letters",
            count_text(summary["deadLetters"]),
            "given up by a consumer group" if summary["deadLetters"] else "none in the log",
        ),
        (
            "Damage",
            size_text(summary["damagedBytes"]),
            damaged,
        ),
    ]
    alarming = {"Damage": summary["damagedRanges"], "Dead letters": summary["deadLetters"]}
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", title),
                element("dd", value, class_="figure"),
                element("dd", note, class_="note"),
                class_="alarm" if alarming.get(title) else None,
            )
            for title, value, note in tiles
        ),
        class_="tiles",
    )


def _peak_tile(line: Timeline | None) -> tuple[str, str, str]:
    if line is None:
        return "Busiest minute", NOTHING, "no times are known"
    number = max(range(line.axis.bar_count), key=line.messages.__getitem__)
    rate = width_text(line.axis.width_ms)
    at = moment_text(line.axis.start_ms + number * line.axis.width_ms)
    return f"Most per {rate}", count_text(line.messages[number]), f"from {at}"


def width_text(width_ms: int) -> str:
    """Return what a bar stands for, to come after "per"."""
    names = {SECOND_MS: "second", MINUTE_MS: "minute", 60 * MINUTE_MS: "hour"}
    return names.get(width_ms, duration_text(width_ms))


def _footer(findings: Findings, tables_name: str, json_name: str) -> Element:
    summary = findings.summary
    notes = [
        f"Counted {moment_text(summary['reportedMs'], with_zone=True)} from the CommitLog alone.",
        "All times are UTC; a KiB is 1,024 bytes.",
        f"Every number on this page is in {json_name}; shares and differences follow from those.",
        f"Every table is in {tables_name}/ as Parquet.",
        f"Percentiles are exact, unless a topic has more than {count_text(EXACT_VALUES)} values.",
        "Those of more, marked ≤, are at most 12.5 % too high, never too low: buckets' upper ends.",
        _RECORDS_NOTE,
    ]
    kept = (("Traffic", "minutesWidthMs"), ("Traffic of topics", "trafficWidthMs"))
    for what, name in kept:
        if summary[name] > MINUTE_MS:
            notes.append(
                f"{what} is kept in steps of {duration_text(summary[name])}: by the minute it "
                f"would have more than {count_text(TIME_ROWS)} rows."
            )
    if summary["withoutStoreTime"]:
        notes.append(
            f"{plural(summary['withoutStoreTime'], 'message')} state a store time before 1970 or "
            "behind the year 9999, and are in no figure by time."
        )
    if summary["namesCut"]:
        notes.append(
            f"{plural(summary['namesCut'], 'tag or key', 'tags and keys')} longer than "
            f"{summary['nameMaxBytes']} bytes were counted by their beginning."
        )
    listed = element("ul", *(element("li", note) for note in notes))
    return element("footer", element("h2", "How this was counted"), listed)
