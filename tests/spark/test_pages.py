"""The examples of the pages on Spark run as they stand."""

import re
import shutil

import pytest

from rocketstore import pipeline
from support.golden import golden_case
from support.repository import ROOT

pytestmark = [pytest.mark.spark]

EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages_with_examples():
    pages = sorted((ROOT / "docs").glob("*/spark*.md"))
    return [page.relative_to(ROOT).as_posix() for page in pages if EXAMPLE.search(page.read_text())]


@pytest.mark.parametrize("page", pages_with_examples())
def test_every_example_runs(spark, page, monkeypatch, capsys, tmp_path):
    """In the examples, `data/store` is a store, and anything below `data/` may be written."""
    shutil.copytree(golden_case("broker") / "store", tmp_path / "data" / "store")
    # The one session there is; `getOrCreate` would return it with other settings.
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    names = {"spark": spark}
    for written in EXAMPLE.findall((ROOT / page).read_text("utf-8")):
        # A relative path is seen from where Spark was started, which a test cannot move.
        example = re.sub(r"(?<=[\"'])data/", f"{tmp_path}/data/", written)
        exec(compile(example, page, "exec"), names)  # noqa: S102 - our own pages
    assert capsys.readouterr().out
