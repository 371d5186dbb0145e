"""A worker process is spared collections of what its libraries made, and no other process is."""

import gc
import logging
import os
import subprocess
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rocketstore.events import ROOT
from rocketstore.pipeline import environment
from support.patience import PATIENCE_S


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.myself = self


@pytest.fixture
def as_worker(monkeypatch):
    monkeypatch.setattr(environment, "is_worker", lambda: True)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    environment.spare_collections.cache_clear()
    yield  # what is set aside stays so: all imports among it take a second to look at again
    environment.spare_collections.cache_clear()


@pytest.mark.usefixtures("as_worker")
def test_what_a_worker_loaded_is_set_aside():
    loaded, before = [Circle() for _ in range(1000)], gc.get_freeze_count()
    environment.spare_collections()
    assert gc.get_freeze_count() >= before + len(loaded)


@pytest.mark.usefixtures("as_worker")
def test_garbage_of_the_first_task_is_collected_before():
    dead = weakref.ref(Circle())
    environment.spare_collections()
    assert dead() is None


@pytest.mark.usefixtures("as_worker")
def test_garbage_of_later_tasks_is_collected_as_ever():
    environment.spare_collections()
    dead = weakref.ref(Circle())
    environment.spare_collections()
    gc.collect()
    assert dead() is None


def test_the_collector_of_any_other_process_is_left_alone():
    before = gc.get_freeze_count()
    environment.spare_collections.cache_clear()
    environment.spare_collections()
    assert gc.get_freeze_count() == before


def test_a_worker_s_warnings_reach_its_stderr_unless_somebody_set_up_logging(monkeypatch):
    logger, before = ROOT, list(ROOT.handlers)
    monkeypatch.setattr(logging.root, "handlers", [])
    environment.let_warnings_out()
    assert logger.handlers == before
    monkeypatch.setattr(environment, "is_worker", lambda: True)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(logger, "handlers", list(before))
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    environment.let_warnings_out()
    assert logger.handlers == before
    monkeypatch.setattr(logging.root, "handlers", [])
    environment.let_warnings_out()
    environment.let_warnings_out()
    assert logger.handlers == [*before, logging.lastResort]


DAEMON = """
def manager(error):
    try:
        raise error
    except OSError:
        traceback.print_exc()
"""


@pytest.mark.usefixtures("as_worker")
@pytest.mark.parametrize(
    ("file", "error", "is_shown"),
    [
        ("/spark/pyspark.zip/pyspark/daemon.py", BrokenPipeError(32, "Broken pipe"), False),
        ("/spark/pyspark.zip/pyspark/daemon.py", ConnectionResetError(104, "reset"), True),
        ("/jobs/job.py", BrokenPipeError(32, "Broken pipe"), True),
    ],
)
def test_a_pipe_that_spark_closes_on_purpose_is_no_traceback(capsys, file, error, is_shown):
    environment.let_warnings_out()
    environment.let_warnings_out()
    names: dict[str, Any] = {"traceback": traceback}
    exec(compile(DAEMON, file, "exec"), names)  # noqa: S102 - for its file's name
    names["manager"](error)
    sys.stderr.write("after\n")
    shown = capsys.readouterr().err
    assert ("Traceback" in shown) is is_shown
    assert shown.endswith("after\n")


def test_the_errors_of_any_other_process_are_left_alone():
    before = sys.stderr
    environment.let_warnings_out()
    assert sys.stderr is before


def test_nor_is_it_one_in_a_worker_of_a_session_that_runs_no_code_of_this_package(tmp_path):
    raised = [f"compile({DAEMON!r}, '/spark/pyspark/daemon.py', 'exec')", "BrokenPipeError(32)"]
    program = f"import traceback\nexec({raised[0]})\nmanager({raised[1]})\nraise SystemExit('end')"
    (tmp_path / "someones_worker.py").write_text(program)
    daemon = environment.LOCAL_SETTINGS["spark.python.daemon.module"]
    ended = subprocess.run(
        [sys.executable, "-m", daemon, "someones_worker"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.stderr == "end\n"


def test_the_daemon_of_a_session_imports_compiled_files_and_no_zip_of_them():
    zips = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
    daemon = environment.LOCAL_SETTINGS["spark.python.daemon.module"]
    ended = subprocess.run(
        [sys.executable, "-v", "-m", daemon, "pyspark.worker"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*zips, *sys.path)))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert b"import 'pyspark.worker' # <_frozen_importlib_external.SourceFileLoader" in ended.stderr
