"""The page of the tests names each directory, and nothing else."""

import re

from support.repository import ROOT, files_with


def test_the_page_of_the_tests_has_every_directory():
    page = (ROOT / "tests" / "README.md").read_text("utf-8")
    directories = {path.parts[1] for path in files_with(".py", under=("tests",))} - {"conftest.py"}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == directories
