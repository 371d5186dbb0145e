"""The lists of mutations fit the product, the tests and the pages as they are today."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mutation.tool import load_mutations
from support.repository import FUNCTIONS, ROOT, known_tests, last_name, module_ast

MUTATIONS = load_mutations()
PAGES = ("coverage", "compatibility")

TEST = re.compile(r"`(tests/[\w/.-]+::[\w:]+)`")
LINE = re.compile(r"^\| ([SD][\d-]+(?:…\d+)?|K-[A-Z]+\d+b?) \|.*", re.MULTILINE)


def evidence() -> dict[str, str]:
    """Return the row of each line of the specification that has one, and of each known defect."""
    pages = [(ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in PAGES]
    return {match[1]: match[0] for page in pages for match in LINE.finditer(page)}


def test_a_mutation_changes_one_place_of_the_product():
    lost = []
    for mutation in MUTATIONS:
        source = (ROOT / mutation.path).read_text("utf-8")
        changed = source.replace(mutation.old, mutation.new)
        if source.count(mutation.old) != 1 or changed == source:
            lost.append(f"{mutation.of_list}.toml: {mutation.breaks} ({mutation.path})")
        elif mutation.path.suffix == ".py":
            # In a third of the time that `ast.parse` takes.
            compile(changed, mutation.path, "exec", dont_inherit=True)
        assert mutation.code in {"plain", "compiled"}
    assert lost == [], (
        "`old` of these should occur once in their files: the code changed, so say in the list how "
        "to break it now; where it cannot be wrong in that way any more, delete the mutation"
    )


def test_a_mutation_names_nothing_that_its_file_lacks(tmp_path):
    """Every test notices a `NameError`, whatever it is about."""
    for number, mutation in enumerate(MUTATIONS):
        if mutation.path.suffix == ".py":
            source = (ROOT / mutation.path).read_text("utf-8")
            place = tmp_path / f"{mutation.of_list}-{number}.py"
            place.write_text(source.replace(mutation.old, mutation.new), "utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_that_should_notice_exist():
    named = {test for mutation in MUTATIONS for test in mutation.tests}
    assert sorted(named - known_tests()) == []


def marks_of(test: str) -> Iterator[str]:
    """Return the marks of a test and those of its whole module."""
    path, _, name = test.partition("::")
    for node in module_ast(Path(path)).body:
        if isinstance(node, FUNCTIONS) and node.name == name:
            yield from map(ast.unparse, node.decorator_list)
        elif isinstance(node, ast.Assign) and last_name(node.targets[0]) == "pytestmark":
            yield ast.unparse(node.value)


def test_what_is_skipped_without_compiled_code_is_not_asked_to_notice_there():
    plain = {test for mutation in MUTATIONS if mutation.code == "plain" for test in mutation.tests}
    skipped = [
        test
        for test in plain
        if any("not kernels.is_compiled()" in mark for mark in marks_of(test))
    ]
    assert sorted(skipped) == [], 'their mutations need `code = "compiled"`'


def test_a_line_that_a_mutation_makes_false_names_one_of_its_tests():
    rows = evidence()
    wrong = [
        f"{line} ({mutation.breaks})"
        for mutation in MUTATIONS
        for line in mutation.rows
        if not any(f"`{test}`" in rows.get(line, "") for test in mutation.tests)
    ]
    assert wrong == []


def test_each_line_with_a_test_has_a_mutation_that_makes_it_false():
    broken = {line for mutation in MUTATIONS for line in mutation.rows}
    lines = {line for line, row in evidence().items() if TEST.search(row)}
    assert sorted(lines - broken) == [], "say in a list of tests/mutation how each can be false"
