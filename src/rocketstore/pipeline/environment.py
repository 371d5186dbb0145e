"""What Spark needs to run, a session of it, and what its worker processes need of this package.

Laws: a missing part is reported in one sentence that says what to install, before Spark fails in a
hundred lines. A process that is no worker of Spark, the driver above all, is left as it is.
"""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import RocketStoreError, UnsupportedEnvironmentError
from rocketstore.events import ROOT, get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from pyspark.sql import SparkSession

_log = get_logger(__name__)

EXTRA: Final = "pipeline"
INSTALL: Final = f"pip install 'rocketstore[{EXTRA}]'"
JAVA_MIN: Final = 17
SPARK: Final = (4, 3)
TESTED: Final = (("pyspark", SPARK, (4, 4)), ("pandas", (2, 2), (3,)))  # from which on, and below

SETTINGS: Final = {"spark.sql.session.timeZone": "UTC"}  # of a session; given settings win
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "rocketstore.pipeline.worker_start",
}
"""Where driver and executors are one process; bytes by a Unix socket cost a sixth less than TCP."""

_LOG4J: Final = Path(__file__).with_name("log4j2.properties").as_uri()
QUIET_SETTINGS: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J} -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Where the error that a job ends with is enough, as on the command line. Its JVM does so little
that compiling its code a second time, for speed, or code for its few rows, would cost more."""


def check_versions() -> None:
    """Check that there is a PySpark with the data source's interface, without importing it."""
    spark = _version("pyspark")
    if spark[:1] != SPARK[:1]:
        what = f"PySpark {_text(spark)} is not supported: expected {_text(SPARK)}"
        raise UnsupportedEnvironmentError(what, hint=INSTALL)


@contextmanager
def needed(*later: str) -> Iterator[None]:
    """Let a package that is not installed be an error that says what to install.

    Those that are loaded only `later` are looked for before.
    """
    for package in later:
        _version(package)
    try:
        yield
    except ModuleNotFoundError as error:
        raise UnsupportedEnvironmentError.not_installed(error.name, EXTRA) from error


@functools.cache
def warn_of_untested_versions() -> None:
    """Warn, once, of versions of PySpark and pandas that are not among those that are tested."""
    for package, least, below in TESTED:
        found = _version(package)
        if not least <= found < below:
            what = f"{package} {_text(found)} is not tested"
            expected = f"{_text(least)} or newer, below {_text(below)}"
            _log.warning("spark.environment", what=what, expected=expected, hint=INSTALL)


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Check that there is a Java that Spark runs on."""
    hint = f"install a JDK {JAVA_MIN} or newer, or set JAVA_HOME to one"
    home = environment.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if java is None or not os.access(java, os.X_OK):
        where = f"in JAVA_HOME {home}" if home else "on the PATH"
        raise UnsupportedEnvironmentError(f"Spark needs Java, and there is none {where}", hint=hint)
    said = _run(java, "-version").stderr
    match = re.search(r'version "(\d+)', said)
    if match is None or int(match[1]) < JAVA_MIN:
        found = match[1] if match else said.strip()[:80] or "no version"
        what = f"Spark needs Java {JAVA_MIN} or newer, and {java} is {found}"
        raise UnsupportedEnvironmentError(what, hint=hint)


def check_python(python: str) -> None:
    """Check that workers of Spark on this machine have this package and the driver's version."""
    found, wanted = "", "{}.{}".format(*sys.version_info)
    with suppress(OSError):  # it is not there
        code = "import rocketstore, sys; print(*sys.version_info[:2], sep='.')"
        found = _run(python, "-c", code).stdout.strip()
    if found != wanted:
        what = f"PYSPARK_PYTHON is {python}, which is no Python {wanted} with rocketstore"
        raise UnsupportedEnvironmentError(what, hint=f"unset it, or set it to {sys.executable}")


def session(master: str = "local[*]", *, quiet: bool = False, **settings: str) -> SparkSession:
    """Return a Spark session with the data source registered, on this machine unless asked.

    Parameters
    ----------
    master
        Where Spark runs; see ``docs/guide/spark-cluster.md`` for others than ``local``.
    quiet
        Whether Spark's driver logs errors only, without Java's stacks and tasks that failed, and
        shows on a terminal how far it is, as the command line's own sessions do.
    settings
        Spark's settings, with ``__`` for each dot: ``spark__driver__memory="2g"``.

    Raises
    ------
    UnsupportedEnvironmentError
        A package or Java is missing, or there is a PySpark or PYSPARK_PYTHON that cannot work.

    Notes
    -----
    Spark's workers run the interpreter that this process runs (``PYSPARK_PYTHON`` is set unless it
    is already), since the ``python3`` of the PATH may lack this package.
    """
    check_versions()
    check_java()
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        if python != sys.executable:
            check_python(python)
        os.environ.setdefault("SPARK_LOCAL_IP", LOCAL_SETTINGS["spark.driver.host"])
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only once it is known to work

    from rocketstore.pipeline import register  # noqa: PLC0415 - which imports this module

    builder: Any = SparkSession.builder
    given = {name.replace("__", "."): value for name, value in settings.items()}
    settled = SETTINGS | (LOCAL_SETTINGS if master.startswith("local") else {})
    if quiet:
        settled |= QUIET_SETTINGS
        settled["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
    builder = builder.master(master).appName("rocketstore").config(map=settled | given)
    with interrupted_afterwards():
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    remove_socket_at_exit(spark)
    return spark


def remove_socket_at_exit(spark: Any) -> None:
    """Remove the file of PySpark's Unix socket at Python's end, as a session's `stop` does.

    A program that ends without `stop` would leave one in ``/tmp`` each time.
    """
    server = getattr(getattr(spark, "sparkContext", None), "_accumulatorServer", None)
    place: Any = getattr(server, "server_address", None)
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a forked child has the parent's handlers
            Path(place).unlink(missing_ok=True)

    if isinstance(place, str):  # with TCP it is an address and a port
        atexit.register(remove)


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Let Ctrl-C wait until Spark has started; a second one does not wait.

    PySpark that is interrupted while it starts its JVM leaves the JVM running, and no code can end
    it; it prints to the terminal later.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not is_main:
        yield
        return
    came: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is wait:
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program as Spark will run it."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603


def _version(package: str) -> tuple[int, ...]:
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UnsupportedEnvironmentError.not_installed(package, EXTRA) from None
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def is_worker() -> bool:
    """Whether Spark started this process to run Python for it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    daemon = LOCAL_SETTINGS["spark.python.daemon.module"]
    return spec is not None and spec.name.startswith(("pyspark.", daemon))


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let warnings and errors that are meant for people out of a worker, without a traceback.

    A worker ends with the error it reports, so its environment may say to leave the traceback out.
    """
    let_warnings_out()
    try:
        yield
    except RocketStoreError:
        if is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
    spare_collections()


class WorkerErrors:
    """The stderr of a worker, without tracebacks of pipes that Spark closes, as after ``limit``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, but not while the daemon itself deals with such a pipe."""
        error = sys.exception()
        where = error and error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename
        is_daemon = isinstance(error, BrokenPipeError) and str(where).endswith("pyspark/daemon.py")
        return len(text) if is_daemon else self._stream.write(text)


def let_warnings_out() -> None:
    """Let warnings of this package reach a worker's stderr, unless logging is set up there."""
    if not is_worker():
        return
    if logging.lastResort is not None and not logging.getLogger().handlers:
        ROOT.addHandler(logging.lastResort)  # once: an existing handler is not added again
    if not isinstance(sys.stderr, WorkerErrors):
        sys.stderr = WorkerErrors(sys.stderr)


@functools.cache
def spare_collections() -> None:
    """Set aside, once, what a worker has loaded, so that the garbage collector does not walk it.

    A worker collects all generations after every task (``pyspark.daemon``): with NumPy, Arrow and
    pandas loaded that is 0.02 s of processor time, a tenth of what a scan of 256 MiB costs.
    """
    if is_worker():
        gc.collect()
        gc.freeze()
