"""What ``--help`` shows of each command."""

import inspect
import re
from collections.abc import Iterator

import pytest
from cyclopts import App

from rocketstore.cli.application import app, run

DESCRIBED = re.compile(r"^\w+\n((?: {4}.*\n?)+)", re.MULTILINE)


def commands(of: App = app, *words: str) -> Iterator[tuple[list[str], str]]:
    """Yield the words of every command, and the docstring of its function."""
    if of.default_command is not None:
        yield [*words], inspect.getdoc(of.default_command) or ""
    for word in of:
        if not word.startswith("-"):
            yield from commands(of[word], *words, word)


def test_all_that_is_written_of_an_option_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an annotation says of an option hides what the docstring says of it."""
    monkeypatch.setenv("COLUMNS", "1000")
    hidden = []
    for words, text in commands():
        assert run([*words, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.replace("│", "").split())
        for described in DESCRIBED.findall(text.partition("Parameters\n----------\n")[2]):
            said = " ".join(described.split())
            if said not in shown:
                hidden.append((words, said))
    assert not hidden
