"""What verify finds in batch queues, and a repair builds again."""

import json
import shutil
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, Severity, StoreConfig, repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.cli.application import run
from rocketstore.errors import StoreDamagedError
from rocketstore.format.batch_queue_entry import (
    BATCH_ENTRY_SIZE_BYTES,
    BatchEntry,
    encode_batch_entry,
)
from rocketstore.places import small_files
from rocketstore.places.store_listing import batch_topics_of, list_store
from rocketstore.units import QueueKey
from support.audit_runs import audited, proved
from support.batch_stores import BATCHES, PLAIN, bodies, open_batches, put
from support.clock import START_MS
from support.inside import parts_of
from support.memory import memory_directory
from support.reading import pages_of
from support.rebuild_runs import rebuilt_here
from support.store_files import overwrite_file

ENTRY = BATCH_ENTRY_SIZE_BYTES
CONFIG = StoreConfig()


@pytest.fixture
def root():
    with memory_directory() as directory:
        with open_batches(directory, mapped_file_size_batch_queue=8 * ENTRY) as store:
            for number in range(20):
                put(store, f"{number}", "x")
                put(store, "p", topic=PLAIN)
        yield directory


def kinds(root: Path) -> list[tuple[str, int]]:
    report = verify_store(root, now_ms=START_MS)
    return [(one.kind, one.queue_offset) for one in report.findings]


def files(root: Path) -> list[Path]:
    return sorted((root / "batchconsumequeue" / BATCHES / "0").iterdir())


def check_whole(root: Path) -> None:
    assert verify_store(root, now_ms=START_MS).findings == []
    with open_batches(root) as store:
        found = [one for page in pages_of(store, BATCHES) for one in bodies(page)]
    assert found == [(n, "x" if n % 2 else str(n // 2)) for n in range(40)]


def test_a_store_that_is_whole_has_no_finding(root):
    check_whole(root)
    assert repair_store(root, now_ms=START_MS).actions == []


LATE = encode_batch_entry(BatchEntry(1 << 40, 100, 0, 0, 77, 1))
HARMS = {
    "wrong": (
        "queue-wrong", 20,
        lambda root: overwrite_file(files(root)[1], 2 * ENTRY + 8, b"\0\0\0\1"),
    ),
    "hole": ("queue-wrong", 16, lambda root: overwrite_file(files(root)[1], 0, bytes(2 * ENTRY))),
    "cut": ("queue-missing", 32, lambda root: files(root)[-1].unlink()),
    "late": ("queue-beyond-log", 77, lambda root: overwrite_file(files(root)[-1], 4 * ENTRY, LATE)),
    "no queue": ("queue-missing", 0, lambda root: shutil.rmtree(root / "batchconsumequeue")),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("split", [500, 1 << 20])
def test_the_audit_on_spark_finds_the_same_in_the_same_words(root, harm, split):
    assert not audited(root, now_ms=START_MS).has_warnings
    HARMS[harm][2](root)
    (found,) = verify_store(root, now_ms=START_MS).findings
    report = audited(root, now_ms=START_MS, max_split_bytes=split)
    assert [one for one in report.findings if one.severity is Severity.DAMAGE] == [found]
    assert report.exit_code == 4
    assert not proved(root).has_warnings  # a rebuild on Spark makes no batch queue


def test_what_a_kill_kept_from_being_entered_is_no_damage_for_verify_and_audit(root):
    with open_batches(root, mapped_file_size_batch_queue=8 * ENTRY) as store:
        put(store, "last")
    file = files(root)[-1]
    overwrite_file(file, len(file.read_bytes().rstrip(b"\0")) // ENTRY * ENTRY, bytes(ENTRY))
    (root / "abort").touch()
    report = verify_store(root, now_ms=START_MS)
    assert (report.findings[0].kind, report.exit_code) == ("queue-missing", 1)
    assert "the next opening" in report.findings[0].action
    assert audited(root, now_ms=START_MS).findings[0] == report.findings[0]
    open_batches(root, mapped_file_size_batch_queue=8 * ENTRY).close()
    assert verify_store(root, now_ms=START_MS).findings == []


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_wrong_is_found_and_built_again(root, harm, capsys):
    kind, offset, do = HARMS[harm]
    do(root)
    assert kinds(root) == [(kind, offset)]
    assert run(["store", "verify", str(root)]) == 4
    assert kind in capsys.readouterr().out
    said = repair_store(root, now_ms=START_MS, dry_run=True)
    assert (len(said.findings), len(said.actions)) == (1, 1)
    assert kinds(root) == [(kind, offset)]
    assert run(["store", "repair", str(root)]) == 1
    assert BATCHES in capsys.readouterr().out
    if harm != "no queue":
        assert list((root / "repair").rglob("batchconsumequeue*"))
    check_whole(root)
    assert run(["store", "repair", str(root)]) == 0


def test_python_is_told_what_the_command_says_and_repairs_as_it_does(root, capsys):
    HARMS["wrong"][2](root)
    report = verify_store(root)
    assert [one.kind for one in report.findings] == ["queue-wrong"]
    run(["store", "verify", str(root), "--output", "json"])
    assert json.loads(capsys.readouterr().out) == report.to_dict()
    said = repair_store(root, dry_run=True)
    assert not (root / "repair").exists()
    done = repair_store(root)
    assert (said.findings, said.actions) == (done.findings, done.actions)
    assert len(done.actions) == 1
    assert said.evidence is None
    assert (root / done.evidence / "batchconsumequeue" / BATCHES / "0").is_dir()
    check_whole(root)


def test_groups_that_stand_outside_a_batch_queue_are_named_by_verify_and_by_the_audit(root):
    places = {"ahead": 41, "inside": 7, "at the end": 40}
    table = {f"{BATCHES}@{group}": {"0": offset} for group, offset in places.items()}
    table[f"{BATCHES}@elsewhere"] = {"9": 1}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    wrong = {("consumer-ahead", 0, 41), ("consumer-ahead", 9, 1)}

    def found(report):
        return {(one.kind, one.queue_id, one.queue_offset) for one in report.findings}

    assert found(verify_store(root)) == wrong
    assert set(verify_store(root, now_ms=START_MS).findings) == set(
        audited(root, now_ms=START_MS).findings
    )
    repaired = repair_store(root, now_ms=START_MS)
    assert (repaired.findings, repaired.actions) == ([], [])


def test_a_file_of_a_wrong_length_is_found_and_built_again(root):
    content = files(root)[0].read_bytes()
    files(root)[0].write_bytes(content[:100])
    found = verify_store(root, now_ms=START_MS).findings
    assert {"queue-file-wrong-size", "queue-wrong"} == {one.kind for one in found}
    assert set(found) <= set(audited(root, now_ms=START_MS).findings)
    repair_store(root, now_ms=START_MS)
    check_whole(root)
    assert files(root)[0].read_bytes() == content


def test_what_repairs_the_rest_of_a_store_leaves_batch_queues_right(root):
    table = (root / "config/topics.json").read_bytes()
    (root / "abort").touch()
    report = repair_store(root, now_ms=START_MS)
    assert (root / "config/topics.json").read_bytes() == table
    assert report.remaining == []
    assert not [one for one in report.actions if "batch" in one]
    check_whole(root)
    rebuild_store(root, CONFIG, what="queues", now_ms=START_MS)
    assert not (root / "consumequeue" / BATCHES).exists()
    check_whole(root)


def test_what_a_live_writer_has_not_dispatched_is_no_fault(root):
    with open_batches(root) as store:
        store.put_batch([Message(topic=BATCHES, body=b"not yet")])
        assert verify_store(root, now_ms=START_MS).findings == []
    assert verify_store(root, now_ms=START_MS).findings == []


def test_jobs_of_spark_miss_no_entry_of_a_batch_and_make_none(root, tmp_path):
    assert not audited(root).has_warnings
    assert not proved(root).has_warnings
    report = rebuilt_here(root, target=tmp_path / "made")
    assert report.refused_count == 0
    made = {path.name for path in (tmp_path / "made" / "consumequeue").iterdir()}
    assert made == {PLAIN}


# --- queues of both kinds -------------------------------------------------------------------------


def tables(root: Path) -> list[Path]:
    return sorted((root / "config").glob("topics.json*"))


def forget_the_kind(path: Path) -> None:
    """Write the table as a broker does that knows no kinds of queues."""
    table = json.loads(path.read_bytes())
    table["topicConfigTable"][BATCHES].pop("attributes")
    path.write_text(json.dumps(table))


def check_refused(root: Path, place: str) -> None:
    for read_only in (False, True):
        with pytest.raises(StoreDamagedError, match=f"{root}/{place}: {BATCHES} is "):
            MessageStore.open(root, read_only=read_only)


@pytest.mark.parametrize("policy", ["salvage", "compatible"])
def test_queues_that_a_broker_of_4_made_of_a_batch_topic_are_found_and_moved_away(root, policy):
    queues, name = root / "consumequeue", f"consumequeue/{BATCHES}"
    content = next((queues / PLAIN / "0").iterdir()).read_bytes()
    shutil.copytree(queues / PLAIN, queues / BATCHES)
    (found,) = verify_store(root, now_ms=START_MS).findings
    assert (found.kind, found.severity) == ("queue-kind", Severity.DAMAGE)
    assert (found.file, found.topic) == (name, BATCHES)
    assert "repair, moves the directory" in found.action
    assert audited(root, now_ms=START_MS).findings == [found]
    said = repair_store(root, now_ms=START_MS, policy=policy, dry_run=True)
    assert (queues / BATCHES).is_dir()
    done = repair_store(root, now_ms=START_MS, policy=policy)
    assert (said.findings, said.actions) == (done.findings, done.actions)
    assert done.actions[0] == f"{name}: move it to repair/"
    assert said.remaining == done.remaining == []
    (kept,) = (root / done.evidence / name).rglob("0*0")
    assert kept.read_bytes() == content
    check_whole(root)


def test_records_that_no_queue_has_are_counted_and_stay_so_after_a_repair(root):
    """As those that a program put there which knew no kinds, or one whose header lies."""
    with open_batches(root) as store:
        counter = parts_of(store).log.counter(QueueKey(BATCHES, 0))
        counter.next_offset = 3
        store.put(Message(topic=BATCHES, body=b"hidden"))
        store.put(Message(topic=BATCHES, body=b"hidden too"))
        place = store.put(Message(topic=BATCHES, body=b"and this")).physical_offset
        store.wait_dispatched()
        assert store.max_offset(BATCHES, 0) == counter.first_offset
        counter.next_offset = counter.first_offset
        put(store, "next")
    (found,) = verify_store(root, now_ms=START_MS).findings
    assert (found.kind, found.severity) == ("queue-impossible", Severity.DAMAGE)
    assert found.reason.startswith("3 of 24 records: their queue offsets")
    assert found.physical_offset is not None
    assert found.physical_offset < place
    assert audited(root, now_ms=START_MS).findings == [found]
    HARMS["wrong"][2](root)
    assert repair_store(root, now_ms=START_MS, dry_run=True).remaining == [found]
    done = repair_store(root, now_ms=START_MS)
    assert {one.kind for one in done.findings} == {"queue-impossible", "queue-wrong"}
    assert done.remaining == [found] == verify_store(root, now_ms=START_MS).findings
    assert repair_store(root, now_ms=START_MS).actions == []


def test_an_opening_moves_queues_of_the_other_kind_away_and_builds_the_right_ones(root):
    queues = root / "consumequeue"
    content = next((queues / PLAIN / "0").iterdir()).read_bytes()
    shutil.copytree(queues / PLAIN, queues / BATCHES)
    HARMS["wrong"][2](root)
    with MessageStore.open(root, read_only=True) as store:
        assert BATCHES in store.topics()  # a reader goes on meanwhile
    with open_batches(root) as store:
        assert store.max_offset(BATCHES, 0) == 40
    (kept,) = (root / "repair").rglob(f"consumequeue/{BATCHES}/0/0*0")
    assert kept.read_bytes() == content
    check_whole(root)


LOSSES = {
    "kind": (forget_the_kind, {"topic-kind"}),
    "table": (Path.unlink, {"topic-kind"}),
    "all bytes": (lambda path: path.write_bytes(b"{torn"), {"topic-kind", "table"}),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_where_no_table_says_that_a_topic_has_batches_its_queues_are_left_alone(root, loss, capsys):
    lose, kinds = LOSSES[loss]
    kept = {path: path.read_bytes() for path in tables(root)}
    for path in kept:
        lose(path)
    report = verify_store(root, now_ms=START_MS)
    assert {(one.kind, one.file, one.severity) for one in report.findings} == {
        (kind, "config/topics.json", Severity.DAMAGE) for kind in kinds
    }
    assert set(audited(root, now_ms=START_MS).findings) == set(report.findings)
    check_refused(root, "config/topics.json")
    HARMS["wrong"][2](root)
    shutil.rmtree(root / "consumequeue" / PLAIN)
    said = repair_store(root, now_ms=START_MS, dry_run=True)
    done = repair_store(root, now_ms=START_MS)
    assert (said.findings, said.actions, said.remaining) == (
        done.findings, done.actions, done.remaining
    )  # fmt: skip
    assert {one.kind for one in done.remaining} == {*kinds, "queue-wrong"}
    assert len(done.actions) == 1  # the rest is mended
    assert {path.name for path in (root / "consumequeue").iterdir()} == {PLAIN}
    assert run(["store", "repair", str(root)]) == 4
    assert "repair leaves these queues as they are" in " ".join(capsys.readouterr().out.split())
    for path, content in kept.items():
        path.write_bytes(content)
    assert repair_store(root, now_ms=START_MS).remaining == []
    check_whole(root)


def test_a_table_that_a_power_cut_made_zeros_is_read_from_its_backup(root):
    table = root / "config/topics.json"
    shutil.copy(table, root / "config/topics.json.bak")
    table.write_bytes(bytes(table.stat().st_size))
    (found,) = verify_store(root, now_ms=START_MS).findings
    assert (found.kind, found.severity) == ("table", Severity.WARNING)
    with open_batches(root) as store:
        assert store.max_offset(BATCHES, 0) == 40


def test_queues_of_both_kinds_are_left_alone_where_no_table_says_which_are_right(root):
    for path in tables(root):
        path.unlink()
    queues = root / "consumequeue"
    shutil.copytree(queues / PLAIN, queues / BATCHES)
    (queues / PLAIN / "0" / f"{0:020d}").unlink()
    content = (queues / BATCHES / "0" / f"{0:020d}").read_bytes()
    assert [one.kind for one in repair_store(root, now_ms=START_MS).remaining] == ["topic-kind"]
    assert (queues / BATCHES / "0" / f"{0:020d}").read_bytes() == content
    assert [one.kind for one in verify_store(root, now_ms=START_MS).findings] == ["topic-kind"]


def test_a_check_reads_each_small_file_once(root, monkeypatch):
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
    genuine, read = Path.read_bytes, []

    def counting(path: Path) -> bytes:
        read.append(str(path))
        return genuine(path)

    monkeypatch.setattr(Path, "read_bytes", counting)
    assert verify_store(root, now_ms=START_MS).findings == []
    assert sorted(set(read)) == sorted(read)
    names = {Path(one).name for one in read}
    assert {"checkpoint", "consumerOffset.json", "topics.json"} <= names


def test_a_rebuild_on_spark_asks_the_table_of_topics_and_its_backup_only(root, monkeypatch):
    genuine, read = small_files.read_part, []

    def counting(location: str, path: str, start: int, size: int) -> bytes:
        read.append(Path(path).name)
        return genuine(location, path, start, size)

    table = root / "config/topics.json"
    shutil.copy(table, root / "config/topics.json.bak")
    table.write_bytes(b"{torn")
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
    places = list_store(str(root), CONFIG)
    monkeypatch.setattr(small_files, "read_part", counting)
    assert batch_topics_of(places._replace(batch_queues={})) == {BATCHES}
    assert sorted(read) == ["topics.json", "topics.json.bak"]
