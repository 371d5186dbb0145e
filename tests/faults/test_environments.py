"""Where a program may run: without asserts and docstrings, locale, home, descriptors, a directory.

A program puts, finds, consumes and verifies, then runs commands; it does so everywhere alike.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstore import verify_store
from support.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import os, sys
from rocketstore import Message, MessageStore, StoreConfig, verify_store
from rocketstore.cli import main

path, done = sys.argv[1], sys.argv[2]

def run(words):
    try:
        main(words)
    except SystemExit as end:
        return end.code or 0

with MessageStore.open(path, StoreConfig.small()) as store:
    store.put(Message(topic="orders", body="\\u00e4\\u20ac".encode(), keys="\\u00fc", tags="t"))
    store.wait_dispatched(timeout_s=60)
    found = [one.body.decode() for one in store.find("orders", "\\u00fc")]
    with store.consume("orders", "g", start="first", idle_timeout_s=60) as consumer:
        next(consumer).ack()
codes = [
    run([*words, "--output", form])
    for words in (
        ["store", "info", path], ["store", "verify", path], ["store", "repair", path, "--dry-run"],
        ["message", "get", path, "--topic", "orders"], ["queue", "list", path], ["config", "show"],
    )
    for form in ("table", "json")
]
with open(done, "w", encoding="utf-8") as file:
    print(found, codes, verify_store(path).findings, file=file)
"""
EXPECTED = f"{['ä€']} {[0] * 12} []\n"


def without_descriptors() -> None:
    os.closerange(0, 3)


def with_few_descriptors_and_open_to_all() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.umask(0)


def with_small_files_and_closed_to_others() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000))
    os.umask(0o077)


def in_no_directory() -> None:
    gone = Path(f"gone-{os.getpid()}")
    gone.mkdir()
    os.chdir(gone)
    Path.cwd().rmdir()


PLACES: dict[str, tuple[list[str], dict[str, str | None], Callable[[], None] | None]] = {
    "no asserts, docstrings, byte code": (["-OOIB", "-W", "error", "-X", "dev"], {}, None),
    "ASCII": ([], {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, None),
    "another encoding": ([], {"PYTHONIOENCODING": "latin-1", "LC_ALL": "tr_TR.UTF-8"}, None),
    "no environment": ([], dict.fromkeys(os.environ), None),
    "no home, nothing temporary": ([], {"HOME": "/none", "TMPDIR": "/none", "USER": None}, None),
    "no open descriptors": ([], {}, without_descriptors),
    "few descriptors, files for all": ([], {}, with_few_descriptors_and_open_to_all),
    "small files, closed to others": ([], {}, with_small_files_and_closed_to_others),
    "a directory that is gone": ([], {}, in_no_directory),
}  # fmt: skip


def outcome(
    place: tuple[list[str], dict[str, str | None], Callable[[], None] | None],
    root: Path, tmp_path: Path,
) -> str:  # fmt: skip
    """Run the program somewhere; return what it wrote down."""
    options, changes, before = place
    environment = {name: one for name, one in (os.environ | changes).items() if one is not None}
    done = tmp_path / "done"
    ended = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM, root, done],
        env=environment, cwd=tmp_path, preexec_fn=before, check=False, timeout=PATIENCE_S,
        capture_output=before is not without_descriptors, text=True, errors="replace",
    )  # fmt: skip
    return done.read_text("utf-8") if done.exists() else f"{ended.returncode}: {ended.stderr}"


@pytest.mark.parametrize("name", PLACES)
def test_a_program_and_commands_do_everywhere_the_same(name, tmp_path):
    root = tmp_path / "store"
    assert outcome(PLACES[name], root, tmp_path) == EXPECTED
    assert verify_store(root).findings == []


def test_a_path_that_is_no_utf_8_is_a_path(tmp_path):
    """Its bytes are escapes in JSON: there is no other way to write them."""
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/st\xff\xe4re"))
    assert outcome(([], {}, None), root, tmp_path) == EXPECTED
