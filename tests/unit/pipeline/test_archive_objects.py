"""An archive on an object store: each record once, committed by Delta's conditional puts."""

import pytest

from rocketstore.errors import ArchiveError, ConfigError, RocketStoreError, StoreError
from rocketstore.pipeline.jobs.archive.archive_place import table_uri
from rocketstore.pipeline.jobs.archive.archive_table import Archive
from rocketstore.pipeline.jobs.audit.audit_job import prove_rebuild
from rocketstore.pipeline.jobs.execution import map_tasks
from rocketstore.pipeline.jobs.report.report_job import plan_report
from rocketstore.pipeline.sink.sink_writer import parse_sink_options
from support.archiving import archived, assert_covers, rows, state
from support.audit_runs import audited
from support.clock import Clock
from support.fault_settings import stride
from support.golden_stores import golden_root
from support.rebuild_runs import rebuilt_here
from support.restoring import restored
from support.s3_server import ACCESS_KEY, CREDENTIALS, SECRET_KEY
from support.small_store import build_store, messages, open_store, overwrite, put_all

GOLDEN = ("basic", "batch", "delay", "ipv6", "transactions")


def grown(store, count):
    """Put so many messages more."""
    clock = Clock()
    with open_store(store, clock) as opened:
        put_all(opened, messages(count, first=1000), clock)


@pytest.mark.parametrize("stretch", [60_000, 1 << 26])
@pytest.mark.parametrize("name", GOLDEN)
def test_an_archive_on_s3_is_the_one_on_a_disk(tmp_path, s3, name, stretch, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = golden_root(name)
    made = archived(store, s3.uri("archive"), stretch=stretch)
    assert made == archived(store, tmp_path / "disk", stretch=stretch)
    assert rows(s3.uri("archive")) == rows(tmp_path / "disk")
    assert not s3.uploads
    assert [one.name for one in tmp_path.iterdir()] == ["disk"]


def test_a_store_on_s3_is_archived_as_from_a_disk(tmp_path, three_files, s3):
    s3.put_tree(three_files, "store")
    archived(s3.uri("store"), s3.uri("archive"))
    archived(three_files, tmp_path / "disk")
    assert rows(s3.uri("archive")) == rows(tmp_path / "disk")


def test_runs_follow_each_other_and_nothing_new_writes_nothing(tmp_path, s3):
    store = tmp_path / "store"
    offsets = build_store(store, 50, Clock())
    overwrite(store, offsets[20] + 100, b"\xff" * 10)
    assert archived(store, s3.uri("archive")).damaged_bytes
    before = s3.tree("archive")
    assert archived(store, s3.uri("archive")).run is None
    assert s3.tree("archive") == before
    grown(store, 40)
    second = archived(store, s3.uri("archive"))
    assert (second.run, second.records, second.is_compared) == (2, 40, True)
    assert_covers(s3.uri("archive"), store)


def test_others_read_it_without_this_package(three_files, s3):
    import polars as pl  # noqa: PLC0415 - heavy: all workers collect, one of them runs this

    archived(three_files, s3.uri("archive"))
    uri, options = table_uri(s3.uri("archive"), "messages")
    options |= {name: value for name, value in CREDENTIALS.items() if "KEY" in name}
    lazy = pl.scan_delta(uri, storage_options=options).filter(pl.col("topic") == "Topic1")
    assert lazy.collect().height == 60


def test_a_kill_at_any_request_leaves_no_run_or_a_whole_one_and_the_next_call_the_same_rows(
    tmp_path, s3
):
    store = tmp_path / "store"
    build_store(store, 50, Clock())
    archived(store, s3.uri("archive"))
    first = dict(s3.objects)
    old = rows(s3.uri("archive"))
    grown(store, 40)
    s3.writes_left = 10**6
    archived(store, s3.uri("archive"), stretch=5000)
    write_count = 10**6 - s3.writes_left
    expected = rows(s3.uri("archive"))
    seen = set()
    for allowed in range(0, write_count, stride(3)):
        s3.objects.clear()
        s3.objects.update(first)
        s3.writes_left = allowed
        with pytest.raises((StoreError, ArchiveError)):
            archived(store, s3.uri("archive"), stretch=5000)
        found = rows(s3.uri("archive"))
        assert found in (old, expected)
        seen.add(len(found))
        s3.writes_left = None
        archived(store, s3.uri("archive"), stretch=5000)
        assert assert_covers(s3.uri("archive"), store) == expected
    assert 50 in seen


def test_of_two_archivers_of_a_broker_one_fails(three_files, s3):
    place = s3.uri("archive")

    def second_is_quicker(*given):
        assert archived(three_files, place, stretch=9000).records == 120
        return map_tasks(*given)

    with pytest.raises(ArchiveError, match="archived by another process"):
        archived(three_files, place, stretch=9000, run=second_is_quicker)
    assert_covers(place, three_files)


def test_a_commit_that_finds_its_version_taken_takes_the_next_one(tmp_path, three_files, s3):
    """Two brokers at the same time: the server refuses the second put of one log entry."""
    place = s3.uri("archive")
    build_store(tmp_path / "other", 30, Clock())

    def other_is_quicker(*given):
        archived(tmp_path / "other", place)
        return map_tasks(*given)

    archived(three_files, place, run=other_is_quicker)
    assert state(place) == (2, 2)
    assert Archive.open(place).brokers() == ["other", "store"]
    assert len(rows(place)) == 150


def test_what_is_no_place_for_an_archive_is_refused_without_its_secrets(three_files, s3):
    s3.put_tree(three_files, "store")
    with pytest.raises(ConfigError, match="is a store"):
        archived(three_files, s3.uri("store"))
    with pytest.raises(ConfigError, match="credential") as caught:
        archived(three_files, "s3://key:verysecret@bucket/archive")
    assert "verysecret" not in str(caught.value)
    sent = []

    def look(spark, tasks, *given):
        sent.extend(tasks)
        return map_tasks(spark, tasks, *given)

    archived(three_files, s3.uri("archive"), run=look)
    assert sent
    assert not any(secret in repr(sent) for secret in (ACCESS_KEY, SECRET_KEY))


LEAKY_PLACE = "s3://AKIAUSER:verysecret@bucket/place"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda store, tmp: archived(store, LEAKY_PLACE),
        lambda store, tmp: archived(LEAKY_PLACE, tmp / "a"),
        lambda store, tmp: restored(LEAKY_PLACE, tmp / "back"),
        lambda store, tmp: restored(tmp / "a", LEAKY_PLACE),
        lambda store, tmp: rebuilt_here(LEAKY_PLACE),
        lambda store, tmp: rebuilt_here(store, target=LEAKY_PLACE),
        lambda store, tmp: prove_rebuild(None, LEAKY_PLACE),
        lambda store, tmp: audited(LEAKY_PLACE),
        lambda store, tmp: plan_report(LEAKY_PLACE, tmp / "report"),
        lambda store, tmp: parse_sink_options({"path": LEAKY_PLACE}, streaming=False),
    ],
)
def test_no_job_repeats_a_credential_that_stood_in_a_location(tmp_path, three_files, attempt):
    with pytest.raises(RocketStoreError) as caught:
        attempt(three_files, tmp_path)
    told = f"{caught.value!r} {caught.value} {caught.value.hint} {vars(caught.value)}"
    assert "verysecret" not in told
    assert "AKIAUSER" not in told
