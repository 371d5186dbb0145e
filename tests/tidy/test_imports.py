"""What imports cost: no compiler, no columns, no cluster; a broker loads what a broker needs."""

import json

import pytest

from support.python_process import printed

HEAVY = ("numba", "llvmlite", "pyarrow", "pyspark", "pandas", "javaproperties")


def loaded_after(code: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    code += f"\nimport json, sys; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    return json.loads(printed(code))


def test_import_of_the_package_and_its_public_names_loads_nothing_heavy():
    assert loaded_after("from rocketstore import *") == []


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["store", "--help"], ["message", "get", "--help"], ["pipeline"]],
    ids=" ".join,
)
def test_help_and_version_load_nothing_of_the_store(arguments):
    """What takes less than 0.15 s of CPU; most of it is the parser and its console."""
    code = "import contextlib, io, rocketstore.cli as cli\n"
    code += "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
    code += f"    cli.main({arguments})"
    ours = ("numpy", "msgspec", "rich.markdown", "rocketstore.config",
            "rocketstore.format", "rocketstore.storage",
            "rocketstore.pipeline.environment")  # fmt: skip
    assert loaded_after(code, HEAVY + ours) == []


def test_a_broker_loads_nothing_that_only_others_need_before_it_is_ready():
    """Of 0.25 s of CPU until it is ready, most are imports."""
    others = ("importlib.metadata", "rocketstore.replication", "rocketstore.verification",
              "rocketstore.audit", "rocketstore.metrics.exporter", "prometheus_client", "psutil",
              "rich")  # fmt: skip
    assert (
        loaded_after("import rocketstore.cli.broker, rocketstore.cli.serve", HEAVY + others) == []
    )


def test_a_command_runs_with_the_collector_which_its_imports_went_without():
    code = "import gc, rocketstore.cli.application as cli\n"
    code += "cli.app.command(lambda: print(gc.isenabled()), name='looks')\n"
    code += "cli.main(['looks'])"
    assert printed(code) == "True\n"
