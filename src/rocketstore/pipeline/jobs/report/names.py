"""Sections on the tags and keys of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.pipeline.jobs.report import charts
from rocketstore.pipeline.jobs.report.markup import Node, element, table
from rocketstore.pipeline.jobs.report.traffic import more_rows, section
from rocketstore.pipeline.jobs.report.wording import count_text, plural, share_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from xml.etree.ElementTree import Element

    Row = dict[str, Any]

NAME_ROWS: Final = 20
"""More are in the tables beside the page."""


def by_tag(tags: list[Row], totals: list[Row], summary: Row) -> Element | None:
    """Return the most frequent tags; nothing when no message has one."""
    tagged = [row for row in tags if row["tags"] is not None]
    missed = summary["tagsMissedAtMost"]
    if not tagged and not missed:
        return None
    total = sum(row["messages"] for row in tags)
    without = total - sum(row["messages"] for row in tagged)
    totals = [row for row in totals if row["tags"] is not None]
    text = f"{plural(len(totals), 'tag')}; {_share_without(without, total)} have none."
    if missed:
        text = (
            "There are too many different tags to keep all, so each count may be up to "
            f"{count_text(missed)} low for each topic, and a tag seen less often may be missing."
        )
    return section(
        "tags",
        "Tags",
        element("p", text, class_="aside"),
        *_name_tables("Tag", "tags", tagged, totals),
        more_rows(tagged, NAME_ROWS, "tags"),
    )


def _share_without(without: int, total: int) -> str:
    return (
        f"{plural(without, 'message')} ({share_text(without, total)})" if without else "0 messages"
    )


def by_key(keys: list[Row], totals: list[Row], summary: Row) -> Element | None:
    """Return the most frequent keys; nothing when no message has one."""
    if not summary["keys"]:
        return None
    missed = summary["keysMissedAtMost"]
    text = f"{plural(summary['keys'], 'key')} of messages counted"
    if not missed:
        text += ", exactly."
    elif keys:
        text += (
            f"; there are too many different ones to keep all, so each count may be up to "
            f"{count_text(missed)} low for each topic, and a key seen less often may be missing."
        )
    else:
        text += f": none of them was seen more than {plural(missed, 'time')}."
    return section(
        "keys",
        "Top keys",
        element("p", text, class_="aside"),
        *_name_tables("Key", "key", keys, totals),
    )


def _name_tables(title: str, name: str, rows: list[Row], totals: list[Row]) -> list[Node]:
    """Return the most frequent names of topics, and over all topics where that is not the same."""
    if not rows:
        return []
    kind = title.lower()
    found: list[Node] = []
    if any(row["topics"] > 1 for row in totals):
        heads = ((f"{title}, all topics", False), ("Topics", True), ("Messages", False))
        lines: Iterable[list[Node]] = (
            [
                element("bdi", row[name], title=row[name]),
                count_text(row["topics"]),
                charts.meter(row["messages"], totals[0]["messages"], count_text(row["messages"])),
            ]
            for row in totals[:NAME_ROWS]
        )
        found.append(table(heads, lines, caption=f"Most frequent {kind}s over all topics"))
    heads = ((title, False), ("Topic", False), ("Messages", False))
    lines = (
        [
            element("bdi", row[name], title=row[name]),
            element("bdi", row["topic"], title=row["topic"]),
            charts.meter(row["messages"], rows[0]["messages"], count_text(row["messages"])),
        ]
        for row in rows[:NAME_ROWS]
    )
    found.append(table(heads, lines, caption=f"Most frequent {kind}s of topics"))
    return found
