"""The repository stays readable: short modules, short functions, names that mean something."""

import ast

from support.repository import (
    ROOT,
    files_with,
    ignored_but_tracked,
    module_ast,
    module_nodes,
    repository_files,
)

MODULE_LIMIT_LINES = 500
FUNCTION_LIMIT_LINES = 60
FILE_LIMIT_BYTES = 1024 * 1024

LONGER_MODULES: dict[str, str] = {}
LONGER_FUNCTIONS: dict[str, str] = {}
"""Path, or ``path::name``, and the reason why it may be longer."""

STORE_FILES = {"abort", "checkpoint", "known-ends", "lock"}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "misc", "shared"}
"""Names that say nothing of what is inside."""

PRODUCT = ("src", "bench", "scripts")


def line_count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function, its docstring left out: documentation is no length."""
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        lines -= first.end_lineno - first.lineno + 1
    return lines


def functions():
    for path in files_with(".py"):
        for node in module_nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{path}::{node.name}", line_count(node)


def test_modules_fit_in_500_lines():
    long = {
        str(path): lines
        for path in files_with(".py", under=PRODUCT)
        if (lines := (ROOT / path).read_text("utf-8").count("\n")) > MODULE_LIMIT_LINES
    }
    assert set(long) <= set(LONGER_MODULES), long


def test_functions_fit_on_a_screen():
    long = {name: lines for name, lines in functions() if lines > FUNCTION_LIMIT_LINES}
    assert set(long) <= set(LONGER_FUNCTIONS), long


def test_modules_are_named_after_what_is_in_them():
    named = [
        path
        for path in files_with(".py")
        if EMPTY_NAMES & {*path.parts[:-1], *path.stem.strip("_").split("_")}
    ]
    assert not named


def test_no_file_is_larger_than_a_mebibyte():
    large = [path for path in repository_files() if (ROOT / path).stat().st_size > FILE_LIMIT_BYTES]
    assert not large


def test_no_generated_file_is_tracked():
    assert not ignored_but_tracked()
    generated = [
        path
        for path in repository_files()
        if path.suffix in {".pyc", ".so", ".class", ".jar", ".nbi", ".nbc", ".egg-info"}
    ]
    assert not generated
    # A call whose argument was taken for a path leaves a store where the tests were started.
    stores = [path.parent for path in repository_files() if path.name in STORE_FILES]
    assert [place for place in stores if not place.is_relative_to("tests")] == []


def test_every_module_says_what_it_is():
    silent = [
        path
        for path in files_with(".py", under=("src",))
        if (ROOT / path).read_text("utf-8").strip() and not ast.get_docstring(module_ast(path))
    ]
    assert silent == []


def test_no_two_modules_and_no_two_classes_of_the_pipeline_share_a_name():
    paths = [
        path
        for path in files_with(".py", under=("src",))
        if path.is_relative_to("src/rocketstore/pipeline")
    ]
    modules = [path.stem for path in paths if path.stem != "__init__"]
    classes = [
        node.name for path in paths for node in module_nodes(path) if isinstance(node, ast.ClassDef)
    ]
    assert modules
    assert classes
    for names in (modules, classes):
        assert not {name for name in names if names.count(name) > 1}
