"""What `import rocketstore` costs: no compiler, no columns, no cluster."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("numba", "llvmlite", "pyarrow", "pyspark", "pandas")


def loaded_after(code: str) -> list[str]:
    code += f"\nimport json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


def test_import_of_the_package_and_its_public_names_loads_nothing_heavy():
    assert loaded_after("from rocketstore import *") == []


def test_the_command_line_s_help_loads_nothing_heavy():
    code = "import contextlib, io, rocketstore.cli as cli\n"
    code += "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
    code += "    cli.main(['--help'])"
    assert loaded_after(code) == []
