"""A place on a disk in all its spellings is one place, to the source, the sink and every job."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from rocketstore.errors import ConfigError, NotAStoreError, StoreError
from rocketstore.pipeline.jobs.archive.archive_place import table_uri
from rocketstore.pipeline.jobs.publishing import refuse_taken
from rocketstore.pipeline.jobs.report.report_job import plan_report
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.queues import named_stores
from rocketstore.pipeline.sink.sink_commit import check_target
from rocketstore.pipeline.sink.sink_writer import parse_sink_options
from rocketstore.places.location import local_path, uri_parts
from support.archiving import archived, log_bytes
from support.audit_runs import audited
from support.clock import Clock
from support.odd_names import NAMES
from support.pipeline_tables import placed, read_table
from support.rebuild_runs import rebuilt_here
from support.restoring import restored
from support.small_store import build_store
from support.stream_run import StreamRun

FORMS = {
    "path": str,
    "file:/": lambda path: f"file:{quote(path)}",
    "file:///": lambda path: f"file://{quote(path)}",
    "FILE://localhost/": lambda path: f"FILE://localhost{quote(path)}",
    "unquoted": lambda path: f"file:{path}",
    "slash": lambda path: f"file:{path}/",
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A store in a directory whose name has a space; the working directory is another one."""
    build_store(tmp_path / "my store", 30, Clock())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    yield tmp_path / "my store"
    assert list(elsewhere.iterdir()) == [], "something was made below the working directory"


def test_queries_and_streams_read_the_same_store(root, form):
    location = form(str(root))
    assert len(read_table(location)) == 30
    (broker,) = {row["brokerName"] for row in read_table(location)}
    assert broker == "my store"
    assert len(StreamRun(location, startingOffsets="earliest").batch()) == 30


def test_a_place_above_a_link_is_the_same_for_all(root, tmp_path, monkeypatch):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    above = f"{tmp_path}/link/../other"  # deep/other, and not other
    (tmp_path / "deep" / "other").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    for place in (above, f"file://{above}", "link/../other", f"{root}/commitlog/.."):
        assert local_path(place) == str(root)
        assert parse_sink_options({"path": place}, streaming=False).root == str(root)
        assert {row["brokerName"] for row in read_table(place)} == {"my store"}
    assert local_path(f"{tmp_path}/none/../other") == str(tmp_path / "other")
    assert local_path(f"{tmp_path}/link/other") == f"{tmp_path}/link/other"


def test_a_store_that_is_named_twice_is_refused(root, form, tmp_path):
    (tmp_path / "link").symlink_to(root)
    other = f"{root.parent}/elsewhere/.."
    for again in (form(str(root)), f"{other}/{root.name}", f"{other}/my*", str(tmp_path / "link")):
        given = {"paths": json.dumps([str(root), again])}
        with pytest.raises(ConfigError, match="is named twice; name each store once"):
            named_stores(parse_options(given))


def test_jobs_work_on_the_same_places(root, form, tmp_path):
    location = form(str(root))
    assert audited(location).counts.message_count == 30
    assert archived(location, form(str(tmp_path / "an archive"))).records == 30
    assert (tmp_path / "an archive").is_dir()
    restored(form(str(tmp_path / "an archive")), form(str(tmp_path / "a copy")))
    assert log_bytes(tmp_path / "a copy") == log_bytes(root)
    report = rebuilt_here(location, target=form(str(tmp_path / "new queues")))
    assert report.record_count == 30
    assert (tmp_path / "new queues" / "consumequeue").is_dir()
    assert rebuilt_here(location).record_count == 30
    assert audited(root).findings == []


def test_a_sink_and_a_report_name_the_same_places(root, form):
    assert parse_sink_options({"path": form(str(root))}, streaming=False).root == str(root)
    with pytest.raises(ConfigError, match="lies inside the store"):
        plan_report(form(str(root)), form(str(root / "report")))


@pytest.mark.parametrize("inside", ["new", "commitlog/new", "consumequeue/my/new", "index"])
def test_nothing_is_written_inside_a_store(root, form, tmp_path, inside):
    place, source = form(str(root / inside)), str(root)
    before = sorted(tmp_path.rglob("*"))
    for write in (
        lambda: refuse_taken(place),  # of audit, restore, rebuild and report, which publish
        lambda: plan_report(source, place),
        lambda: archived(source, place),
        lambda: rebuilt_here(source, target=place),
        lambda: check_target(parse_sink_options({"path": place}, streaming=False)),
    ):
        with pytest.raises(ConfigError, match=r"(new|index)/? lies inside the store .*my store"):
            write()
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "commitlog").mkdir()  # of a log that lies beside its store
    refuse_taken(str(tmp_path / "new"))


def test_a_job_reads_a_store_whose_path_has_commas(tmp_path):
    root = tmp_path / "a,b , c"
    build_store(root, 3, Clock())
    made = archived(root, tmp_path / "archive")
    assert (made.records, made.run) == (3, 1)
    restored(tmp_path / "archive", tmp_path / "back,too")
    assert log_bytes(tmp_path / "back,too") == log_bytes(root)
    assert [store.location for store, _ in plan_report(root, tmp_path / "report").stores] == [
        str(root)
    ]
    assert audited(root).counts.message_count == 3


@pytest.mark.parametrize("name", NAMES)
def test_whatever_its_name_each_reader_and_job_takes_a_path_as_it_is(tmp_path, name):
    root = tmp_path / name / name
    build_store(root, 30, Clock())
    as_list = {"paths": json.dumps([str(root)])}
    for location, given in ((root, {}), (root.as_uri(), {}), ("", as_list)):
        options = parse_options(placed(location, given))
        assert [one.location for one in named_stores(options)] == [str(root)]
        batch = StreamRun(location, startingOffsets="earliest", **given).batch()
        assert len(batch) == 30
        assert batch == read_table(location, **given)
    assert [row["brokerName"] for row in read_table(root)] == [name] * 30
    assert audited(root).counts.message_count == 30
    made = rebuilt_here(root, target=tmp_path / name / f"made {name}")
    assert made.record_count == 30
    assert rebuilt_here(root).record_count == 30
    report = name.replace("\\", "")  # a directory that jobs write to may have none
    plan = plan_report(root, tmp_path / f"report {report}")
    assert [store.location for store, _ in plan.stores] == [str(root)]
    sink = parse_sink_options({"path": str(root)}, streaming=False)
    assert sink.root == str(root)
    assert sorted(one.name for one in (tmp_path / name).iterdir()) == sorted([name, f"made {name}"])
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_commas_separate_paths_unless_the_whole_text_is_one(tmp_path):
    for name in ("a", "b"):
        build_store(tmp_path / name, 3, Clock())
    pair = f"{tmp_path}/a,{tmp_path}/b"
    assert len(read_table(pair)) == 6
    build_store(Path(pair), 5, Clock())
    assert len(read_table(pair)) == 5
    assert len(read_table(tmp_path, paths=json.dumps([pair, f"{tmp_path}/a"]))) == 8
    logs = f"{tmp_path}/log,1"
    (tmp_path / "a/commitlog").rename(logs)
    assert len(read_table(tmp_path / "a", storePathCommitLog=logs)) == 3


def test_a_hash_in_a_uri_is_a_part_of_its_path():
    assert uri_parts("s3://bucket/a#b?region=eu").path == "/a%23b"
    assert table_uri("s3://bucket/a#b?region=eu", "messages")[0] == "s3://bucket/a%23b/messages"


@pytest.mark.parametrize(
    "location", ["file:store", "file://data/store", "file:", "file://", "", "a\0b"]
)
def test_a_uri_that_names_no_directory_of_this_machine_is_refused(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_store(tmp_path / "store", 3, Clock())
    for use in (
        local_path,
        read_table,
        audited,
        lambda one: archived(one, one),
        lambda one: archived(tmp_path / "store", one),
        lambda one: rebuilt_here(tmp_path / "store", target=one),
        lambda one: plan_report(str(tmp_path / "store"), one),
        lambda one: parse_sink_options({"path": one}, streaming=False),
    ):
        with pytest.raises(
            ConfigError, match=r"names no directory of this machine|no store is named|has U\+0000"
        ):
            use(location)
    assert [one.name for one in tmp_path.iterdir()] == ["store"]


def test_a_pattern_names_the_directories_that_match(tmp_path):
    for number in range(3):
        build_store(tmp_path / f"broker-{number}" / "my store", 3, Clock())
    (tmp_path / "broker-file").touch()
    for pattern, names in (("broker-*/my store", 3), ("broker-[01]/*", 2), ("broker-?", 3)):
        assert len(read_table(tmp_path / pattern)) == names * 3
        assert len(read_table(f"file://{tmp_path}/{pattern}")) == names * 3
    with pytest.raises(NotAStoreError, match="no directory matches"):
        read_table(tmp_path / "broker-9*")


@pytest.mark.parametrize("target", ["broker-2", "/nowhere/at/all"])
def test_a_store_s_link_that_leads_nowhere_is_named_and_no_store_left_out(tmp_path, target):
    build_store(tmp_path / "broker-1", 3, Clock())
    (tmp_path / ".#notes").symlink_to("user@host")  # an editor's, and no store
    link = tmp_path / "broker-2"
    link.symlink_to(target)
    for place in (tmp_path, tmp_path / "broker-*"):
        with pytest.raises(StoreError, match=f"{link} is a link to something that is not there"):
            read_table(place)
    assert len(read_table(tmp_path / "broker-1*")) == 3
