"""Code as users write it passes mypy --strict, and their mistakes do not."""

import re
from pathlib import Path

import pytest

from support.patience import START_S
from support.python_process import run_python
from support.repository import ROOT, files_with

HERE = Path(__file__).parent
EXAMPLES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))
RUN_ELSEWHERE = re.compile(r"docs/(guide|reference)/spark|docs/guide/testing|tests/")
"""Pages whose examples other tests run: in one Spark session, or as suites of pytest."""
NO_NAME = re.compile(r"\W")
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def cache(request, tmp_path_factory):
    """Return where mypy keeps what it knows of files that have not changed.

    For later runs too, unless pytest keeps nothing itself (``-p no:cacheprovider``).
    """
    kept = getattr(request.config, "cache", None)
    return tmp_path_factory.mktemp("mypy") if kept is None else kept.mkdir("mypy")


def test_user_code_passes_a_strict_type_checker(tmp_path, cache):
    pytest.importorskip("mypy", reason="mypy is a tool of development")
    assert len(EXAMPLES) == 4
    written = python_of_the_pages(tmp_path)
    assert written
    options = ["--strict", "--config-file=", "--show-traceback", f"--cache-dir={cache}"]
    run = run_python("-m", "mypy", *options, *EXAMPLES, *written, limit_s=START_S)
    assert run.returncode == 0, run.stdout + run.stderr


def python_of_the_pages(tmp_path: Path) -> list[Path]:
    """Write each block of Python to a file of its own."""
    written = []
    for page in files_with(".md"):
        if RUN_ELSEWHERE.match(str(page)):
            continue
        for number, code in enumerate(PYTHON_BLOCK.findall((ROOT / page).read_text("utf-8"))):
            name = NO_NAME.sub("_", str(page.with_suffix("")).lower())
            path = tmp_path / f"{name}_{number}.py"
            path.write_text(code)
            written.append(path)
    return written
