"""What `import rocketstore` costs: no compiler, no columns, no cluster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.patience import PATIENCE_S

HEAVY = ("numba", "llvmlite", "pyarrow", "pyspark", "pandas", "javaproperties")


def loaded_after(code: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    code += f"\nimport json, sys; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return json.loads(done.stdout)


def test_import_of_the_package_and_its_public_names_loads_nothing_heavy():
    assert loaded_after("from rocketstore import *") == []


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["store", "--help"], ["message", "get", "--help"]],
    ids=" ".join,
)
def test_help_and_version_load_nothing_of_the_store(arguments):
    """What takes less than 0.15 s of CPU; most of it is the parser and its console."""
    code = "import contextlib, io, rocketstore.cli as cli\n"
    code += "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
    code += f"    cli.main({arguments})"
    ours = ("numpy", "msgspec", "rich.markdown", "rocketstore.config",
            "rocketstore.format", "rocketstore.storage")  # fmt: skip
    assert loaded_after(code, HEAVY + ours) == []
