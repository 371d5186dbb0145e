"""The pages that say what is proved: each test exists, no line of the specification is left out."""

import re
from pathlib import Path

from support.repository import ROOT, files_with, known_tests

SPECIFICATION = Path(__file__).with_name("specification.tsv")
COVERAGE = "coverage.md"
COMPATIBILITY = "compatibility.md"

ID = re.compile(r"\b(?:S\d-\d+(?:…\d+)?|D\d+|K-[A-Z]+\d+b?)(?![\w…])")
TEST = re.compile(r"`(tests/[\w/.-]+::[\w:]+)`")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def specification(*kinds: str) -> dict[str, str]:
    """Return the sections of each line of the specification, by its id; of the `kinds` only."""
    lines = SPECIFICATION.read_text("utf-8").splitlines()
    found = (line.partition("\t") for line in lines if line.startswith(kinds))
    return {name: sections for name, _, sections in found}


def rows(name: str) -> list[tuple[str, str, list[str]]]:
    """Return (heading, first cell, tests named) of every table row of a page."""
    heading, found = "", []
    for line in page(name).splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("|") and set(line) - set("|-: "):
            found.append((heading, line.split("|")[1].strip(), TEST.findall(line)))
    return found


def test_every_test_that_a_page_names_exists():
    texts = {one: (ROOT / one).read_text("utf-8") for one in files_with(".md")}
    named = {(one.name, test) for one, text in texts.items() for test in TEST.findall(text)}
    assert {COVERAGE, COMPATIBILITY, "faults.md"} <= {name for name, _ in named}
    assert sorted(one for one in named if one[1] not in known_tests()) == []


def test_coverage_has_every_line_of_the_specification():
    wanted = specification("S", "D").keys()
    assert len(wanted) == 395
    listed = {line for _, cell, _ in rows(COVERAGE) for line in ID.findall(cell)}
    assert sorted(wanted - listed) == []
    assert sorted(listed - wanted) == []


def test_every_line_that_is_no_background_has_a_test():
    without = [
        cell
        for heading, cell, tests in rows(COVERAGE)
        if ID.search(cell) and heading != "Background" and not tests
    ]
    assert without == []


def test_compatibility_has_a_row_for_every_known_defect():
    wanted = specification("K-").keys()
    assert len(wanted) > 80
    listed = [line for _, cell, _ in rows(COMPATIBILITY) for line in ID.findall(cell)]
    assert sorted(wanted - set(listed)) == []
    assert sorted(line for line in set(listed) if listed.count(line) > 1) == []


def test_every_defect_that_is_called_fixed_or_kept_has_a_test():
    states = {"fixed", "partly", "kept"}
    without = []
    for line in page(COMPATIBILITY).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("| K-") and states & set(cells) and not TEST.search(line):
            without.append(cells[1])
    assert without == []
