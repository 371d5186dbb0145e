"""A writer that comes while the store is verified: what it writes is no damage."""

import os
from pathlib import Path
from typing import Any

import pytest

from rocketstore import MessageStore, verify_store
from rocketstore.rules.findings import Finding, Severity
from rocketstore.storage.files.pread_files import OpenFiles
from support.clock import Clock
from support.configured_store import open_small
from support.hooked_disk import HookedDisk
from support.openings import SIZES, look_beside_openings, put


@pytest.mark.parametrize("end", ["close", "abandon", None])
def test_a_writer_that_comes_while_a_store_is_verified_is_no_damage(tmp_path, monkeypatch, end):
    """Whether or not it has gone again before the look ends."""

    def look(root: Path, now_ms: int) -> list[Finding]:
        return verify_store(root, now_ms=now_ms).findings

    look_beside_openings(tmp_path, end, look, monkeypatch)


def test_a_store_is_one_from_the_lock_of_its_first_opening_on(tmp_path):
    seen = []

    def before(call: str, path: Path) -> None:
        if (call, path.name) == ("make_directory", "commitlog"):
            seen.extend(verify_store(tmp_path / "store").findings)
            assert MessageStore.open(tmp_path / "store", read_only=True).queues() == []

    open_small(tmp_path / "store", disk=HookedDisk(before)).close()
    assert {(one.kind, one.severity) for one in seen} == {
        ("log-empty", Severity.NOTE), ("checkpoint", Severity.NOTE),
    }  # fmt: skip


def test_a_log_file_that_is_deleted_while_it_is_verified_is_no_error(tmp_path, monkeypatch):
    """At each look another one, as where retention follows a scan of many files."""
    clock = Clock()
    with open_small(tmp_path, clock, **SIZES) as store:
        put(store, clock, 20)
        files = sorted((tmp_path / "commitlog").iterdir())
        assert len(files) > 4
        opened = os.open

        def after_a_deletion(path: Any, *arguments: Any, **options: Any) -> int:
            if len(files) > 3 and Path(path) == files[0]:
                files.pop(0).unlink()
            return opened(path, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", after_a_deletion)
            report = verify_store(tmp_path, now_ms=clock.now_ms)
        assert len(files) < 5
        assert [one for one in report.findings if one.severity is Severity.DAMAGE] == []


def test_an_index_file_that_is_deleted_when_it_is_to_be_read_is_no_empty_one(tmp_path, monkeypatch):
    clock = Clock()
    with open_small(tmp_path, clock, **SIZES) as store:
        put(store, clock, 20)
    oldest = min((tmp_path / "index").iterdir())
    read = OpenFiles.read

    def after_the_deletion(files: OpenFiles, path: Path, position: int, size: int) -> bytes | None:
        if path == oldest:
            oldest.unlink(missing_ok=True)
        return read(files, path, position, size)

    monkeypatch.setattr(OpenFiles, "read", after_the_deletion)
    assert {one.kind for one in verify_store(tmp_path, now_ms=clock.now_ms).findings} == {
        "index-missing"
    }
    assert not oldest.exists()
