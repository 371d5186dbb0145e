"""A store whose writer has no number here, as in another container, is in use all the same."""

import os
import shutil

import pytest

from rocketstore import MessageStore, repair_store, verify_store
from rocketstore.errors import StoreLockedError
from rocketstore.pipeline.jobs.audit.audit_job import prove_rebuild
from rocketstore.pipeline.sink.sink_commit import check_target
from rocketstore.storage.files import lock
from rocketstore.storage.files.lock import UNKNOWN_WRITER, writer_pid
from support.audit_runs import audited
from support.clock import Clock
from support.foreign_lock import held
from support.sink_parts import sink_options
from support.small_store import CONFIG, messages, open_store, put_all

WHO = "a process in another container or on another host"


@pytest.fixture
def root(tmp_path):
    """A store as its writer has it: the last messages are in no queue yet."""
    with open_store(tmp_path / "written", Clock()) as writer:
        put_all(writer, messages(40), Clock())
        for message in messages(5, first=40):
            writer.put(message, queue_id=0)
        shutil.copytree(tmp_path / "written", tmp_path / "store")
    return tmp_path / "store"


def damage(report):
    """Return what is missing of the queues, which a writer at work would still make."""
    return [
        one
        for one in report.findings
        if one.severity.value != "note" and one.kind == "queue-missing"
    ]


def test_a_live_store_is_not_called_damaged(root):
    with held(root):
        assert damage(audited(root)) == []
        assert damage(verify_store(root, CONFIG)) == []
        assert writer_pid(root / "lock") == UNKNOWN_WRITER
    assert writer_pid(root / "lock") is None
    assert {one.kind for one in damage(audited(root))} == {"queue-missing"}


def test_what_needs_a_closed_store_is_refused_and_says_who_has_it(root):
    with held(root):
        for work in (
            lambda: MessageStore.open(root, CONFIG),
            lambda: check_target(sink_options(root)),
            lambda: prove_rebuild(None, root),
            lambda: repair_store(root, config=CONFIG, now_ms=1, dry_run=True),
        ):
            with pytest.raises(StoreLockedError, match=WHO) as caught:
                work()
            assert caught.value.owner_pid is None


@pytest.mark.parametrize("has_abort", [True, False])
def test_where_the_kernel_cannot_be_asked_abort_decides(root, monkeypatch, has_abort):
    if not has_abort:
        (root / "abort").unlink()

    def refuse(*_: object, **_more: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock.fcntl, "fcntl", refuse)
    assert (writer_pid(root / "lock") is not None) == has_abort
    assert (damage(audited(root)) == []) == has_abort
    assert (damage(verify_store(root, CONFIG)) == []) == has_abort


@pytest.mark.parametrize("kind", ["nfs4", "virtiofs"])
def test_a_free_lock_on_a_disk_of_several_machines_proves_nothing(
    root, tmp_path, monkeypatch, kind
):
    assert damage(audited(root)) != []
    device = root.stat().st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw - {kind} server:/ rw\n"
    (tmp_path / "mountinfo").write_text(line)
    monkeypatch.setattr(lock, "_MOUNTS", tmp_path / "mountinfo")
    assert damage(audited(root)) == damage(verify_store(root, CONFIG)) == []
    (root / "abort").unlink()
    assert damage(audited(root)) != []
