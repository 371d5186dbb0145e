"""A file that is a link to a disk that is not there: named, and nothing is made in its place."""

from pathlib import Path

import pytest

from rocketstore import MessageStore, repair_store, verify_store
from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.places.files import LocalFiles
from rocketstore.rules.findings import Severity
from support.clock import START_MS, Clock
from support.small_store import CONFIG, LOG_FILE_BYTES, bodies, build_store, open_store

COUNT = 200
NOW_MS = START_MS + 3_600_000
QUEUE_FILE = "consumequeue/Topic1/0/00000000000000000000"
SECOND_LOG_FILE = f"commitlog/{LOG_FILE_BYTES:020d}"


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    build_store(root, COUNT, Clock())
    return root


def unmount(root: Path, name: str) -> Path:
    """Make a file a link to another disk, and take that disk away; return where the file is."""
    kept = root.parent / "kept"
    (root / name).rename(kept)
    (root / name).symlink_to(root.parent / "disk" / "file")
    return kept


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [(SECOND_LOG_FILE, "log-file-dangling-link"), (QUEUE_FILE, "queue-file-dangling-link")],
)
def test_a_link_to_nothing_is_damage_that_nobody_repairs_or_writes_over(store, name, kind):
    kept = unmount(store, name)
    before = names(store)
    report = verify_store(store, CONFIG, now_ms=NOW_MS)
    (finding,) = [found for found in report.findings if found.kind == kind]
    assert finding.severity is Severity.DAMAGE
    assert finding.file == name
    assert "bring back" in finding.action
    for dry_run in (True, False):
        with pytest.raises(StoreDamagedError, match=r"00.*disk/file"):
            repair_store(store, config=CONFIG, dry_run=dry_run, now_ms=NOW_MS)
    with pytest.raises(StoreDamagedError, match=r"00.*disk/file"):
        open_store(store, Clock(NOW_MS))
    assert names(store) == before

    (store.parent / "disk").mkdir()
    kept.rename(store.parent / "disk" / "file")
    assert not verify_store(store, CONFIG, now_ms=NOW_MS).findings
    with open_store(store, Clock(NOW_MS)) as opened:
        assert len(bodies(opened, "Topic1")) == COUNT // 2


def test_a_reader_serves_what_is_there(store):
    unmount(store, SECOND_LOG_FILE)
    with MessageStore.open(store, CONFIG, read_only=True) as reader:
        assert 0 < len(bodies(reader, "Topic1")) < COUNT // 2


def test_spark_leaves_no_messages_out_silently(store):
    unmount(store, SECOND_LOG_FILE)
    (store / "commitlog" / "note").symlink_to(store / "nowhere")
    with pytest.raises(StoreError, match="link to something that is not there"):
        LocalFiles().list(str(store / "commitlog"))
    assert LocalFiles().list(str(store / "consumequeue"))
