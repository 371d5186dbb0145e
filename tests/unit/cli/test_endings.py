"""How a command ends: interrupted, or without the streams that it usually has."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from rocketstore.cli.application import run
from rocketstore.events import get_logger
from rocketstore.storage.store import MessageStore

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class InterruptedInput:
    """Standard input at which the user presses Ctrl-C behind the first line."""

    @property
    def buffer(self) -> InterruptedInput:
        return self

    def __iter__(self):
        yield b"first\n"
        raise KeyboardInterrupt

    def readline(self, *_: int) -> bytes:
        raise KeyboardInterrupt

    read = readinto = read1 = readline


def test_an_interrupted_import_says_so_and_exits_130(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", InterruptedInput())
    command = ["store", "import", str(tmp_path / "store"), "-", "--topic", "t"]
    sizes = ["mappedFileSizeCommitLog=65536", "maxHashSlotNum=10", "maxIndexNum=40"]
    code = run([*command, *(part for size in sizes for part in ("--set", size))])
    captured = capsys.readouterr()
    assert code == 130
    assert captured.err == "rocketstore: interrupted; what was stored before stays\n"
    assert not (tmp_path / "store" / "abort").exists()


def test_what_the_system_refuses_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MessageStore.open(tmp_path).close()
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "checkpoint").mkdir()
    assert run(["store", "repair", str(tmp_path)]) == 3  # 1 would say that all is well now
    assert str(tmp_path / "checkpoint") in capsys.readouterr().err


def test_a_closed_stdout_keeps_no_command_from_its_work(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "rocketstore.cli", "store", "verify", str(tmp_path)],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(1),
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_closed_stderr_keeps_no_command_from_its_work(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()

    def command(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "rocketstore.cli", *arguments],
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.close(2),
            check=False,
        )

    assert command("store", "verify", str(tmp_path)).returncode == 0
    missing = command("store", "verify", str(tmp_path / "none"))
    assert (missing.returncode, missing.stdout) == (4, b"")


def test_what_the_store_logs_is_shown_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show"]) == run(["config", "show"]) == 0
    capsys.readouterr()
    get_logger("rocketstore.storage").warning("file.problem", problem="none")
    get_logger("rocketstore.storage").info("file.fine")
    assert capsys.readouterr().err == "rocketstore: file.problem problem=none\n"


def test_what_py4j_says_of_a_broken_call_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def log_as(path: str, message: str) -> None:
        record = logging.LogRecord("root", logging.ERROR, path, 1, message, None, None)
        logging.getLogger().handle(record)

    shown = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(shown)
    try:
        assert run(["config", "show"]) == 0
        log_as("/lib/py4j/java_gateway.py", "Exception while sending command.")
        log_as("/lib/other.py", "something else")
    finally:
        logging.getLogger().removeHandler(shown)
    assert capsys.readouterr().err == "something else\n"
