"""The door to the kernels: lazy, switchable, and kept in a cache that survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from rocketstore.scan import kernels


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return done.stdout


LOADED = "import sys, json; print(json.dumps([m in sys.modules for m in ('numba', 'pyarrow')]))"


def test_importing_the_package_loads_neither_compiler_nor_arrow():
    code = "import rocketstore, rocketstore.scan.scanner, rocketstore.scan.split\n" + LOADED
    assert json.loads(run_python(code)) == [False, False]


def test_switched_off_kernels_are_the_references_and_load_no_compiler():
    code = (
        "from rocketstore.scan import kernels\n"
        "from rocketstore.scan.scanner import scan_segment\n"
        "assert len(list(scan_segment(bytes(64), base=0))) == 1\n"
        "assert kernels.walk.__module__ == 'rocketstore.scan.reference.walk'\n" + LOADED
    )
    assert json.loads(run_python(code, ROCKETSTORE_KERNELS="off")) == [False, False]


def test_every_kernel_in_the_table_exists_in_both_flavours(monkeypatch):
    for switch in ("off", "on"):
        monkeypatch.setenv(kernels.SWITCH, switch)
        for name in kernels.KERNELS:
            assert callable(kernels.load(name))
    for name in kernels.KERNELS:
        vars(kernels).pop(name, None)


def test_a_kernel_that_is_in_no_table_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kernels.nothing
    with pytest.raises(KeyError):
        kernels.load("nothing")


def test_compiled_kernels_are_kept_in_the_given_directory(tmp_path):
    code = "from rocketstore.scan import kernels; print(kernels.load('java_hash').__name__)"
    run_python(code, NUMBA_CACHE_DIR=str(tmp_path), ROCKETSTORE_KERNELS="on")
    kept = list((tmp_path / "rocketstore").glob("java_hash-*/**/*.nbi"))
    assert kept
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    run_python(code, NUMBA_CACHE_DIR=str(tmp_path), ROCKETSTORE_KERNELS="on")
    assert {path: path.stat().st_mtime_ns for path in kept} == stamps


@pytest.fixture
def fresh_cache_root():
    kernels.cache_root.cache_clear()
    yield kernels.cache_root
    kernels.cache_root.cache_clear()


def test_the_cache_falls_back_from_an_unusable_directory(fresh_cache_root, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert fresh_cache_root() == tmp_path / "user" / "rocketstore" / "numba"


def test_no_usable_cache_is_one_warning_and_no_error(fresh_cache_root, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(kernels, "_cache_candidates", lambda: [Path(tmp_path / "file" / "cache")])
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        assert fresh_cache_root() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh_cache_root() is None


def test_threads_that_load_kernels_at_once_do_not_mix_up_their_caches(monkeypatch, tmp_path):
    """Numba's setting is one for the process: mixed up, kernels went into the working directory."""
    compiled = pytest.importorskip("rocketstore.scan.compiled")
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(compiled, "cache_root", lambda: tmp_path)
    seen: list[str] = []

    def load(module: str) -> None:
        with compiled._cache_directory(f"rocketstore.scan.compiled.{module}"):
            seen.append(Path(numba.config.CACHE_DIR).name.partition("-")[0])

    before = numba.config.CACHE_DIR
    with compiled._cache_directory("rocketstore.scan.compiled.walk"):
        other = threading.Thread(target=load, args=("index",))
        other.start()
        other.join(0.1)
        assert Path(numba.config.CACHE_DIR).name.startswith("walk-")
        assert not seen
    other.join(10)
    assert seen == ["index"]
    assert before == numba.config.CACHE_DIR
