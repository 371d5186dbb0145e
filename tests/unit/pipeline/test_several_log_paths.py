"""A log in several directories is read whole by every job, or one error says what to name."""

import shutil
from pathlib import Path

import msgspec
import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError, StoreError
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.queues import named_stores
from rocketstore.places.log_files import list_segments
from support.archiving import archived
from support.audit_runs import audited, proved
from support.clock import START_MS, Clock
from support.pipeline_tables import read_table
from support.rebuild_runs import rebuilt_here
from support.report_run import make_report
from support.small_store import CONFIG, build_store, messages, put_all
from support.store_files import overwrite_file
from support.stream_run import StreamRun, flat
from support.trees import tree

COUNT = 500
CONFIG_LOG_BYTES = CONFIG.mapped_file_size_commit_log


@pytest.fixture
def parts(tmp_path):
    """A store whose log lies in two directories, one of them its own."""
    return written(tmp_path, "commitlog", "other")


def written(tmp_path, *names):
    root = tmp_path / "store"
    paths = [root / name if name == "commitlog" else tmp_path / name for name in names]
    config = msgspec.structs.replace(CONFIG, store_path_commit_log=",".join(map(str, paths)))
    clock = Clock()
    with MessageStore.open(root, config, clock=clock, threads=False) as store:
        put_all(store, messages(COUNT), clock)
    assert all(len(list(path.iterdir())) > 2 for path in paths)
    return root, config


def option(config):
    return {"storePathCommitLog": config.store_path_commit_log}


# --- read whole ---------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("commitlog", "other"), ("one", "two", "three")])
def test_the_data_source_reads_all_directories(tmp_path, names):
    root, config = written(tmp_path, *names)
    rows = read_table(root, maxSplitBytes=7000, **option(config))
    assert [row["keys"] for row in rows] == [[f"key-{number}"] for number in range(COUNT)]
    assert read_table(root, table="damage", **option(config)) == []
    files = read_table(root, table="segments", **option(config))
    assert {row["file"].rsplit("/", 2)[1] for row in files} == set(names)
    assert {row["state"] for row in files} <= {"whole", "unwritten"}
    one = read_table(
        root, subscribe="Topic0", startingOffsets='{"Topic0":{"0":200}}', **option(config)
    )
    assert [row["queueOffset"] for row in one] == list(range(200, 250))


def test_a_stream_reads_all_directories(parts):
    root, config = parts
    run = StreamRun(root, startingOffsets="earliest", **option(config))
    assert len(flat(run.drain())) == COUNT


def test_an_audit_finds_nothing_wrong(parts):
    root, config = parts
    report = audited(root, config, max_split_bytes=7000)
    assert list(report.findings) == []
    assert report.counts.message_count == COUNT


def test_a_rebuild_makes_what_was_there(parts):
    root, config = parts
    before = tree(root / "consumequeue"), list(tree(root / "index").values())
    log = [tree(path) for path in map_paths(config)]
    shutil.rmtree(root / "consumequeue")
    report = rebuilt_here(root, config=config, max_split_bytes=7000)
    assert (report.record_count, report.damage, report.kept_places) == (COUNT, [], {})
    assert (tree(root / "consumequeue"), list(tree(root / "index").values())) == before
    assert [tree(path) for path in map_paths(config)] == log
    assert proved(root, config).findings == []


def map_paths(config):
    return [Path(one) for one in config.store_path_commit_log.split(",")]


def test_after_damage_the_whole_log_is_judged(parts):
    root, config = parts
    file = sorted((root / "commitlog").iterdir())[1]
    overwrite_file(file, 3000, b"\xff" * 40)
    report = rebuilt_here(root, config=config)
    assert len(report.damage) == 1
    assert COUNT - 2 <= report.record_count < COUNT


def test_a_report_counts_all_messages(parts, tmp_path):
    root, config = parts
    made = make_report(root, tmp_path / "report", now_ms=START_MS, config=config)
    assert made.summary["messages"] == COUNT
    assert made.summary["damagedRanges"] == 0


def test_an_archive_has_all_messages(parts, tmp_path):
    root, config = parts
    assert archived(root, tmp_path / "archive", config=config).records == COUNT


# --- or one error -------------------------------------------------------------------------------

JOBS = {
    "data source": lambda root, _: read_table(root),
    "segments": lambda root, _: read_table(root, table="segments"),
    "damage": lambda root, _: read_table(root, table="damage"),
    "stream": lambda root, _: StreamRun(root).drain(),
    "audit": lambda root, _: audited(root),
    "rebuild": lambda root, _: rebuilt_here(root),
    "proof": lambda root, _: proved(root),
    "report": lambda root, tmp_path: make_report(root, tmp_path / "report"),
    "archive": lambda root, tmp_path: archived(root, tmp_path / "archive"),
}


@pytest.mark.parametrize("job", JOBS)
def test_one_directory_of_several_is_not_taken_for_the_log(parts, tmp_path, job):
    root, _ = parts
    before = tree(root)
    with pytest.raises(ConfigError, match="one CommitLog file of 2, as of a log in 2 directories"):
        JOBS[job](root, tmp_path)
    assert tree(root) == before
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("job", JOBS)
def test_a_log_that_is_all_elsewhere_is_no_store_until_it_is_named(tmp_path, job):
    root, _ = written(tmp_path, "one", "two")
    before = tree(root)
    with pytest.raises(NotAStoreError) as caught:
        JOBS[job](root, tmp_path)
    assert "storePathCommitLog" in str(caught.value.hint)
    assert tree(root) == before


@pytest.mark.parametrize("job", ["audit", "rebuild", "proof", "report", "archive"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_disk_that_is_not_mounted_is_no_shorter_log(parts, tmp_path, job, is_empty):
    root, config = parts
    (tmp_path / "other").rename(tmp_path / "elsewhere")
    if is_empty:
        (tmp_path / "other").mkdir()
    jobs = {
        "audit": lambda: audited(root, config),
        "rebuild": lambda: rebuilt_here(root, config=config),
        "proof": lambda: proved(root, config),
        "report": lambda: make_report(root, tmp_path / "report", config=config),
        "archive": lambda: archived(root, tmp_path / "archive", config=config),
    }
    with pytest.raises(
        StoreDamagedError, match=r"has no file for .* \d+ to .*expected in .*/other"
    ):
        jobs[job]()


def test_a_directory_that_is_named_and_never_was_is_refused(parts, tmp_path):
    root, config = parts
    paths = f"{config.store_path_commit_log},{tmp_path}/none"
    with pytest.raises(NotAStoreError, match="none is not a directory, but storePathCommitLog"):
        read_table(root, storePathCommitLog=paths)


def test_lost_files_are_read_when_the_one_directory_is_named(parts):
    root, _ = parts
    named = {"storePathCommitLog": str(root / "commitlog")}
    states = {row["state"] for row in read_table(root, table="segments", **named)}
    assert {"whole", "missing"} <= states
    with pytest.raises(StoreDamagedError, match="is missing"):
        read_table(root, **named)
    rows = read_table(root, failOnDataLoss=False, **named)
    assert 0 < len(rows) < COUNT
    config = StoreConfig(store_path_commit_log=str(root / "commitlog"))
    assert "log-hole" in {one.kind for one in audited(root, config).findings}


def test_an_audit_reports_what_lies_after_a_directory_with_one_file(parts, tmp_path):
    root, _ = parts
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.rename(tmp_path / "other" / path.name)
    found = audited(root, StoreConfig(mapped_file_size_commit_log=CONFIG_LOG_BYTES)).findings
    assert any(one.kind.startswith("queue") and one.severity.value != "note" for one in found)


def test_a_file_in_two_directories_is_refused(parts, tmp_path):
    root, config = parts
    shutil.copy(min((tmp_path / "other").iterdir()), root / "commitlog")
    with pytest.raises(StoreError, match="have one physical offset in their names"):
        read_table(root, **option(config))


def test_what_the_option_cannot_mean_is_refused(parts, tmp_path):
    root, config = parts
    for wrong in ("", "relative/commitlog", "[1", "[]"):
        with pytest.raises(ConfigError, match="storePathCommitLog"):
            parse_options({"path": str(root), "storePathCommitLog": wrong})
    with pytest.raises(ConfigError, match="one store at a time"):
        named_stores(parse_options({"path": f"{root},{tmp_path}", **option(config)}))
    with pytest.raises(ConfigError, match="a matter of disks"):
        named_stores(parse_options({"path": "s3://bucket/store", **option(config)}))


def test_an_object_store_has_one_directory(s3):
    config = StoreConfig(store_path_commit_log="/a/commitlog,/b/commitlog")
    location = s3.uri("store")
    for job in (
        lambda: rebuilt_here(location, config=config, target="/nowhere/new"),
        lambda: proved(location, config),
        lambda: audited(location, config),
        lambda: make_report(location, "/nowhere/report", config=config),
    ):
        with pytest.raises(ConfigError, match="a matter of disks"):
            job()


def test_settings_of_a_broker_may_come_with_a_copy_of_its_store(tmp_path):
    root = tmp_path / "one"
    build_store(root, COUNT, Clock())
    config = StoreConfig(
        store_path_root_dir="/data/broker/store",
        store_path_commit_log="/data/broker/store/commitlog",
    )
    assert audited(root, config).counts.message_count == COUNT
    made = make_report(tmp_path, tmp_path / "report", now_ms=START_MS, config=config)
    assert made.summary["messages"] == COUNT


def test_a_store_with_named_directories_lists_them_in_order(parts):
    root, config = parts
    (place,) = named_stores(parse_options({"path": str(root), **option(config)}))
    bases = [one.base for one in list_segments(place)]
    assert bases == list(range(0, bases[-1] + 1, bases[1]))
