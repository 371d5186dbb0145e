"""The notebook of the guide runs from its first cell to its last, in a kernel of its own."""

from __future__ import annotations

import sys

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from support.repository import ROOT
from support.spark_session import require_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("default"),  # Jupyter's own
]

NOTEBOOK = ROOT / "docs/guide/spark-tour.ipynb"


def test_the_tour_runs_to_its_end(tmp_path, monkeypatch):
    require_java()
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    manager = AsyncKernelManager()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="this Python", language="python")
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, km=manager, timeout=240, resources=resources).execute()
    texts = [
        out.text for cell in notebook.cells for out in cell.get("outputs", ()) if "text" in out
    ]
    assert any("6000 rows, 4 commits" in text for text in texts), texts
    assert not any(path.name.startswith("rocketstore-tour-") for path in tmp_path.iterdir())


def test_the_notebook_is_kept_without_what_it_printed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [
        cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")
    ] == []
