"""The compiled modules are built as the interpreter was: not with assertions that abort it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rocketstore.scan import kernels

MODULES = (
    "rocketstore.native.batch",
    "rocketstore.native.columns",
    "rocketstore.native.dispatch",
    "rocketstore.native.index",
    "rocketstore.native.java_hash",
    "rocketstore.native.lookup",
    "rocketstore.native.page",
    "rocketstore.native.resync",
    "rocketstore.native.walk",
    "rocketstore.format._decode",
    "rocketstore.format._properties",
    "rocketstore.storage.log._append",
    "rocketstore.storage.log._put_group",
    "rocketstore.storage.reading._gather",
    "rocketstore.storage.reading._key_search",
)


@pytest.mark.skipif(not kernels.is_compiled(), reason="nothing compiled is used with kernels off")
@pytest.mark.parametrize("name", MODULES)
def test_a_compiled_module_has_no_assertions_of_the_interpreter(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    assert b"__assert_fail" not in Path(spec.origin).read_bytes()
