"""Every option of every command with values that nobody meant: no traceback, and one line."""

import io

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import main, run
from rocketstore.errors import StoreError
from support.cli_commands import commands
from support.clock import Clock
from support.small_store import build_store

NEEDED = {
    ("store", "import"): ["lines", "--topic", "t"],
    ("message", "get"): ["--topic", "Topic1"],
    ("message", "find"): ["--topic", "Topic1", "--key", "k"],
    ("message", "id"): ["00000000000000000000000000000000"],
    ("message", "tail"): ["--topic", "Topic1"],
    ("queue", "show"): ["--topic", "Topic1"],
    ("replica", "status"): ["--master", "127.0.0.1:1"],
    ("pipeline", "archive"): ["archive"],
    ("pipeline", "restore"): ["back"],
}
"""Arguments after the store, or before the option."""

VALUES = ["", "-1", str(10**26), "x", "1.5", "nan", "\udcff", ".", "\x1b[2J\nx", "-"]
NO_DIRECTORIES = ("", "file://host/x", "s3://bucket/x")
SHARED = {"--config", "--set", "--output"}
LASTING = {("serve", "master"), ("serve", "slave"), ("serve", "namesrv"), ("serve", "broker")}


COMMANDS = {
    words: command
    for words, command in commands()
    if words[0] not in {"bench", "demo"} and words not in LASTING
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("wrong") / "store"
    build_store(root, 5, Clock())
    (root.parent / "lines").write_text("a\nb\n")
    return root


def no_spark(*_arguments, **_options):
    raise StoreError("everything was taken: Spark would be started")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_wrong_value_is_one_line_and_no_traceback(path, made, capsys, monkeypatch):
    monkeypatch.chdir(made.parent)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr(pipeline, "session", no_spark)
    needed = [*([] if path == ("config", "show") else ["store"]), *NEEDED.get(path, ())]
    options = {
        one.name: getattr(one.hint, "__name__", "")
        for one in COMMANDS[path].assemble_argument_collection()
        if one.name.startswith("--") and "follow" not in one.name
    }
    if path != ("store", "info"):  # all have the same three
        options = {name: kind for name, kind in options.items() if name not in SHARED}
    for option, kind in options.items():
        for value in VALUES:
            given = [f"{option}={value}"] if kind == "bool" else [option, value]
            at = needed.index(option) if option in needed else len(needed)
            rest = needed[:at] + needed[at + 2 :]
            code = run([*path, *rest, *given])
            said = capsys.readouterr().err
            assert code in range(5), (given, said)
            assert "\x1b" not in said
            if code == 2:
                assert said.startswith("rocketstore: ")
                assert said.count("\n") == 1, said


@pytest.mark.parametrize(
    "words",
    [
        *("audit store --config=", "rebuild store --to="),
        # The last are no names of directories.
        *(f"{job} store --out={out}" for job in ("audit", "report") for out in NO_DIRECTORIES),
        *(f"restore archive back --as-of={value}" for value in ("", "noon", "-1", "0001-01-01")),
        *(f"sweep store --untouched-hours={hours}" for hours in ("nan", "-1", "-inf")),
    ],
)
def test_a_job_on_spark_refuses_before_spark_starts(words, made, capsys, monkeypatch):
    monkeypatch.chdir(made.parent)
    (made.parent / "archive").mkdir(exist_ok=True)
    monkeypatch.setattr(pipeline, "session", no_spark)
    assert run(["pipeline", *words.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not [path.name for path in made.parent.iterdir() if ":" in path.name]


@pytest.mark.parametrize("job", ["audit", "archive", "rebuild", "restore", "report"])
@pytest.mark.parametrize("form", ["file:{}", "file:{}/", "FILE://{}", "file://localhost{}"])
def test_a_location_has_every_form_that_the_source_takes(form, job, made, monkeypatch, capsys):
    monkeypatch.chdir(made.parent)
    monkeypatch.setattr(pipeline, "session", no_spark)
    words = ["back"] if job in {"archive", "restore"} else []
    assert run(["pipeline", job, form.format(made), *words]) == 3
    assert "Spark would be started" in capsys.readouterr().err
    assert run(["pipeline", job, form.format(made / "none"), *words]) == 3
    assert "there is no such directory" in capsys.readouterr().err


def test_no_error_of_python_s_own_ends_with_the_code_of_a_finding(made, capsys, monkeypatch):
    """Python's code for it would be 1, which says that no damage is left."""
    for error, shown in ((RuntimeError("odd"), "RuntimeError: odd"), (MemoryError(), "ulimit -v")):

        def fails(*_arguments, _error=error, **_options):
            raise _error

        monkeypatch.setattr("rocketstore.audit.verify.verify_store", fails)
        with pytest.raises(SystemExit) as end:
            main(["store", "verify", str(made)])
        assert end.value.code == 3
        assert shown in capsys.readouterr().err


def test_commands_work_alone_where_the_system_gives_no_thread(made, capsys, monkeypatch):
    def refused(*_call):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refused)
    monkeypatch.setattr("threading._start_new_thread", refused)
    for words in ("verify", "repair --dry-run", "repair", "info", "scan", "scrub --rate 0"):
        verb, *rest = words.split()
        assert run(["store", verb, str(made), *rest]) == 0, capsys.readouterr().err
    for what in ("queue", "index"):
        assert run([what, "rebuild", str(made)]) == 1, capsys.readouterr().err
