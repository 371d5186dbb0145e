"""How a command's process begins and ends: its threads; interrupted, without its streams."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rocketstore import Message, StoreConfig
from rocketstore.cli.application import _interrupt_again, main, run
from rocketstore.events import get_logger
from rocketstore.message_store import MessageStore
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.storage.store import BaseStore
from support.patience import PATIENCE_S
from support.python_process import run_python


def test_a_command_that_uses_numpy_has_none_of_its_idle_threads(tmp_path):
    MessageStore.open(tmp_path).close()
    code = f"""
import atexit, os, sys
atexit.register(lambda: print("numpy" in sys.modules, os.listdir("/proc/self/task")))
from rocketstore.cli import main
main(["store", "verify", {str(tmp_path)!r}])
"""
    usual = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=usual, capture_output=True, text=True, check=True,
        timeout=PATIENCE_S,
    ).stdout.splitlines()[-1]  # fmt: skip
    assert said.startswith("True ")
    assert said.count(",") == 0, "more than the one thread of Python"


@pytest.mark.parametrize("door", ["rocketstore", "rocketstore.cli"])
@pytest.mark.parametrize(
    ("imported", "swallowed"),
    [("any", False), *itertools.product(["cyclopts", "rocketstore.cli.wording"], [False, True])],
)
def test_an_interrupt_while_the_command_line_is_imported_ends_it_without_a_traceback(
    door, imported, swallowed
):
    code = f"""
import __future__, runpy, signal, sys, weakref

class Interrupt:
    def find_spec(self, name, *_):
        is_at = not name.startswith("rocketstore") if {imported == "any"} else name == {imported!r}
        if is_at and {swallowed}:
            gone = Interrupt()
            kept = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGINT))
        elif is_at:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
runpy.run_module({door!r}, run_name="__main__")
"""
    done = run_python("-c", code, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rocketstore: interrupted\n")


@pytest.mark.parametrize("late", ["gc.disable", "sys.exit"])
def test_nor_does_one_before_the_command_begins_or_after_its_end_show_a_traceback(late):
    code = f"""
import gc, signal, sys
from rocketstore.cli import main
{late} = lambda *_: signal.raise_signal(signal.SIGINT)
main(["--version"])
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stderr) == (130, "rocketstore: interrupted\n")


def test_a_command_without_its_extra_says_what_to_install(tmp_path):
    store, archive, out = (tmp_path / name for name in ("store", "archive", "out"))
    with MessageStore.open(store, StoreConfig.small()) as opened:
        opened.put(Message(topic="orders", body=b"1"))
    for table in ("messages", "extents"):
        (archive / table / "_delta_log").mkdir(parents=True)
    commands = (f"audit {store}", f"archive {store} {out}", f"rebuild {store}", f"report {store}",
                f"restore {archive} {out}")  # fmt: skip
    packages = ("pyarrow", "pyspark", "duckdb", "deltalake")
    code = f"""
import os, sys
from rocketstore.cli import main

for command in {commands}:
    for missing in {packages}:
        if not os.fork():
            sys.modules.update({{missing: None, "pyspark": None}})  # Spark is not started
            main(["pipeline", *command.split()])
        print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = run_python("-c", code)
    assert done.stdout.split() == ["3"] * len(commands) * len(packages)
    said = [f"rocketstore: {one} is not installed; pip install 'rocketstore[pipeline]'"
            for one in packages]  # fmt: skip
    assert set(done.stderr.splitlines()[1::4]) == {said[1]}
    for one, line in zip(said * len(commands), done.stderr.splitlines(), strict=True):
        assert line in (one, said[1])


class InterruptedEnd:
    """An object in whose destructor the user's Ctrl-C arrives."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


class EndlessInput:
    """Standard input at whose second line the Ctrl-C arrives in a destructor."""

    @property
    def buffer(self) -> Iterator[bytes]:
        yield b"first\n"
        InterruptedEnd()
        for _ in range(1000):
            time.sleep(0.01)
        yield b"second\n"


def test_an_interrupt_that_a_destructor_swallowed_is_heard_all_the_same(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr("sys.stdin", EndlessInput())
    sizes = ["mappedFileSizeCommitLog=65536", "maxHashSlotNum=10", "maxIndexNum=40"]
    settings = [part for size in sizes for part in ("-s", size)]
    with pytest.raises(SystemExit) as ended:
        main(["store", "import", str(tmp_path / "store"), "-", "-t", "t", *settings])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "rocketstore: interrupted; 0 lines are stored in t/0\n"


class HeldInput:
    """Standard input of some lines, at whose end the user presses Ctrl-C."""

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def buffer(self) -> Iterator[bytes]:
        for number in range(self.count):
            yield f"line {number}\n".encode()
        raise KeyboardInterrupt


def test_an_interrupted_import_says_how_many_lines_are_stored(tmp_path, capsys, monkeypatch):
    sizes = ["mappedFileSizeCommitLog=65536", "maxHashSlotNum=10", "maxIndexNum=4000"]
    options = ["-t", "t", "-q", "2", *(part for size in sizes for part in ("-s", size))]
    for stored_before in (0, 512):
        monkeypatch.setattr("sys.stdin", HeldInput(700))
        assert run(["store", "import", str(tmp_path), "-", *options]) == 130
        err = capsys.readouterr().err
        assert err == "rocketstore: interrupted; 512 lines are stored in t/2\n"
        assert not (tmp_path / "abort").exists()
        with MessageStore.open(tmp_path, read_only=True) as reader:
            assert reader.max_offset("t", 2) == stored_before + 512


def test_an_import_that_is_interrupted_as_lines_were_just_stored_counts_them(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "lines").write_bytes(b"line\n" * 300)
    settle, came = CommitLog._settle, []

    def interrupted(log: CommitLog) -> None:
        if log._under_way is not None and not came:
            came.append(True)
            raise KeyboardInterrupt
        settle(log)

    monkeypatch.setattr(CommitLog, "_settle", interrupted)
    arguments = [str(tmp_path / "s"), str(tmp_path / "lines"), "-t", "t"]
    assert run(["store", "import", *arguments, "-s", "mappedFileSizeCommitLog=65536"]) == 130
    with MessageStore.open(tmp_path / "s", read_only=True) as reader:
        assert reader.max_offset("t", 0) == 256
    assert capsys.readouterr().err == "rocketstore: interrupted; 256 lines are stored in t/0\n"


def interrupt(*_arguments: object, **_settings: object) -> None:
    raise KeyboardInterrupt


def test_an_import_that_is_interrupted_while_it_closes_says_that_all_is_stored(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    whole = BaseStore.close

    def close(store: BaseStore) -> None:
        monkeypatch.setattr(BaseStore, "close", whole)
        interrupt(whole(store))

    monkeypatch.setattr(BaseStore, "close", close)
    arguments = [str(tmp_path / "s"), str(tmp_path / "lines"), "-t", "t"]
    assert run(["store", "import", *arguments, "-s", "mappedFileSizeCommitLog=65536"]) == 130
    assert capsys.readouterr().err == "rocketstore: interrupted; 2 lines are stored in t/0\n"


@pytest.mark.parametrize("words", ["store repair", "queue rebuild", "index rebuild"])
def test_an_interrupted_repair_says_how_to_complete_it(words, tmp_path, capsys, monkeypatch):
    MessageStore.open(tmp_path, StoreConfig.small()).close()
    monkeypatch.setattr("rocketstore.audit.repair.audit_store", interrupt)
    assert run([*words.split(), str(tmp_path)]) == 130
    assert capsys.readouterr().err == "rocketstore: interrupted; run it again to complete it\n"


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, "bogus", 'Unknown command "bogus".'),
        (2, "store inf x", 'Did you mean "info"?'),
        (2, "store info", ": store info needs STORE. See: rocketstore store info --help"),
        (2, "message get x", ": message get needs --topic. See: rocketstore message get"),
        (2, "message get x --topci t", "needs --topic. Did you mean --topic instead of"),
        (2, "message get x -t", "parameter -t requires an argument. See"),
        (2, "message get x -t t -n many", 'unable to convert "many" into int'),
        (2, "message get x y -t t", "See: rocketstore message get --help"),
        (2, "store info x --set nonsense=1", ""),
        (2, "store info x --set nonsense", ""),
        (2, "store repair x --policy hope", ""),
        (3, "store import x nofile -t t", "nofile: there is no such file\n"),
        (3, "store import x /proc -t t", "/proc is a directory; name text files in"),
        (3, "store import x /proc/self/mem -t t", "input/output error"),
        (3, "store info /root\0", ""),
        (3, "config show -c nofile", "nofile: there is no such file"),
    ],
)
def test_every_error_is_one_line_of_one_form(code, arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(arguments.split()) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rocketstore: ")
    assert said in captured.err
    assert "Errno" not in captured.err
    assert captured.err.count("\n") == 1


def test_completion_is_installed_for_every_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["--install-completion", "--shell", "bash"]) == 0
    [script] = tmp_path.glob(".local/share/bash-completion/completions/*")
    assert str(script) in capsys.readouterr().out
    assert "--follow" in script.read_text()


def test_what_the_system_refuses_is_no_finding(tmp_path, capsys):
    MessageStore.open(tmp_path).close()
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    assert run(["store", "repair", str(tmp_path)]) == 3  # 1 would say that all is well now
    assert str(tmp_path / "lock") in capsys.readouterr().err


def test_a_directory_in_the_place_of_the_checkpoint_is_moved_away(tmp_path):
    MessageStore.open(tmp_path).close()
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "checkpoint").mkdir()
    assert run(["store", "repair", str(tmp_path)]) == 1
    assert (tmp_path / "checkpoint").is_file()
    assert run(["store", "verify", str(tmp_path)]) == 0


def test_a_closed_stdout_keeps_no_command_from_its_work(tmp_path):
    (tmp_path / "commitlog").mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "rocketstore.cli", "store", "verify", str(tmp_path)],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(1),
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_closed_stderr_keeps_no_command_from_its_work(tmp_path):
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
    assert (missing.returncode, missing.stdout) == (3, b"")


def test_without_standard_input_nothing_is_imported(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "rocketstore.cli", "store", "import", str(tmp_path), "-t", "t", "-"],
        capture_output=True,
        preexec_fn=lambda: os.close(0),
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.startswith(b"0 messages imported")


def test_a_pipe_that_another_program_made_not_to_block_loses_no_line_to_a_slow_reader(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small()) as store:
        for _ in range(100):
            store.put(Message(topic="t", body=bytes(300)))
    command = [sys.executable, "-m", "rocketstore.cli", "store", "scan", str(tmp_path)]
    whole = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    assert fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096) < len(whole) // 4
    with subprocess.Popen(command, stdout=writing) as shown, os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        select.select([pipe], [], [])
        time.sleep(0.2)
        assert pipe.read() == whole
        assert shown.wait(PATIENCE_S) == 0


def test_what_the_store_logs_is_shown_once_on_stderr(capsys):
    assert run(["config", "show"]) == run(["config", "show"]) == 0
    capsys.readouterr()
    get_logger("rocketstore.storage").warning("file.problem", problem="none")
    get_logger("rocketstore.storage").info("file.fine")
    assert capsys.readouterr().err == "rocketstore: file.problem problem=none\n"


def test_a_line_of_the_log_is_whole_though_it_is_longer_than_what_a_pipe_takes_at_once(capfd):
    assert run(["config", "show"]) == 0
    capfd.readouterr()
    get_logger("rocketstore.storage").warning("file.problem", problem="€" * 3000)
    assert capfd.readouterr().err == f"rocketstore: file.problem problem={'€' * 3000}\n"


def test_what_py4j_says_of_a_broken_call_is_not_shown(capsys):
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


def test_what_the_terminal_cannot_show_is_spelt_out(tmp_path):
    with MessageStore.open(tmp_path, StoreConfig.small()) as opened:
        opened.put(Message(topic="t", body="zwölf €".encode()), 0)
    ended = subprocess.run(
        [sys.executable, "-m", "rocketstore.cli", "message", "get", str(tmp_path), "-t", "t"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.endswith("zwölf \\u20ac\n".encode("latin-1"))


def test_a_second_signal_beside_the_first_is_no_traceback(capsys):
    """Python prints so of one that came while its handler was set back to the system's."""
    message = f"Signal {int(signal.SIGINT)} ignored due to race condition"
    error = OSError(message)
    _interrupt_again(SimpleNamespace(exc_type=OSError, exc_value=error))
    assert capsys.readouterr().err == ""
