"""An archive on an object store: each record once, committed by one object, restored as it was."""

from __future__ import annotations

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run as run_command
from rocketstore.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ConfigError,
    RocketStoreError,
    StoreError,
)
from rocketstore.pipeline.jobs.archive.manifest import read_manifests
from rocketstore.pipeline.jobs.archive.place import archive_place
from rocketstore.pipeline.jobs.rebuild.proving import prove_with
from rocketstore.pipeline.jobs.report.report_plan import plan_report
from rocketstore.pipeline.sink.sink_settings import parse_sink_options
from support.archive_runs import (
    archived,
    log_bytes,
    restored,
    run_archive_tasks,
    run_restore_tasks,
)
from support.audit_runs import audited
from support.golden_stores import golden_store
from support.rebuild_oracle import Here
from support.rebuild_runs import rebuilt_here
from support.small_store import Clock, build_store, messages, open_store, overwrite, put_all

GOLDEN = ("basic", "batch", "delay", "ipv6", "transactions")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("archives") / "store"
    build_store(root, 120, Clock())
    return root


def to_s3(store, s3, **keywords):
    return archived(store, s3.uri("archive"), sole_writer=True, **keywords)


def grown(store, count):
    """Put so many messages more."""
    clock = Clock()
    with open_store(store, clock) as opened:
        put_all(opened, messages(count, first=1000), clock)


# --- the bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [60_000, 1 << 26])
@pytest.mark.parametrize("name", GOLDEN)
def test_a_store_comes_back_byte_for_byte(tmp_path, s3, name, split):
    store, _ = golden_store(name)
    result = to_s3(store, s3, split=split)
    on_disk = archived(store, tmp_path / "disk", split=split)
    assert result == on_disk
    back = restored(s3.uri("archive"), tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    assert back.is_whole
    assert not s3.uploads


def test_files_have_the_content_of_those_on_a_disk(tmp_path, built, s3):
    to_s3(built, s3, split=5000)
    archived(built, tmp_path / "disk", split=5000)
    on_disk = {path.read_bytes() for path in (tmp_path / "disk").rglob("part-*") if path.is_file()}
    found = {content for path, content in s3.tree("archive").items() if "/part-" in path}
    assert found == on_disk


def test_a_store_on_s3_is_archived_to_s3_as_from_a_disk(tmp_path, built, s3):
    s3.put_tree(built, "store")
    to_s3(built, s3)
    expected = s3.tree("archive")
    archived(s3.uri("store"), s3.uri("again"), sole_writer=True)
    assert s3.tree("again") == expected
    restored(s3.uri("again"), tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(built)


def test_runs_follow_each_other_and_a_run_without_news_is_none(tmp_path, s3):
    store = tmp_path / "store"
    build_store(store, 50, Clock())
    assert to_s3(store, s3).run == 1
    before = s3.tree("archive")
    assert to_s3(store, s3).run is None
    assert s3.tree("archive") == before
    grown(store, 40)
    second = to_s3(store, s3)
    assert (second.run, second.records, second.is_compared) == (2, 40, True)
    restored(s3.uri("archive"), tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    found = restored(s3.uri("archive"), tmp_path / "some", topics=("Topic1",))
    assert found.records == 45


def test_damage_and_what_is_no_record_comes_back(tmp_path, s3):
    store = tmp_path / "store"
    offsets = build_store(store, 200, Clock())
    overwrite(store, offsets[70] + 100, b"\xff" * 10)
    assert to_s3(store, s3, split=7000).damaged_bytes
    restored(s3.uri("archive"), tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)


# --- kills --------------------------------------------------------------------------------------


def test_a_kill_at_any_request_leaves_no_run_or_a_whole_one_and_the_next_call_the_same_bytes(
    tmp_path, s3
):
    store = tmp_path / "store"
    build_store(store, 50, Clock())
    to_s3(store, s3)
    first = dict(s3.objects)
    grown(store, 40)
    s3.writes_left = 10**6
    to_s3(store, s3, split=5000)
    write_count = 10**6 - s3.writes_left
    expected = s3.tree("archive")
    ends = set()
    for allowed in range(write_count):
        s3.objects.clear()
        s3.objects.update(first)
        s3.writes_left = allowed
        try:
            to_s3(store, s3, split=5000)
        except (StoreError, ArchiveError):
            ends.add("killed")
        runs = [one.run for one in read_manifests(archive_place(s3.uri("archive")))]
        assert runs in ([1], [1, 2])
        s3.writes_left = None
        to_s3(store, s3, split=5000)
        assert s3.tree("archive") == expected
    assert ends == {"killed"}
    restored(s3.uri("archive"), tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)


def test_a_run_that_was_given_up_is_no_run_even_when_the_log_has_grown_since(tmp_path, s3):
    store = tmp_path / "store"
    build_store(store, 50, Clock())

    def dying(tasks):
        run_archive_tasks(tasks)
        s3.writes_left = 0
        return run_archive_tasks(tasks)

    with pytest.raises(StoreError):
        to_s3(store, s3, run=dying)
    assert any("/run=00000001/" in key for key in s3.objects)
    with pytest.raises(ArchiveError, match="is no archive"):
        restored(s3.uri("archive"), tmp_path / "back")
    s3.writes_left = None
    grown(store, 40)
    assert to_s3(store, s3).records == 90
    assert len(read_manifests(archive_place(s3.uri("archive")))) == 1
    restored(s3.uri("archive"), tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    named = {one.path for one in read_manifests(archive_place(s3.uri("archive")))[0].files}
    kept = {path for path in s3.tree("archive/messages/run=00000001") if "/part-" in path}
    assert kept == named


def test_a_task_that_ran_twice_wrote_the_same_objects(tmp_path, built, s3):
    to_s3(built, s3, split=5000)
    expected = s3.tree("archive")

    def twice(tasks):
        run_archive_tasks(tasks)
        return run_archive_tasks(tasks)

    archived(built, s3.uri("twice"), split=5000, run=twice, sole_writer=True)
    assert s3.tree("twice") == expected


def test_an_object_that_was_cut_off_is_noticed_before_the_commit(built, s3):
    def cutting_off(tasks):
        results = run_archive_tasks(tasks)
        key = next(key for key in s3.objects if "/part-" in key)
        s3.objects[key] = s3.objects[key][:-1]
        return results

    with pytest.raises(ArchiveError, match="nothing of this run is archived"):
        to_s3(built, s3, run=cutting_off)
    assert not s3.tree("archive")


def test_who_archives_at_the_same_time_is_noticed_where_that_can_be(built, s3):
    def beside(tasks):
        results = run_archive_tasks(tasks)
        path = "archive/messages/run=00000001/_manifest.json"
        s3.objects[path] = b"another's"
        return results

    with pytest.raises(ArchiveError, match="at the same time"):
        to_s3(built, s3, run=beside)


# --- what is refused ----------------------------------------------------------------------------


def test_nobody_archives_to_an_object_store_by_accident(built, s3):
    with pytest.raises(ConfigError, match="no lock"):
        archived(built, s3.uri("archive"))
    s3.put_tree(built, "store")
    with pytest.raises(ConfigError, match="is a store"):
        archived(built, s3.uri("store"), sole_writer=True)
    with pytest.raises(ConfigError, match="renaming"):
        restored(s3.uri("archive"), s3.uri("back"))
    with pytest.raises(ConfigError, match="credential") as caught:
        archived(built, "s3://key:verysecret@bucket/archive", sole_writer=True)
    assert "verysecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "message"),
    [("/part-00000", "is missing"), ("/_config/", "missing"), ("run=00000001", "missing")],
)
def test_an_archive_that_lost_an_object_restores_nothing(tmp_path, s3, part, message):
    store = tmp_path / "store"
    build_store(store, 50, Clock())
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_bytes(b"{}")
    to_s3(store, s3)
    grown(store, 5)
    to_s3(store, s3)
    lost = [key for key in s3.objects if part in key and ("_config" in part or "00000001" in key)]
    assert lost
    for key in lost:
        del s3.objects[key]
    with pytest.raises(ArchiveDamagedError, match=message):
        restored(s3.uri("archive"), tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_flipped_byte_is_noticed_or_in_no_column_that_is_read(tmp_path, built, s3):
    to_s3(built, s3)
    key = next(key for key in s3.objects if "/messages/" in key and "/part-" in key)
    content = s3.objects[key]
    noticed = 0
    for number, at in enumerate([*range(4, len(content) - 20, len(content) // 20), -20]):
        flipped = bytearray(content)
        flipped[at] ^= 1
        s3.objects[key] = bytes(flipped)
        target = tmp_path / f"back{number}"
        try:
            restored(s3.uri("archive"), target)
        except ArchiveDamagedError:
            noticed += 1
            assert not target.exists()
        else:
            assert at != -20
            assert log_bytes(target) == log_bytes(built)
    assert noticed > 3


def test_tasks_name_no_credential(built, s3):
    seen = []

    def noting(tasks, *rest):
        seen.append(repr(tasks))
        return run_restore_tasks(tasks, *rest)

    def noting_too(tasks):
        seen.append(repr(tasks))
        return run_archive_tasks(tasks)

    to_s3(built, s3, run=noting_too)
    restored(s3.uri("archive"), built.parent / "noted", run=noting)
    assert len(seen) == 2
    assert not any("TESTACCESSKEY" in one or "tests-secret" in one for one in seen)


LEAKY_PLACE = "s3://AKIAUSER:verysecret@bucket/place"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda store, tmp: archived(store, LEAKY_PLACE),
        lambda store, tmp: archived(store, LEAKY_PLACE, sole_writer=True),
        lambda store, tmp: archived(LEAKY_PLACE, tmp / "a"),
        lambda store, tmp: restored(LEAKY_PLACE, tmp / "back"),
        lambda store, tmp: restored(tmp / "a", LEAKY_PLACE),
        lambda store, tmp: rebuilt_here(LEAKY_PLACE),
        lambda store, tmp: rebuilt_here(store, target=LEAKY_PLACE),
        lambda store, tmp: prove_with(Here(), LEAKY_PLACE, now_ms=0),
        lambda store, tmp: audited(LEAKY_PLACE),
        lambda store, tmp: plan_report(LEAKY_PLACE),
        lambda store, tmp: parse_sink_options({"path": LEAKY_PLACE}, streaming=False),
    ],
)
def test_no_job_repeats_a_credential_that_stood_in_a_location(tmp_path, built, attempt):
    with pytest.raises(RocketStoreError) as caught:
        attempt(built, tmp_path)
    told = f"{caught.value!r} {caught.value} {caught.value.hint} {vars(caught.value)}"
    assert "verysecret" not in told
    assert "AKIAUSER" not in told


# --- the command line ---------------------------------------------------------------------------


def test_commands_take_locations_as_they_stand(tmp_path, built, s3, monkeypatch, capsys):
    def archiving(_, store, target, *, config, max_split_bytes, sole_writer, progress):
        del config, progress
        return archived(store, target, split=max_split_bytes, sole_writer=sole_writer)

    def restoring(_, source, target, *, progress, topics, begin_ms, end_ms):
        del progress, begin_ms, end_ms
        return restored(source, target, topics=tuple(topics))

    def rebuilding(_, store, *, config, **options):
        del config
        return rebuilt_here(store, **options)

    for name, job in (
        ("archive", archiving),
        ("restore", restoring),
        ("rebuild", rebuilding),
        ("session", lambda *_, **__: None),
    ):
        monkeypatch.setattr(pipeline, name, job, raising=False)
    s3.put_tree(built, "store")
    store, archive, back = s3.uri("store"), s3.uri("archive"), str(tmp_path / "back")
    assert run_command(["pipeline", "archive", store, archive]) == 2
    assert "--sole-writer" in capsys.readouterr().err
    assert run_command(["pipeline", "archive", store, archive, "--sole-writer"]) == 0
    assert run_command(["pipeline", "restore", archive, back]) == 0
    assert log_bytes(tmp_path / "back") == log_bytes(built)
    assert run_command(["pipeline", "restore", archive, s3.uri("back")]) == 2
    given = ["pipeline", "rebuild", store]
    assert run_command(given) == 2
    assert "--to" in capsys.readouterr().err
    assert run_command([*given, "--to", s3.uri("new")]) == 0
    assert f"They were made in {s3.uri('new')}" in capsys.readouterr().out
