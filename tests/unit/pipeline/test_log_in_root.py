"""A log that lies in the store's root: the store's own files are no strays among those of the log.

And what else verify, the audit, repair and rebuild say and do about directories that are there.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rocketstore import MessageStore, repair_store, verify_store
from rocketstore.errors import NotAStoreError, StoreLockedError
from support.audit_runs import audited
from support.clock import START_MS, Clock
from support.rebuild_runs import rebuilt_here
from support.small_store import CONFIG, bodies, build_store, messages, put_all

COUNT = 200
NOW_MS = START_MS + 3_600_000


@pytest.fixture
def in_root(tmp_path):
    root = tmp_path / "store"
    config = msgspec.structs.replace(CONFIG, store_path_commit_log=f"{root}/ ")
    with opened(root, config) as store:
        put_all(store, messages(COUNT), Clock())
    for name in ("config", "lost+found", "repair", "rebuild", "sink", "timerwheel"):
        (root / name).mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (root / "notes.txt").write_text("of the operator")
    return root, config


def opened(root, config):
    return MessageStore.open(root, config, clock=Clock(), threads=False)


def test_no_check_calls_the_files_of_the_store_strays(in_root):
    root, config = in_root
    assert verify_store(root, config, now_ms=NOW_MS).findings == []
    assert audited(root, config).findings == []
    with opened(root, config) as store:
        assert store.problems == []
        assert verify_store(root, config, now_ms=NOW_MS).findings == []


def test_a_stray_file_of_the_log_is_named_there_too(in_root):
    root, config = in_root
    shutil.copy(root / ("0" * 20), root / ("0" * 20 + ".bak"))
    kinds = [one.kind for one in verify_store(root, config, now_ms=NOW_MS).findings]
    assert kinds == ["log-file-wrong-name"]
    assert kinds == [one.kind for one in audited(root, config).findings]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("damage", [False, True])
def test_repair_and_rebuild_move_nothing_of_the_store(in_root, *, damage):
    root, config = in_root
    before = names(root)
    if damage:
        (root / "consumequeue" / "Topic0" / "0" / ("0" * 20)).write_bytes(b"")
    repair_store(root, config, now_ms=NOW_MS)
    rebuilt_here(root, config=config)
    assert set(names(root)) >= set(before) - {"rebuild"}  # that a rebuild sweeps
    with opened(root, config) as store:
        assert len(bodies(store, "Topic0")) == COUNT // 2


def test_a_repair_beside_a_writer_is_refused_and_the_lock_stays(in_root):
    root, config = in_root
    code = f"import sys\nfrom rocketstore import MessageStore, StoreConfig\n\
store = MessageStore.open({str(root)!r}, StoreConfig(store_path_commit_log={str(root)!r}))\n\
print(flush=True)\nsys.stdin.read()\nstore.close()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        writer.stdout.readline()
        with pytest.raises(StoreLockedError) as caught:
            repair_store(root, config, now_ms=NOW_MS)
        assert caught.value.owner_pid == writer.pid
        assert (root / "lock").exists()
        writer.stdin.close()
        assert writer.wait() == 0
    assert (root / "lock").stat().st_size == 4


# --- copies, and what a rebuild does with them ----------------------------------------------------


def test_a_rebuild_keeps_copies_of_queues_and_makes_nothing_of_them(tmp_path):
    build_store(tmp_path, COUNT, Clock())
    queues = tmp_path / "consumequeue"
    shutil.copytree(queues / "Topic0", queues / "Topic0.bak")
    before = (queues / "Topic0.bak" / "0" / ("0" * 20)).read_bytes()
    rebuilt_here(tmp_path, config=CONFIG)
    (kept,) = tmp_path.glob("repair/*/consumequeue/Topic0.bak/0/" + "0" * 20)
    assert kept.read_bytes() == before
    with opened(tmp_path, CONFIG) as store:
        assert store.topics() == ["Topic0", "Topic1"]
        assert store.max_offset("Topic0.bak", 0) == 0


@pytest.mark.parametrize("look", [verify_store, audited])
def test_verify_and_audit_name_a_log_of_dledger_beside_ours(tmp_path, look):
    build_store(tmp_path, COUNT, Clock())
    file = tmp_path / "dledger-n0" / "data" / ("0" * 20)
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(100))
    (found,) = look(tmp_path, CONFIG, now_ms=NOW_MS).findings
    assert (found.kind, found.file) == ("dledger", "dledger-n0")


@pytest.mark.parametrize("look", [verify_store, audited])
@pytest.mark.parametrize("place", ["dledger-n0/data", "commitlog"])
def test_verify_and_audit_refuse_a_log_of_dledger_by_its_name(tmp_path, look, place):
    file = tmp_path / place / ("0" * 20)
    file.parent.mkdir(parents=True)
    file.write_bytes(((1).to_bytes(4, "big") + bytes(72) + (48).to_bytes(8, "big")).ljust(16_384))
    with pytest.raises(NotAStoreError, match=f"{tmp_path}/{place.partition('/')[0]}.* DLedger"):
        look(tmp_path, CONFIG, now_ms=NOW_MS)
