"""The repository itself as tests look at it: its files, and its tests by name.

Files are those that git tracks or would track; a file that .gitignore names is not looked at.
"""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.skipping import skip_but_in_ci

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """Return every file of the repository, relative to its root."""
    return _git_files("--cached", "--others", "--exclude-standard")


def ignored_but_tracked() -> tuple[Path, ...]:
    """Return the tracked files that .gitignore says are generated."""
    return _git_files("--cached", "--ignored", "--exclude-standard")


def _git_files(*options: str) -> tuple[Path, ...]:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        skip_but_in_ci(f"the files of the repository are not known: {done.stderr.strip()}")
    # A file may be deleted and not yet committed.
    names = sorted(name for name in set(done.stdout.split("\0")) if name)
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def files_with(*suffixes: str, under: tuple[str, ...] = ()) -> list[Path]:
    """Return the files with one of `suffixes`, below one of the directories `under` if given."""
    return [
        path
        for path in repository_files()
        if path.suffix in suffixes and (not under or path.parts[0] in under)
    ]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def module_ast(path: Path) -> ast.Module:
    """Return the syntax tree of a module of the repository."""
    return ast.parse((ROOT / path).read_text("utf-8"), str(path))


@functools.cache
def module_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module of the repository; to walk a tree takes as long as to parse."""
    return tuple(ast.walk(module_ast(path)))


@functools.cache
def known_tests() -> frozenset[str]:
    """Return ``path::name`` of every test function, as pytest names it, without importing any."""
    return frozenset(
        f"{path}::{name}"
        for path in files_with(".py", under=("tests",))
        for name in _tests_in(module_ast(path).body)
    )


def _tests_in(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from (f"{node.name}::{name}" for name in _tests_in(node.body))
        elif isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.Assign) and last_name(node.value) == "TestCase":
            # How a state machine of hypothesis becomes a test.
            yield f"{last_name(node.targets[0])}::runTest"


def last_name(node: ast.expr) -> str:
    """Return the name that an expression ends with; `ast.unparse` takes much longer."""
    return getattr(node, "attr", getattr(node, "id", ""))
