"""What is missing is one sentence that says what to install."""

import stat
import sys
from importlib import metadata
from unittest.mock import MagicMock

import pytest

from rocketstore import pipeline
from rocketstore.errors import UnsupportedEnvironmentError
from rocketstore.pipeline import environment
from support.python_process import printed
from support.terminal import Terminal


def with_versions(monkeypatch, **versions):
    def version(package):
        if versions.get(package) is None:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(environment.metadata, "version", version)


@pytest.fixture(autouse=True)
def asked_again():
    environment.warn_of_untested_versions.cache_clear()
    yield
    environment.warn_of_untested_versions.cache_clear()


def test_the_versions_here_are_tested(caplog):
    environment.check_versions()
    environment.warn_of_untested_versions()
    assert not caplog.messages


@pytest.mark.parametrize(
    ("spark", "message"),
    [
        ("3.5.1", "PySpark 3.5.1 is not supported: expected 4.3"),
        ("5.0.0", "PySpark 5.0.0 is not supported"),
        (None, "pyspark is not installed"),
    ],
)
def test_a_spark_without_the_interface_is_one_error(monkeypatch, spark, message):
    with_versions(monkeypatch, pyspark=spark, pandas=None)
    with pytest.raises(UnsupportedEnvironmentError, match=message) as caught:
        environment.check_versions()
    assert "pip install 'rocketstore[pipeline]'" in str(caught.value)


@pytest.mark.parametrize(
    ("spark", "pandas", "message"),
    [
        ("4.1.2", "2.2.0", "pyspark 4.1.2 is not tested' expected='4.3 or newer, below 4.4'"),
        ("4.3.0", "3.0.0", "pandas 3.0.0 is not tested"),
        ("4.3.0", "2.1.4", "2.2 or newer, below 3"),
    ],
)
def test_other_versions_are_one_warning(monkeypatch, caplog, spark, pandas, message):
    with_versions(monkeypatch, pyspark=spark, pandas=pandas)
    environment.check_versions()
    environment.warn_of_untested_versions()
    environment.warn_of_untested_versions()
    (said,) = caplog.messages
    assert message in said


def test_no_java_is_one_error(tmp_path):
    with pytest.raises(UnsupportedEnvironmentError, match="there is none on the PATH; install"):
        environment.check_java({"PATH": str(tmp_path)})
    with pytest.raises(UnsupportedEnvironmentError, match="none in JAVA_HOME"):
        environment.check_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is 11"),
        ('java version "1.8.0_291"', "is 1"),
        ("nothing", "is nothing"),
        ('openjdk version "17.0.15"', None),
        ('openjdk version "21" 2023-09-19', None),
    ],
)
def test_an_old_java_is_one_error(tmp_path, told, message):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    if message is None:
        environment.check_java({"PATH": str(tmp_path)})
        return
    with pytest.raises(UnsupportedEnvironmentError, match=message):
        environment.check_java({"PATH": str(tmp_path)})


@pytest.mark.parametrize("said", [None, "2 7", "Traceback"])
def test_workers_of_another_python_are_one_error_before_spark_starts(tmp_path, monkeypatch, said):
    python = tmp_path / "python"
    if said is not None:
        python.write_text(f"#!/bin/sh\necho {said}\n")
        python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setattr(environment, "check_java", lambda: None)
    with pytest.raises(UnsupportedEnvironmentError, match=r"PYSPARK_PYTHON is .*; unset it"):
        environment.session()
    environment.check_python(sys.executable)


# In a process of its own: Spark's session, once there, has a handler of its own, and a signal that
# comes late would end the tests.
START = """
import os, signal
from rocketstore.pipeline.environment import interrupted_afterwards

signal.signal(signal.SIGINT, signal.default_int_handler)
steps = {steps}
try:
    with interrupted_afterwards():
        for step in steps:
            if step == "fail":
                raise ValueError("no cluster")
            if step == "Ctrl-C":
                os.kill(os.getpid(), signal.SIGINT)
            print(step)
except (KeyboardInterrupt, ValueError) as error:
    print(type(error).__name__)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        (["launched", "known"], ["launched", "known"]),
        (["Ctrl-C", "launched"], ["Ctrl-C", "launched", "KeyboardInterrupt"]),
        (["Ctrl-C", "Ctrl-C", "launched"], ["Ctrl-C", "KeyboardInterrupt"]),
        (["Ctrl-C", "fail"], ["Ctrl-C", "ValueError"]),
    ],
    ids=["none", "once: waits", "twice: does not wait", "does not hide an error"],
)
def test_ctrl_c_waits_until_spark_has_started(steps, lines):
    assert printed(START.format(steps=steps)).split("\n") == [*lines, ""]


def test_import_loads_neither_spark_nor_arrow():
    code = "import rocketstore.pipeline, sys; print(sorted({'pyspark', 'pyarrow', 'pandas', 'numba'} & set(sys.modules)))"  # noqa: E501
    assert printed(code) == "[]\n"


class Builder:
    """Stands in for Spark's: remembers what a session is asked to be."""

    def __init__(self):
        self.settings = {}

    def master(self, url):
        return self

    appName = master  # noqa: N815 - Spark's name

    def config(self, map):  # noqa: A002 - Spark's name
        self.settings |= map
        return self

    def getOrCreate(self):  # noqa: N802 - Spark's name
        return self


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_a_session_logs_as_spark_is_configured_unless_asked_to_be_quiet(monkeypatch, master):
    monkeypatch.setattr(environment, "check_java", lambda: None)
    monkeypatch.setattr("rocketstore.pipeline.register", lambda spark: None)
    monkeypatch.setattr("sys.stderr", Terminal())
    asked = {}
    for quiet in (False, True):
        monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
        asked[quiet] = environment.session(master, quiet=quiet).settings
    told = {"spark.driver.extraJavaOptions", "spark.ui.showConsoleProgress"}
    told |= environment.QUIET_SETTINGS.keys()
    assert set(asked[True]) - set(asked[False]) == told
    assert asked[True]["spark.ui.showConsoleProgress"] == "true"
    java = asked[True]["spark.driver.extraJavaOptions"]
    assert "log4j2.properties" in java
    assert "-XX:TieredStopAtLevel=1" in java
    assert ("spark.ui.enabled" in asked[False]) == master.startswith("local")


@pytest.mark.parametrize(("by", "is_left"), [("exit()", False), ("os.fork() or exit()", True)])
def test_a_session_that_is_not_stopped_leaves_no_socket(tmp_path, by, is_left):
    """Nor does a child that was forked, and ends, remove it from under its parent."""
    place = tmp_path / "socket"
    place.touch()
    program = f"""
import os
from types import SimpleNamespace
from rocketstore.pipeline.environment import remove_socket_at_exit

server = SimpleNamespace(server_address={str(place)!r})
remove_socket_at_exit(SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server)))
{by}
os.wait()
os._exit(0)
"""
    printed(program)
    assert place.exists() == is_left


class Session:
    """Stands in for one of Spark's, which found the source by itself or did not."""

    def __init__(self, *, found):
        self.found = found
        self.registered = []
        self.sessionState = self.dataSourceManager = lambda: self
        self._jsparkSession = self
        self._jvm = None if found is None else MagicMock()
        self.dataSource = self

    def dataSourceExists(self, name):  # noqa: N802 - Spark's name
        assert name == "rocketstore"
        return self.found

    def register(self, source):
        self.registered.append(source.name())


@pytest.mark.parametrize(("found", "registered"), [(True, 0), (False, 1), (None, 1)])
def test_a_source_that_spark_found_is_not_registered_again(monkeypatch, found, registered):
    """Spark would warn of that at each stream; a session of Spark Connect does not say."""
    parts, helped = "rocketstore.pipeline", []
    monkeypatch.setattr(f"{parts}.java_parts.prune_columns", helped.append)
    monkeypatch.setattr(f"{parts}.java_parts.give_threads_a_session", helped.append)
    session = Session(found=found)
    pipeline.register(session)
    assert len(session.registered) == registered
    assert helped == ([] if found is None else [session, session])
