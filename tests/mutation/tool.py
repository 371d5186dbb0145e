"""Breaks the product on purpose and sees whether the tests that should notice do.

Each mutation of the lists beside this file (``*.toml``) replaces one piece of text of ``src`` by
another that makes a line of docs/coverage.md, or a known defect's row of docs/compatibility.md,
false, and names the tests that must fail then. It contradicts a word of the line, and is chosen by
reading that, not the test:

    breaks  what is wrong with the product afterwards
    rows    the lines that are false then, as those pages name them
    file    below src/rocketstore; `old` occurs in it exactly once
    old     what is replaced
    new     by what
    tests   below tests; each of them must fail
    code    "plain" (the default): without anything compiled, as ROCKETSTORE_KERNELS=off does it;
            "compiled": with it, and built again where `file` is one of `native`

``make mutate`` runs all, ``make mutate CHOSEN="S0-19 retention"`` those of a line or of a list;
``CHOSEN="pipeline --longest-test 300"`` where Spark's tests have to share the machine. Where the
product is broken, tests wait a quarter of that for what may never come (support/patience.py).
A mutation that some test of its own survives is a hole in the tests: close it, or say in
docs/coverage.md what the line really rests on. Everything happens in a copy of the tree.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET  # of reports that our own pytest wrote
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COPIED = ("src", "tests", "docs", "pyproject.toml", "setup.py", "README.md")
LONGEST_TEST_S = 60
LONGEST_RUN_S = 300

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Mutation:
    """One way in which the product could be wrong."""

    breaks: str
    rows: tuple[str, ...]
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    code: str = "plain"
    of_list: str = ""

    @property
    def path(self) -> Path:
        return Path("src/rocketstore") / self.file


def load_mutations(directory: Path = HERE) -> list[Mutation]:
    """Return the mutations of all lists of a directory, in their order."""
    return [
        Mutation(
            **entry
            | {
                "rows": tuple(entry["rows"].split()),
                "tests": tuple(f"tests/{test}" for test in entry["tests"]),
                "of_list": path.stem,
            }
        )
        for path in sorted(directory.glob("*.toml"))
        for entry in tomllib.loads(path.read_text("utf-8"))["mutation"]
    ]


class Tree:
    """A copy of the repository in which the product may be broken."""

    def __init__(self, place: Path, longest_test_s: int = LONGEST_TEST_S) -> None:
        self.place = place
        self._longest_test_s = longest_test_s
        self._is_broken = False
        self._moment = 0
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                unwanted = shutil.ignore_patterns("__pycache__", "target", "node_modules")
                shutil.copytree(source, place / name, ignore=unwanted)
            else:
                shutil.copy2(source, place / name)

    @contextlib.contextmanager
    def broken_by(self, mutation: Mutation) -> Iterator[None]:
        """Break the product, and mend it afterwards."""
        path = self.place / mutation.path
        text = path.read_text("utf-8")
        if text.count(mutation.old) != 1:
            raise ValueError(f"{mutation.file} has {text.count(mutation.old)} of: {mutation.old}")
        is_built = mutation.code == "compiled" and path.parent.name == "native"
        self._write(path, text.replace(mutation.old, mutation.new), is_built=is_built)
        self._is_broken = True
        try:
            yield
        finally:
            self._is_broken = False
            self._write(path, text, is_built=is_built)

    def _write(self, path: Path, text: str, *, is_built: bool) -> None:
        path.write_text(text, "utf-8")
        # Bytecode is told from that of the text before by whole seconds, and what was built is not
        # built again unless its source is newer.
        self._moment = max(self._moment, int(time.time())) + 1
        os.utime(path, (self._moment, self._moment))
        if is_built:
            subprocess.run(
                [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=self.place, check=True
            )

    def run(self, tests: Iterable[str], code: str) -> dict[str, Outcome]:
        """Run tests; return what became of each, where one failed case fails the whole test.

        A run that does not end counts as a failure of all of them.

        Raises
        ------
        RuntimeError
            pytest did not get as far as running them.
        """
        named = {_name_in_report(test): test for test in tests}
        report = self.place / "report.xml"
        report.unlink(missing_ok=True)
        environment = os.environ | {"PYTHONPATH": str(self.place / "src")}
        environment["ROCKETSTORE_KERNELS"] = "off" if code == "plain" else "on"
        if self._is_broken:
            environment["ROCKETSTORE_PATIENCE"] = str(self._longest_test_s / 4)
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line",
            f"--timeout={self._longest_test_s}", f"--junitxml={report}", *named.values(),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=self.place, env=environment, capture_output=True, text=True,
                timeout=LONGEST_RUN_S + self._longest_test_s * len(named), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return dict.fromkeys(named.values(), "failed")
        if done.returncode < 0 or not report.is_file():
            if done.returncode in {2, 3, 4, 5}:
                raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
            return dict.fromkeys(named.values(), "failed")
        outcomes: dict[str, Outcome] = {}
        for case in ET.parse(report).iter("testcase"):
            name = named.get(f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}")
            if name is None:
                raise RuntimeError(done.stdout[-2000:])
            outcome: Outcome = "passed"
            if case.find("failure") is not None or case.find("error") is not None:
                outcome = "failed"
            elif case.find("skipped") is not None:
                outcome = "skipped"
            known = outcomes.get(name, outcome)
            outcomes[name] = "failed" if "failed" in {outcome, known} else min(outcome, known)
        if missing := set(named.values()) - set(outcomes):
            raise RuntimeError(f"not run: {sorted(missing)}\n{done.stdout[-2000:]}")
        return outcomes


def _name_in_report(test: str) -> str:
    path, _, name = test.partition("::")
    return f"{path.removesuffix('.py')}/{name}".replace("/", ".").replace("::", ".")


def useless_tests(tree: Tree, mutations: Iterable[Mutation]) -> list[str]:
    """Return the tests that do not pass although nothing is broken, or are skipped."""
    wanted: dict[str, list[str]] = {}
    for mutation in mutations:
        wanted.setdefault(mutation.code, []).extend(mutation.tests)
    return [
        f"{test}: {outcome} ({code} code, nothing broken)"
        for code, tests in wanted.items()
        for test, outcome in tree.run(tests, code).items()
        if outcome != "passed"
    ]


def survivors_of(tree: Tree, mutation: Mutation) -> list[str]:
    """Return the tests that do not notice."""
    with tree.broken_by(mutation):
        outcomes = tree.run(mutation.tests, mutation.code)
    return [test for test, outcome in outcomes.items() if outcome != "failed"]


def main() -> int:
    """Run the mutations of the lines or lists named, or all; 1 if one survived."""
    parser = argparse.ArgumentParser(description="Break the product; see whether tests notice.")
    parser.add_argument("chosen", nargs="*", help="lines of docs/coverage.md, or names of lists")
    parser.add_argument(
        "--longest-test", type=int, default=LONGEST_TEST_S, metavar="SECONDS",
        help="what is longer counts as failed; more where other work loads the machine",
    )  # fmt: skip
    arguments = parser.parse_args()
    chosen = set(arguments.chosen)
    mutations = [
        mutation
        for mutation in load_mutations()
        if not chosen or chosen & {mutation.of_list, *mutation.rows}
    ]
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        tree = Tree(Path(place), arguments.longest_test)
        if useless := useless_tests(tree, mutations):
            print(*useless, sep="\n")
            return 1
        survived = 0
        for number, mutation in enumerate(mutations, 1):
            not_noticed = survivors_of(tree, mutation)
            survived += bool(not_noticed)
            verdict = "SURVIVED" if not_noticed else "killed"
            line = f"{number:4}/{len(mutations)} {verdict:8} {mutation.file}: {mutation.breaks}"
            print(line, flush=True)
            for test in not_noticed:
                print(f"{'':14}not noticed by {test}", flush=True)
    lines = {row for mutation in mutations for row in mutation.rows}
    print(f"{len(mutations)} mutations of {len(lines)} lines, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
