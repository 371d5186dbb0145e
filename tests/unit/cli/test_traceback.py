"""An error that nobody foresaw can be traced from the command line."""

from pathlib import Path

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run
from rocketstore.errors import SparkJobError
from support.golden_stores import golden_root


@pytest.fixture
def command(monkeypatch):
    def fail(*_, **__):
        cause = ValueError("what a worker ran into")
        raise SparkJobError("Spark gave the job up: ValueError") from cause

    monkeypatch.setattr(pipeline, "session", lambda *_, **__: None)
    monkeypatch.setattr(pipeline, "audit", fail, raising=False)
    return ["pipeline", "audit", str(golden_root("basic"))]


@pytest.mark.parametrize("place", ["", "gone"])
def test_the_sentence_names_the_file_that_has_the_stack_or_why_it_is_not_kept(
    command, capsys, monkeypatch, tmp_path, place
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / place))
    assert run(command) == SparkJobError.exit_code
    first, second = capsys.readouterr().err.splitlines()
    assert first == "rocketstore: Spark gave the job up: ValueError"
    assert "--traceback" in second
    (kept,) = tmp_path.glob("rocketstore-*.log") if not place else [place]
    assert str(kept) in second
    assert ("could not be kept (" if place else str(tmp_path)) in second
    assert place or "what a worker ran into" in Path(kept).read_text("utf-8")


def test_traceback_shows_it_at_once(command, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["store", "info", command[-1], "--traceback"]) == 2
    assert run([*command, "--traceback"]) == SparkJobError.exit_code
    assert "ValueError: what a worker ran into" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
