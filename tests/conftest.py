"""Fixtures for every test."""

import asyncio
import atexit
import gc
import inspect
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rocketstore.events import ROOT
from rocketstore.remoting import client
from support.made_once import made_directories
from support.patience import PATIENCE_MS, PATIENCE_S

# Of numpy, in every process that tests start: its idle threads turn for a tenth of a second.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TESTS = Path(__file__).parent

# The first example compiles kernels and a busy machine stalls others: time is pytest-timeout's job.
settings.register_profile("rocketstore", deadline=None, print_blob=True)
settings.load_profile("rocketstore")

# Nothing of what is imported and collected goes until tests begin: see `_leave_what_stays_alone`.
gc.disable()

# A shell's background job ignores Ctrl-C and hands that on; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# So does nohup with SIGHUP, which ends programs in tests; one that is handled here ends them again.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


OWN_PROCESSES = ("test_cluster.py", "test_machines.py", "test_tour.py")
"""Modules of tests/spark that start JVMs of their own; the others share a session."""

WAITING = ("spark", "interop")
"""Directories whose modules mostly wait, for what runs in other processes."""

LONG = (
    *WAITING,
    "unit/pipeline",
    "crash",
    "faults",
    "fuzz",
    "property",
    "machine",
    "live",
    "typing",
)
"""Directories whose modules take long; the longest first."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of groups that is made below, instead of one by their numbers of tests."""
    config.option.loadscopereorder = False
    if hasattr(config, "workerinput"):
        atexit.register(_end_at_once, os.getpid())


def _end_at_once(worker: int) -> None:
    """End without Python's own end, which takes 10,000 tests apart for a second: all workers' last.

    What begins as a copy of a worker ends as programs do.
    """
    if os.getpid() == worker:
        os._exit(0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a module of tests to one worker (``--dist loadfile``), and all of Spark to two.

    A session of Spark takes ten seconds of processor time to start and to get warm. All of
    tests/tidy goes to one: it reads the syntax trees of the repository, which takes seconds.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - not in every environment

    class Scheduler(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            directory, _, name = module.rpartition("/")
            if directory.endswith("tests/tidy"):
                return directory
            if not directory.endswith("tests/spark"):
                return module
            return f"{directory} with JVMs of their own" if name in OWN_PROCESSES else directory

    return Scheduler(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each worker begin to import at another module, where all tests are wanted.

    Pytest rewrites the asserts of a module that is new in five times the time of its import, and
    keeps it: so workers do that for one another, instead of all for each module at the same time.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is not None and config.args == config.getini("testpaths"):
        found = (path for form in config.getini("python_files") for path in TESTS.rglob(form))
        modules = sorted(map(str, found))
        first = len(modules) * int(worker["workerid"][2:]) // worker["workercount"]
        config.args = modules[first:] + modules[:first]
        if config.option.xmlpath is None and not config.option.verbose:
            _send_only_what_counts(config.pluginmanager)


def _send_only_what_counts(plugins: pytest.PytestPluginManager) -> None:
    """Keep four of six messages for each test: nobody asks for them, and they cost 0.4 ms."""
    (worker,) = (one for one in plugins.get_plugins() if type(one).__name__ == "WorkerInteractor")
    send = worker.sendevent

    def sendevent(name: str, **fields: Any) -> None:
        report = fields.get("data", {}) if name == "testreport" else {}
        is_around = report.get("when") in {"setup", "teardown"} and report["outcome"] == "passed"
        if name not in {"logstart", "logfinish"} and not is_around:
            send(name, **fields)

    worker.sendevent = sendevent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long modules first where workers share them (``--dist loadfile``, a module to each).

    A long one at the end would leave the other workers without work, and workers that all wait
    would leave the processors without: every other module is one of those that do not.
    """
    if not hasattr(config, "workerinput"):
        return
    items.sort(key=_rank)  # workers must agree, and may be given their modules in different orders
    modules = list(dict.fromkeys(map(_module, items)))
    waiting = [one for one in modules if one.startswith(WAITING)]
    others = [one for one in modules if not one.startswith(WAITING)]
    places = {one: place for group in (waiting, others) for place, one in enumerate(group)}
    items.sort(key=lambda item: places[_module(item)])


def _module(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix()


def _rank(item: pytest.Item) -> tuple[int, str]:
    module = _module(item)
    return next((n for n, name in enumerate(LONG) if module.startswith(name)), len(LONG)), module


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; where `loop_factory` says in which loop, no task is left."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    factory = pyfuncitem.funcargs.get("loop_factory")

    async def whole() -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await pyfuncitem.obj(**given)
        except BaseException as error:
            # uvloop's `close` would wait for what the test's sockets are connected to.
            for one in (error, error.__context__) if factory is not None else ():
                traceback.clear_frames(one and one.__traceback__)
            raise
        assert factory is None or asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(whole())
    return True


@pytest.fixture(scope="session", autouse=True)
def _remove_what_was_made_once() -> Iterator[None]:
    yield
    for directory in made_directories():
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _let_clients_wait_for_a_busy_machine() -> None:
    """Instead of 4.9's three seconds each, to connect and for a reply; pages state those."""
    client.CONNECT_MS = client.RemotingClient.ask.__kwdefaults__["timeout_ms"] = PATIENCE_MS


@pytest.fixture(scope="session", autouse=True)
def _leave_what_stays_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the collector leave 10,000 tests and their imports alone: that took a fifth of the time.

    Nothing that a test leaves is among it: frozen, a store in a cycle would keep its files open.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000)  # of 700: what tests make and drop is mostly no cycle
    yield
    gc.unfreeze()  # as at the start; libraries look at their end for what was never freed
    if hasattr(request.config, "workerinput"):
        gc.collect()  # says what was never freed, once: pytest would look twice more
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_files() -> None:
    """Free the parts of stores that earlier tests made and nobody closed; they have files open.

    Where a process has more than 1,024 open files, the callbacks of PySpark's driver wait forever.
    What is left are imports and caches, at which the collector need not look again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _keep_the_log_as_it_was() -> Iterator[None]:
    """Take away what the command line, called in this process, added: lines on standard error."""
    handlers, level = list(ROOT.handlers), ROOT.level
    yield
    ROOT.handlers[:] = handlers
    ROOT.setLevel(level)


@pytest.fixture(scope="module", autouse=True)
def _see_that_services_ended() -> Iterator[None]:
    """Fail a module that leaves a store open: its threads run on, and later tests meet them."""
    yield
    left = [one.name for one in threading.enumerate() if one.name.startswith("rocketstore-")]
    assert not left, f"a store was left open: {left}"
