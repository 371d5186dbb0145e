"""How far a command is: said on a terminal, and nowhere else."""

import pytest

from rocketstore.cli.progress import progress
from support.terminal import Terminal


@pytest.mark.parametrize(("unit", "said"), [("bytes", "MB"), ("tasks", "tasks/s")])
def test_a_command_shows_how_far_it_is(unit, said, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress("scanning", total=100_000_000, unit=unit) as advance:
        advance(50_000_000)
    assert "scanning" in terminal.getvalue()
    assert said in terminal.getvalue()


def test_nothing_is_said_where_nobody_looks(capsys):
    with progress("scanning", total=1) as advance:
        advance(1)
    assert capsys.readouterr().err == ""
