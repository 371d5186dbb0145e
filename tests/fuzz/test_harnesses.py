"""Any bytes at all, and broken golden ones: each harness of this folder says what is true of them.

A harness is a module with ``check(data)``, `GOLDEN` bytes and a strategy for `ANY` others.
"""

from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given

from support.fuzzing import DEFAULT_COUNT, check_mutations

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))


@pytest.fixture(params=NAMES)
def harness(request):
    return import_module(f"fuzz.{request.param}")


def test_any_bytes_are_read_or_a_format_error(harness):
    for data in (b"", bytes(4096)):
        harness.check(data)
    given(harness.ANY)(harness.check)()


def test_broken_golden_bytes_are_read_or_a_format_error(harness):
    check_mutations(harness.check, harness.GOLDEN, getattr(harness, "COUNT", DEFAULT_COUNT))
