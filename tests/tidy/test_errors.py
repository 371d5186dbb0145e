"""Every error class is there for a reason, and what is logged as an error says what to do next."""

import ast
import builtins
import functools
import inspect
import re

import pytest

from rocketstore import errors
from rocketstore.events import NEXT, get_logger
from support.page_tables import table_with
from support.repository import files_with, last_name, module_nodes

ERRORS = sorted(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.RocketStoreError)
)
BASES = {base.__name__ for name in ERRORS for base in getattr(errors, name).__mro__[1:]}
"""Classes that others extend need not be raised themselves."""

SOURCES = [path for path in files_with(".py", under=("src",)) if path.name != "errors.py"]


@functools.cache
def made() -> set[str]:
    """Return the names of all classes that some module calls, by which an error is made."""
    called: set[str] = set()
    for path in SOURCES:
        for node in module_nodes(path):
            if isinstance(node, ast.Call):
                called.add(last_name(node.func))
            elif isinstance(node, ast.Raise) and node.exc is not None:
                called.add(last_name(node.exc))
    return called


def promised() -> set[str]:
    """Return the names in all ``Raises`` sections."""
    words: set[str] = set()
    for path in SOURCES:
        for node in module_nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                _, _, raises = (ast.get_docstring(node) or "").partition("Raises\n------")
                words |= set(re.findall(r"\w+", raises))
    return words


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_raised_somewhere(name):
    assert name in made() or name in BASES


def test_the_page_has_every_error_with_its_exit_code():
    rows = table_with("reference/errors.md", "error", "below", "exit code", "retriable")
    page = {
        tuple(row[c].strip("`") for c in ("error", "below", "exit code", "retriable"))
        for row in rows
    }
    tree = set()
    for name in ERRORS:
        kind = getattr(errors, name)
        parent = kind.__bases__[0].__name__ if kind.__base__ is not Exception else "-"
        tree.add((name, parent, str(kind.exit_code), "yes" if kind.retriable else "no"))
    assert page == tree


def test_what_a_docstring_promises_to_raise_exists():
    invented = {
        name
        for name in promised()
        if name.endswith("Error") and name not in ERRORS and not hasattr(builtins, name)
    }
    assert not invented


def logged(level: str) -> list[tuple[str, str, set[str | None]]]:
    """Return of each line of the log its place, its event and its fields."""
    return [
        (
            f"{path}:{node.lineno}",
            ast.literal_eval(node.args[0]),
            {one.arg for one in node.keywords},
        )
        for path in SOURCES
        for node in module_nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"_log.{level}"
    ]


@pytest.mark.parametrize("level", ["error", "warning"])
def test_a_warning_and_an_error_of_the_log_say_what_happens_next_or_what_to_do(level):
    """Lines with a traceback do by themselves (`rocketstore.events`)."""
    lines = logged(level)
    silent = [
        (place, event)
        for place, event, fields in lines
        if not {"next", "hint", "exc_info"} & fields and event not in NEXT
    ]
    assert not silent, "say it by `next` or `hint`, or in `events.NEXT`"
    assert len(lines) > 10


def test_what_is_said_of_warnings_and_errors_is_of_those_that_there_are():
    lines = logged("warning") + logged("error")
    quiet = {event for _, event, fields in lines if not {"next", "hint", "exc_info"} & fields}
    assert quiet == NEXT.keys()


def test_a_warning_is_logged_with_its_next_step(caplog):
    log = get_logger("rocketstore.somewhere")
    log.warning("put.slow", took_ms=700)
    log.warning("spark.environment", hint="install another one")
    first, second = (record.fields for record in caplog.records)
    assert first == {"took_ms": 700, "next": NEXT["put.slow"]}
    assert second == {"hint": "install another one"}
