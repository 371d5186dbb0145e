"""What commands say on stderr, where other threads log at the same time."""

import ast
import errno
import io
import os
import sys

import pytest

from rocketstore.cli.wording import complain, print_on_stderr
from support.repository import ROOT


class Writes(io.StringIO):
    """A stream that keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all.append(text)
        return len(text)


@pytest.mark.parametrize(
    ("say", "line"), [(print_on_stderr, "ready\n"), (complain, "rocketstore: ready\n")]
)
def test_a_line_is_one_write(monkeypatch, say, line):
    stream = Writes()
    monkeypatch.setattr(sys, "stderr", stream)
    say("ready")
    assert stream.all == [line]


@pytest.mark.parametrize("why", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_a_line_that_cannot_be_written_is_lost(monkeypatch, why):
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(why, os.strerror(why))

    monkeypatch.setattr(sys, "stderr", Full())
    complain("ready")


def test_no_command_prints_on_stderr_by_print():
    """`print` writes a line and its end apart: a script that waits for "ready" waits forever."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "src/rocketstore").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "print" and any(word.arg == "file" for word in node.keywords)
    ]
    assert found == []


def test_no_text_controls_the_terminal(capsys):
    """The name of a file that lies in a store, say."""
    complain("store/\x1b[2J\x07: damaged\nnext: repair it")
    assert capsys.readouterr().err == "rocketstore: store/\\x1b[2J\\x07: damaged\nnext: repair it\n"
