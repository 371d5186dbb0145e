"""Elements of the page, built as a tree: what is text stays text.

Law: names of topics, tags, keys and files come from whoever wrote the store. They reach the page
only as text or attributes of this tree, which escapes them when it is written; characters that
cannot be seen, or that turn a line around, are spelt out.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable

Node = ET.Element | str | None

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidirectional overrides among them), halves of pairs."""


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


def element(tag: str, *children: Node, **attributes: object) -> ET.Element:
    """Return an element; None among children and attributes is left out.

    A name that ends in an underscore is one that Python keeps for itself, and another underscore
    stands for a hyphen: ``class_``, ``aria_label``.
    """
    made = ET.Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), visible(str(value)))
    return extend(made, children)


def extend(made: ET.Element, children: Iterable[Node]) -> ET.Element:
    """Append children to an element."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, ET.Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + visible(child)
        else:
            made.text = (made.text or "") + visible(child)
    return made


def svg(*children: Node, view_box: str, **attributes: object) -> ET.Element:
    """Return a drawing that stretches to the box it is in; text does not belong into it."""
    drawing = element("svg", *children, preserveAspectRatio="none", **attributes)
    drawing.set("viewBox", view_box)
    return drawing


def table(
    heads: Iterable[tuple[str, bool]], rows: Iterable[Iterable[Node]], *, caption: str
) -> ET.Element:
    """Return a table that scrolls by itself where it is too wide.

    Parameters
    ----------
    heads
        Title of each column, and whether it holds numbers.
    rows
        Cells; the first of each row is its head.
    caption
        What a screen reader announces.
    """
    columns = list(heads)
    body = element("tbody")
    for row in rows:
        line = element("tr")
        for number, (cell, (_, is_number)) in enumerate(zip(row, columns, strict=True)):
            kind = "n" if is_number else None
            head: dict[str, Any] = {"scope": "row"} if number == 0 else {}
            line.append(element("td" if number else "th", cell, class_=kind, **head))
        body.append(line)
    head_line = element(
        "tr",
        *(element("th", title, scope="col", class_="n" if n else None) for title, n in columns),
    )
    whole = element(
        "table", element("caption", caption, class_="unseen"), element("thead", head_line), body
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def document(title: str, style: str, body: ET.Element) -> str:
    """Return a whole page."""
    sheet = element("style")
    sheet.text = style  # our own, and HTML takes it as it is
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="rocketstore"),
        element("title", title),
        sheet,
    )
    page = element("html", head, body, lang="en")
    return "<!DOCTYPE html>\n" + ET.tostring(page, encoding="unicode", method="html") + "\n"
