"""How far a command is: said on a terminal, and nowhere else."""

from __future__ import annotations

import pytest

from rocketstore.cli.progress import job_progress
from support.terminal import Terminal


@pytest.mark.parametrize(("unit", "said"), [("bytes", "MB"), ("tasks", "tasks/s")])
def test_a_job_shows_how_far_it_is_once_it_knows_how_much_there_is(
    unit: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with job_progress("auditing", unit=unit) as progress:
        assert progress is not None
        before = terminal.getvalue()
        progress(50_000_000, 100_000_000)
    assert "auditing" in before
    assert said not in before
    assert "/?" not in before
    assert said in terminal.getvalue()


def test_nothing_is_said_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with job_progress("auditing") as progress:
        assert progress is None
    assert capsys.readouterr().err == ""
