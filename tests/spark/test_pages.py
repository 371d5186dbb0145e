"""The examples of the pages run as they stand."""

from __future__ import annotations

import re

import pytest

from rocketstore import pipeline
from support.golden import golden_case
from support.repository import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PAGES = ("guide/spark.md", "reference/spark-tables.md", "reference/spark-options.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs(spark, page, monkeypatch, capsys):
    # A relative path is seen from where Spark was started, which a test cannot move.
    store = str(golden_case("broker") / "store")
    # The one session there is; `getOrCreate` would return it with other settings.
    monkeypatch.setattr(pipeline, "session", lambda: spark)
    text = (ROOT / "docs" / page).read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert examples
    names = {"spark": spark}
    for example in (one.replace("data/store", store) for one in examples):
        exec(compile(example, f"docs/{page}", "exec"), names)  # noqa: S102 - our own pages
    assert capsys.readouterr().out
