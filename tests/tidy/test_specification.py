"""What modules, pages and tests cite of the specification is there: section, step, known defect.

Cited is what comments, docstrings and prose say; code and its other strings are not looked at.
"""

import ast
import functools
import io
import re
import tokenize

import pytest

from support.repository import ROOT, files_with, module_nodes

SECTION = re.compile(r"(?<![\w.#/-])([BF]\d{1,2}(?:\.\d+)?)(?:\((\d+)(?:\u2013(\d+))?\))?(?!\w)")
DEFECT = re.compile(r"\bK-[A-Z]+\d+b?")
PLACE = re.compile(r"\bspec\s+([\dA-Z](?:[\w.-]*\w)?)|(§\s?\S+)")
"""What is cited as a place of the specification, whatever it is."""

CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@functools.cache
def sections() -> dict[str, int]:
    """Return how many numbered steps each section of the specification has."""
    return {name: steps for name, steps, _ in headed()}


def headed() -> list[tuple[str, int, str]]:
    """Return (name, steps, text) of every section of docs/spec, in order."""
    found = []
    for page in ("files.md", "behaviour.md"):
        text = (ROOT / "docs" / "spec" / page).read_text("utf-8")
        for part in re.split(r"^#{2,3} (?=[BF]\d)", text, flags=re.MULTILINE)[1:]:
            heading, _, body = part.partition("\n")
            steps = [int(number) for number in re.findall(r"^(\d+)\. ", body, re.MULTILINE)]
            found.append((heading.split()[0], max(steps, default=0), body.strip()))
    return found


@functools.cache
def defects() -> frozenset[str]:
    """Return the ids of the rows of docs/compatibility.md."""
    page = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    return frozenset(re.findall(r"^\| (K-\w+)", page, re.MULTILINE))


def prose(path) -> str:
    """Return what a file says to a reader: of a module its comments and docstrings."""
    text = (ROOT / path).read_text("utf-8")
    if not (SECTION.search(text) or DEFECT.search(text) or PLACE.search(text)):
        return ""
    if path.suffix == ".md":
        return CODE.sub("", text)
    said = [
        node.value.value
        for node in module_nodes(path)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    said += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(said)


def unresolved(text: str) -> list[str]:
    """Return what a text cites and the specification does not have."""
    wrong = [
        match[0]
        for match in SECTION.finditer(text)
        if match[1] not in sections()
        or any(int(step) > sections()[match[1]] for step in match.groups()[1:] if step)
    ]
    wrong += [defect for defect in DEFECT.findall(text) if defect not in defects()]
    places = [match[1] or match[2] for match in PLACE.finditer(text)]
    return wrong + [
        place for place in places if not (SECTION.fullmatch(place) or DEFECT.fullmatch(place))
    ]


def cited_files():
    wanted = files_with(".py", ".md", under=("src", "docs", "tests", "README.md", "CHANGELOG.md"))
    return [path for path in wanted if path.name != "test_specification.py"]


def test_every_citation_leads_to_a_section_a_step_or_a_row():
    said = {str(path): prose(path) for path in cited_files()}
    said["specification.tsv"] = (ROOT / "tests" / "tidy" / "specification.tsv").read_text("utf-8")
    assert sum(len(SECTION.findall(text)) for text in said.values()) > 900
    wrong = {path: found for path, text in said.items() if (found := unresolved(text))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("of 4.9 (spec B16.9).", ["B16.9"]),
        ("of 4.9 (spec\nF33, F3).", ["F33"]),
        ("see B3.4(12) and B3.4(13)", ["B3.4(13)"]),
        ("all of B3.4(6\u201313)", ["B3.4(6\u201313)"]),
        ("without K-D99", ["K-D99"]),
        ("spec 2.4, spec F; a paper §1.4", ["2.4", "F", "§1.4"]),
        ("(spec B19, K-S5)", []),
    ],
)
def test_what_leads_nowhere_is_found(text, found):
    assert unresolved(text) == found


def test_every_section_stands_once_in_order_and_says_something():
    names = [name for name, _, _ in headed()]
    assert len(names) > 80
    assert sorted(names, key=lambda name: (name[0] == "B", *map(int, name[1:].split(".")))) == names
    assert len(set(names)) == len(names)
    assert [name for name, _, body in headed() if not body] == []
