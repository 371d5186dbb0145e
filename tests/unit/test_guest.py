"""A guest in somebody's process: what the package says goes through ``logging``, and nothing that
is global there (logging, warnings, signals, excepthooks) is another one afterwards.
"""

import io
import json
import logging
import textwrap

import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.events import LONGEST, get_logger
from rocketstore.native.log_end import QueueCounter
from rocketstore.storage.statistics import StoreStatistics
from rocketstore.units import QueueKey
from support.python_process import run_python
from support.said import capture_logs

SMALL = {
    "mapped_file_size_commit_log": 65_536,
    "mapped_file_size_consume_queue": 6_000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}

USE = """
import json, logging, signal, sys, threading, warnings

def state():
    loggers = logging.Logger.manager.loggerDict
    named = {name: one for name, one in loggers.items() if isinstance(one, logging.Logger)}
    return {
        "root": [logging.root.level, repr(logging.root.handlers), repr(logging.root.filters)],
        "disabled": [name for name, one in named.items() if one.disabled],
        "levels": {name: one.level for name, one in named.items() if one.level},
        "manager": [logging.root.manager.disable, logging.getLoggerClass().__name__,
                    logging.raiseExceptions, logging.getLogRecordFactory().__name__],
        "warnings": [repr(warnings.filters), warnings.showwarning.__name__],
        "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())],
        "wakeup": signal.set_wakeup_fd(-1),
        "hooks": [sys.excepthook.__name__, threading.excepthook.__name__,
                  sys.unraisablehook.__name__, str(sys.gettrace()), str(sys.getprofile())],
        "switch": sys.getswitchinterval(),
        "streams": [str(sys.stdout), str(sys.stderr)],
    }

import numpy  # what these change when they are imported is theirs
before = state()
import rocketstore
from rocketstore import *
with MessageStore.open(sys.argv[1], StoreConfig(**json.loads(sys.argv[2]))) as store:
    store.put(Message(topic="orders", body=b"one", keys="k"))
    store.put_batch([Message(topic="orders", body=b"two")] * 3)
    store.wait_dispatched()
    assert len(store.get("orders", 0, 0).messages) == 4
    assert store.find("orders", key="k")
with MessageStore.open(sys.argv[1], read_only=True) as store:
    store.get("orders", 0, 0)
import rocketstore.pipeline
after = state()
print(json.dumps([before, after]))
"""


def test_using_the_package_changes_nothing_global(tmp_path):
    done = run_python("-c", USE, tmp_path / "store", json.dumps(SMALL))
    before, after = json.loads(done.stdout)
    assert after == before
    assert done.stderr == ""


@pytest.fixture
def lines():
    """What a host sees that formats the records of ``rocketstore`` as it likes."""
    logger, stream = logging.getLogger("rocketstore"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(event)s|%(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_a_host_s_handler_gets_lines_with_event_and_fields(tmp_path, lines):
    with MessageStore.open(tmp_path, StoreConfig(**SMALL)):
        pass
    name = "rocketstore.storage.recovery.recover"
    assert f"INFO {name} store.recovered|store.recovered policy=salvage was_clean=True " in (
        lines.getvalue()
    )
    with capture_logs() as logs, MessageStore.open(tmp_path):
        pass
    (recovered,) = [line for line in logs if line["event"] == "store.recovered"]
    assert recovered["was_clean"] is True
    assert recovered["start"] == recovered["end"] == 0


def test_values_that_would_blur_a_line_are_quoted(lines):
    log = get_logger("rocketstore.test")
    log.warning("file.gone", path="a b", why="", size=3, name="x=1", args=0)
    assert lines.getvalue() == (
        "WARNING rocketstore.test file.gone|file.gone path='a b' why='' size=3 name='x=1' args=0\n"
    )


def test_what_a_client_made_endless_is_cut_in_its_line(lines):
    get_logger("rocketstore.test").warning("request.refused", reason="g" * 20_000, code=36)
    text = lines.getvalue().rpartition("|")[2]
    assert text == f"request.refused reason='{'g' * LONGEST}… (20000 characters)' code=36\n"


def test_an_exception_comes_with_its_traceback_and_the_caller_s_place(lines):
    log = get_logger("rocketstore.test")
    logging.getLogger("rocketstore").handlers[-1].setFormatter(
        logging.Formatter("%(filename)s %(funcName)s %(message)s")
    )
    try:
        int("no number")
    except ValueError:
        log.exception("service.failed", service="flush")
    first, *rest = lines.getvalue().splitlines()
    assert first == (
        "test_guest.py test_an_exception_comes_with_its_traceback_and_the_caller_s_place "
        "service.failed service=flush "
        "hint='the traceback says why; report it where the cause is not on this machine'"
    )
    assert rest[-1].startswith("ValueError: invalid literal")
    log.error("service.failed", exc_info=ValueError("no number"), hint="mend the number")
    assert "service.failed hint='mend the number'\n" in lines.getvalue()


def test_a_host_switches_the_package_off_by_its_one_logger(lines):
    log, logger = get_logger("rocketstore.test.deep"), logging.getLogger("rocketstore")
    logger.disabled = True
    try:
        log.error("a")
    finally:
        logger.disabled = False
    logger.setLevel(logging.CRITICAL)
    log.error("b")
    logger.setLevel(logging.ERROR)
    log.error("c")
    assert [line.split("|")[1] for line in lines.getvalue().splitlines()] == ["c"]


def test_nothing_is_printed_unless_the_host_listens():
    code = """
        from rocketstore.events import get_logger
        get_logger("rocketstore.storage").error("log.flush_failed", error="EIO")
    """
    done = run_python("-c", textwrap.dedent(code))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- a slow put that is our own doing is nothing to warn of ---------------------------------------


def test_only_a_put_after_the_first_is_worth_a_warning():
    key = QueueKey("orders", 0)
    counter = QueueCounter(key, b"orders", 0, 0)
    statistics = StoreStatistics(lambda: 0, lambda: [counter], lambda: (counter.next_offset, 0))
    with capture_logs(slow=True) as logs:
        counter.next_offset = 3
        statistics.note_slow_put(9_000, 3)
        assert logs == []
        counter.next_offset = 4
        statistics.note_slow_put(500)
        statistics.note_slow_put(501)
    assert [(line["event"], line["took_ms"]) for line in logs] == [("put.slow", 501)]
    assert statistics.put_time_max_ms == 9_000


def test_a_python_that_runs_without_its_global_lock_is_refused_by_one_clear_line():
    done = run_python("-c", "import sys; sys._is_gil_enabled = bool; import rocketstore")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: rocketstore needs Python's global")
