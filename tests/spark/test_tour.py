"""The notebook of the guide runs from its first cell to its last, in a kernel of its own."""

import json
import subprocess
import sys

import pytest

from support.repository import ROOT
from support.spark_home import spark_environment
from support.spark_session import require_java, submitted

pytestmark = [pytest.mark.spark]

NOTEBOOK = ROOT / "docs/guide/spark-tour.ipynb"

RUN = """
import sys
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
manager = AsyncKernelManager()
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager._kernel_spec = KernelSpec(argv=command, display_name="this Python", language="python")
NotebookClient(notebook, km=manager, timeout=600).execute()
nbformat.write(notebook, sys.argv[2])
"""
"""In a process of its own: Jupyter leaves sockets and tasks behind in the one that asks."""


def cells(notebook):
    return json.loads(notebook.read_text("utf-8"))["cells"]


def test_the_tour_runs_to_its_end(tmp_path):
    require_java()
    own = dict.fromkeys(("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"), str(tmp_path))
    own["PYSPARK_SUBMIT_ARGS"] = submitted()
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOK), str(tmp_path / "run.ipynb")],
        env=spark_environment() | own, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    outputs = [out for cell in cells(tmp_path / "run.ipynb") for out in cell.get("outputs", ())]
    texts = ["".join(out["text"]) for out in outputs if "text" in out]
    assert any("6000 rows, 4 commits" in text for text in texts), texts
    assert not any(path.name.startswith("rocketstore-tour-") for path in tmp_path.iterdir())


def test_the_notebook_is_kept_without_what_it_printed():
    assert not [cell for cell in cells(NOTEBOOK) if cell.get("outputs")]
    assert not [cell for cell in cells(NOTEBOOK) if cell.get("execution_count")]
