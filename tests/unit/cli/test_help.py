"""What ``--help`` shows of each command."""

import inspect
import itertools
import os
import re
import subprocess
import sys

import pytest
from cyclopts import App
from rich.console import Console

from rocketstore.cli.application import COMMANDS, run
from support.cli_commands import commands
from support.patience import PATIENCE_S
from support.python_process import printed, run_python

DESCRIBED = re.compile(r"^\w+\n((?: {4}.*\n?)+)", re.MULTILINE)


def test_all_that_is_written_of_a_command_is_shown(capsys, monkeypatch):
    """A line of a list hides the docstring, and an annotation what that says of an option."""
    monkeypatch.setenv("COLUMNS", "1000")
    hidden = []
    for words, command in commands():
        text = inspect.getdoc(command.default_command) or ""
        assert run([*words, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.replace("│", "").split())
        before, _, parameters = text.partition("Parameters\n----------\n")
        for described in [before, *DESCRIBED.findall(parameters)]:
            said = " ".join(described.replace("``", "").split())
            if said not in shown:
                hidden.append((words, said))
    assert not hidden


def test_a_list_says_what_each_command_does():
    """Also of commands that are imported when they are used: in a process that used none."""
    groups = [[], *([name] for name, what, _ in COMMANDS if what == "app")]
    code = f"""
import os
from rocketstore.cli import application

for group in {groups}:
    if not os.fork():
        application.main([*group, "--help"])
    assert os.wait()[1] == 0
    print("LIST ENDS", flush=True)
"""
    shown = printed(code)
    *lists, rest = shown.split("LIST ENDS\n")
    assert (len(lists), rest) == (len(groups), "")
    for group, text in zip(groups, lists, strict=True):
        listed = [line.strip("│ ") for line in text.splitlines() if line.startswith("│ ")]
        assert listed, group
        assert [line for line in listed if re.fullmatch(r"[\w-]+", line)] == [], group


def test_paragraphs_are_filled_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setattr(App, "console", property(lambda _: Console(width=80)))
    for words, _ in commands():
        assert run([*words, "--help"]) == 0
        lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
        text = lines[2 : next(at for at, line in enumerate(lines) if line.startswith("╭"))]
        for line, following in itertools.pairwise(text):
            first_word = following.partition(" ")[0]
            assert not line or not following or len(f"{line} {first_word}") > 79, words


@pytest.mark.parametrize("columns", ["0", "1", "2"])
def test_help_ends_in_whatever_width(columns, capsys, monkeypatch):
    """What the parser uses loops for ever where fewer columns are left than it indents by."""
    monkeypatch.setattr(App, "console", property(lambda _: Console()))  # it keeps its first one
    for words in (["serve", "broker"], ["store", "verify"], []):
        monkeypatch.setenv("COLUMNS", columns)
        assert run([*words, "--help"]) == 0
        assert "Usage:" in capsys.readouterr().out
        monkeypatch.setenv("COLUMNS", "")
        monkeypatch.setattr(
            os, "get_terminal_size", lambda _=1: os.terminal_size((int(columns), 9))
        )
        assert run([*words, "--help"]) == 0
        assert "Usage:" in capsys.readouterr().out


def test_a_reader_of_help_may_leave_early():
    command = [sys.executable, "-m", "rocketstore", "serve", "broker", "--help"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, b"")


def test_a_usage_names_each_argument_as_the_table_below_it_does(capsys):
    assert run(["store", "import", "--help"]) == 0
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage == "Usage: rocketstore store import --topic STR [OPTIONS] STORE FILE..."


def test_no_command_takes_the_current_directory_for_a_variable_without_a_value(
    tmp_path, monkeypatch, capsys
):
    """What a shell makes of "$STORE" where it is not set."""
    monkeypatch.chdir(tmp_path)
    asked = []
    for words, _ in commands():
        assert run([*words, "--help"]) == 0
        places = re.findall(r"│[ *]+(STORE|ARCHIVE|PLACE) ", capsys.readouterr().out)
        for empty in range(len(places)):
            given = ["" if at == empty else "x" for at in range(len(places))]
            assert run([*words, *given]) == 2, words
            assert "the path is empty; name a directory" in capsys.readouterr().err, words
            asked.append(words)
        if words[0] != "pipeline" and places:  # which alone reaches further
            assert run([*words, *("s3://bucket/x" for _ in places)]) == 2, words
            assert "a URI is no directory" in capsys.readouterr().err, words
    assert len(asked) > 25
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["store"], ["message", "get"]])
def test_help_is_the_same_where_python_keeps_no_docstrings(words):
    shown = [
        run_python(*optimized, "-m", "rocketstore", *words, "--help", env={"COLUMNS": "100"}).stdout
        for optimized in ([], ["-OO"])
    ]
    assert shown[0].startswith("Usage:")
    assert shown[0] == shown[1]
