"""The suites of docs/guide/testing.md run as they stand, each with its own client and framework."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from support.java_program import class_path
from support.java_store import java_tool, require_java
from support.other_clients import INTEROP, QUICK_GO, go_client, node_client, python_client, required
from support.patience import START_S
from support.repository import ROOT
from support.spark_home import SHORT_LIVED_JVM

PAGE = ROOT / "docs" / "guide" / "testing.md"
FILE = re.compile(r"`([\w.]+)`[^`]*?:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = dict(FILE.findall(PAGE.read_text("utf-8")))
jars = partial(class_path, INTEROP / "javasuite")


@pytest.fixture
def run(tmp_path):
    """Return what runs a command beside all files of the page, with `rocketstore` on the path."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)

    def run(*command: str, **more: str) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ours = {"PATH": path, "HOME": str(tmp_path)}  # clients keep logs at home
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **ours, **more}, check=False,
            timeout=START_S, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def run_pytest(run):
    plugin = ["-p", "rocketstore.broker.pytest_plugin", "-p", "no:cacheprovider"]
    # What else is installed here is not what the page is about.
    off = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return lambda name, **more: run(sys.executable, "-m", "pytest", *plugin, name, **off, **more)


def test_every_suite_of_the_page_runs_here():
    assert sorted(FILES) == [
        "OrdersTest.java", "orders.test.js", "orders_test.go", "test.conf", "test_orders.py",
        "test_orders_of_node.py", "test_store.py",
    ]  # fmt: skip
    assert PAGE.read_text("utf-8").count("\n```") == 2 * len(FILES)


def test_suite_with_the_python_client(run_pytest):
    environment = Path(required(python_client)[0]).parents[1]
    [packages] = environment.glob("lib/python3*/site-packages")
    assert "1 passed" in run_pytest("test_orders.py", PYTHONPATH=str(packages))


def test_suite_that_looks_into_the_store(run_pytest):
    assert "2 passed" in run_pytest("test_store.py")


@pytest.mark.java
def test_suite_of_java(run):
    require_java(jars)
    places = f"classes:{jars()}"
    quick = SHORT_LIVED_JVM.split()
    compiler = [f"-J{option}" for option in quick]
    run(java_tool("javac"), *compiler, "-d", "classes", "-cp", jars(), "OrdersTest.java")
    launcher = ["-cp", places, "org.junit.platform.console.ConsoleLauncher"]
    options = [*quick, *launcher, "--scan-classpath", "classes"]
    assert "1 tests successful" in run(java_tool("java"), *options)


def test_suite_of_go(run, tmp_path):
    required(go_client)
    for name in ("go.mod", "go.sum"):
        shutil.copy(INTEROP / "goclient" / name, tmp_path)
    caches = subprocess.run(
        ["go", "env", "GOMODCACHE", "GOCACHE"], check=True, capture_output=True, text=True
    )
    modules, built = caches.stdout.split()
    places = {"GOMODCACHE": modules, "GOCACHE": built}
    assert run("go", "test", ".", **places, **QUICK_GO).startswith("ok")


def test_suite_of_node_that_pytest_starts(run_pytest):
    client = required(node_client)
    [modules] = [word.partition("=")[2] for word in client if word.startswith("NODE_PATH=")]
    assert "1 passed" in run_pytest("test_orders_of_node.py", NODE_PATH=modules)
