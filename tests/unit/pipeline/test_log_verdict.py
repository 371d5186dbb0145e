"""What an earlier log left is the same to verify, audit and rebuild, however the log is cut."""

import random

import pytest

from rocketstore import verify_store
from rocketstore.format.file_name import file_name
from rocketstore.places import log_verdict
from rocketstore.units import MiB
from support.audit_runs import audited, keys
from support.clock import START_MS, Clock
from support.rebuild_runs import rebuilt_here
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    build_store,
    messages,
    open_store,
    overwrite,
    put_all,
)


def overlaid(root, dice):
    """Write a log over an older, longer one, and damage some places of what came of it."""
    build_store(root, 300, Clock())
    later = Clock(START_MS + dice.choice((-5_000, 100, 1_000)))
    kept = dice.choice((60, 100, 140))
    offsets = build_store(root.with_name("later"), kept, Clock())
    with open_store(root.with_name("later"), later) as store:
        offsets += put_all(
            store,
            messages(dice.choice((1, 20, 60)), first=kept, body_size=dice.choice((70, 200))),
            later,
        )
    for path in sorted((root.with_name("later") / "commitlog").iterdir()):
        content = path.read_bytes()[: max(0, offsets[-1] - int(path.name))]
        overwrite(root, int(path.name), content)
    # Of the last records' headers some lead to the old log's records.
    for offset in dice.sample(offsets, dice.randrange(3)) + dice.sample(offsets[-3:], 1):
        place = offset + dice.choice((0, 20, 56, 100))
        overwrite(root, place, dice.randbytes(dice.choice((1, 8, 200))))
    if dice.random() < 0.2:
        (root / "commitlog" / file_name(LOG_FILE_BYTES)).unlink()


@pytest.mark.parametrize("seed", [6, 7, 10, 13, 14, 15, 17, 19, 32, 34, 38, 43, 44, 47])
def test_verify_audit_and_rebuild_give_one_verdict(tmp_path, seed, monkeypatch):
    root = tmp_path / "store"
    overlaid(root, random.Random(seed))
    verified = verify_store(root, CONFIG)
    for size, window in ((2_500, 1), (MiB, log_verdict.WINDOW_BYTES)):
        monkeypatch.setattr(log_verdict, "WINDOW_BYTES", window)
        report = audited(root, CONFIG, max_split_bytes=size)
        assert keys(report.findings) == keys(verified.findings)
        assert report.counts == verified.counts
        rebuilt = rebuilt_here(
            root, config=CONFIG, max_split_bytes=size, target=tmp_path / f"{size}"
        )
        assert rebuilt.log_end == verified.counts.max_physical_offset
        assert rebuilt.record_count == verified.counts.message_count
