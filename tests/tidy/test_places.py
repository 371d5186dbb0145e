"""Nothing in the repository depends on the machine that it was written on."""

import re
from urllib.parse import urlsplit

import pytest

from support.repository import ROOT, repository_files

MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|root|home|Users|opt)/[\w.-]+")
"""Absolute paths of somebody's machine; ``/tmp``, ``/proc`` and ``/dev`` are everybody's."""

URL = re.compile(r"https?://[^\s)>\"'`\]]+")

PUBLIC_HOSTS = {
    "maven.apache.org",
    "rocketmq.apache.org",
    "www.apache.org",
    "www.w3.org",
    "github.com",
}

INDEX_OPTION = re.compile(r"(?:--(?:extra-)?index-url|--find-links|--trusted-host|<mirror>)")
"""Where packages come from is a matter of the machine's own settings."""


def texts():
    for path in repository_files():
        try:
            yield path, (ROOT / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cd /" + "home/alice/store", True),
        ('"/' + 'work/main"', True),
        ("$HOME/work/x", False),
        ("../work/notes.md", False),
        ("/proc/self", False),
    ],
)
def test_the_pattern_knows_a_machine_s_path(text, found):
    assert bool(MACHINE_PATH.search(text)) is found


def test_no_path_of_a_machine():
    found = [
        f"{path}: {match[0]}" for path, text in texts() for match in MACHINE_PATH.finditer(text)
    ]
    assert not found


def test_every_url_points_at_a_public_host():
    found = [
        f"{path}: {match[0]}"
        for path, text in texts()
        for match in URL.finditer(text)
        if urlsplit(match[0]).hostname not in PUBLIC_HOSTS
    ]
    assert not found


def test_no_package_index_is_named():
    found = [
        f"{path}: {match[0]}"
        for path, text in texts()
        if path.parts[:2] != ("tests", "tidy")
        for match in INDEX_OPTION.finditer(text)
    ]
    assert not found
