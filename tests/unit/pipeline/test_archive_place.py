"""An archive is known to be one before a byte is written, and a run that fails leaves nothing."""

import gc
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from rocketstore.errors import ArchiveError, SparkJobError, StoreError
from rocketstore.pipeline.jobs.archive import archive_place
from rocketstore.pipeline.jobs.archive.archive_place import IDENTITY
from rocketstore.pipeline.jobs.archive.archive_table import KINDS, Archive
from rocketstore.pipeline.jobs.execution import map_tasks
from support.archiving import archived, assert_covers, log_bytes, state
from support.clock import Clock
from support.odd_names import NAMES
from support.restoring import restored
from support.small_store import messages, open_store, put_all


def everything(place):
    return {
        str(one.relative_to(place)): one.is_file() and one.read_bytes() for one in place.rglob("*")
    }


def test_a_place_that_cannot_be_opened_leaves_no_links(tmp_path, store, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(links))
    with pytest.raises(ArchiveError, match="is not an archive"):
        Archive.open(tmp_path / "a%20b")
    archived(store, tmp_path / "a%20b")
    with pytest.raises(ArchiveError, match="cannot be opened"):
        Archive.open(tmp_path / "a%20b", as_of=99)
    gc.collect()
    assert list(links.iterdir()) == []


def test_a_table_that_cannot_be_read_is_not_taken_for_none(tmp_path):
    (tmp_path / "messages").symlink_to("messages")
    with pytest.raises(StoreError, match="messages cannot be read: Too many levels of symbolic"):
        Archive.open(tmp_path)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("open_tables", DeltaError("Unable to open file … Permission denied (os error 13)")),
        ("pq.ParquetFile", PermissionError(13, "Permission denied", "part.parquet")),
        ("pq.ParquetFile", OSError(5, "Input/output error", "part.parquet")),
    ],
)
def test_what_of_an_archive_the_system_refuses_to_read_is_no_damage_of_it(
    tmp_path, store, monkeypatch, call, error
):
    archived(store, tmp_path / "a")

    def refuse(*_given, **_named):
        raise error

    monkeypatch.setattr(f"rocketstore.pipeline.jobs.archive.archive_table.{call}", refuse)
    with pytest.raises(ArchiveError, match=r"/a.* cannot be .*(denied|error).*may read it") as met:
        restored(tmp_path / "a", tmp_path / "back")
    assert type(met.value) is ArchiveError  # one that is damaged ends commands with 4
    assert not (tmp_path / "back").exists()


# --- whose it is --------------------------------------------------------------------------------


def other_columns(place, name):
    write_deltalake(str(place / name), pa.table({"id": [1, 2], "topic": ["a", "b"]}))


def other_partitioning(place, name):
    kind = KINDS[name]
    wrong = ["brokerName"] if not kind.days else [*kind.days, "topic"]
    DeltaTable.create(str(place / name), kind.columns, partition_by=wrong)


def one_column_less(place, name):
    kind = KINDS[name]
    older = pa.schema([one for one in kind.columns if one.name != "physicalOffset"])
    DeltaTable.create(str(place / name), older, partition_by=kind.days)


def one_column_more(place, name):
    kind = KINDS[name]
    newer = kind.columns.append(pa.field("ours", pa.string()))
    DeltaTable.create(str(place / name), newer, partition_by=kind.days)


def another_type(place, name):
    kind = KINDS[name]
    at = kind.columns.get_field_index("physicalOffset")
    other = kind.columns.set(at, pa.field("physicalOffset", pa.int32()))
    DeltaTable.create(str(place / name), other, partition_by=kind.days)


def no_table(place, name):
    (place / name).mkdir(parents=True)
    (place / name / "part-0.parquet").write_bytes(b"somebody's")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (other_columns, "column brokerName|column day"),
        (other_partitioning, "partitioning: expected"),
        (one_column_less, "column physicalOffset: expected long, found none"),
        (one_column_more, "column ours: expected none, found string"),
        (another_type, "column physicalOffset: expected long, found integer"),
        (no_table, "is not empty, and no Delta table"),
    ],
)
def test_what_is_somebody_else_s_is_refused_by_name_and_stays_as_it_was(
    tmp_path, store, make, says, name
):
    make(tmp_path / "a", name)
    before = everything(tmp_path / "a")
    with pytest.raises(ArchiveError, match=says) as error:
        archived(store, tmp_path / "a")
    assert f"{tmp_path}/a/{name}" in str(error.value)
    assert "a place where there is nothing yet" in error.value.hint
    assert everything(tmp_path / "a") == before


@pytest.mark.parametrize("make", [other_columns, one_column_less, another_type])
def test_what_lacks_what_a_restore_reads_is_no_archive(tmp_path, make):
    for name in KINDS:
        make(tmp_path / "a", name)
    with pytest.raises(ArchiveError, match="is not the table messages of this archive: column"):
        restored(tmp_path / "a", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_archive_that_was_written_again_with_other_partitions_is_refused_and_not_lost(
    tmp_path, store
):
    archived(store, tmp_path / "a")
    table = DeltaTable(str(tmp_path / "a/messages"))
    whole = table.to_pyarrow_table()
    write_deltalake(table, whole, mode="overwrite", partition_by=["topic"], schema_mode="overwrite")
    with pytest.raises(ArchiveError, match=r"partitioning: expected \[.day.\], found \[.topic.\]"):
        archived(store, tmp_path / "a")
    restored(tmp_path / "a", tmp_path / "back", as_of=1)
    assert log_bytes(tmp_path / "back") == log_bytes(store)


def test_tables_of_two_archives_are_not_one(tmp_path, store):
    for name in ("a", "b"):
        archived(store, tmp_path / name)
    shutil.rmtree(tmp_path / "a/extents")
    shutil.copytree(tmp_path / "b/extents", tmp_path / "a/extents")
    for act in (archived, lambda _, archive: restored(archive, tmp_path / "back")):
        with pytest.raises(ArchiveError, match="extents is not the table extents of this archive"):
            act(store, tmp_path / "a")


@pytest.mark.parametrize("name", KINDS)
def test_a_table_whose_neighbour_has_rows_is_not_created_again(tmp_path, store, name):
    archived(store, tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / name)
    before = everything(tmp_path / "a")
    with pytest.raises(ArchiveError, match="commits without its neighbour: expected none, found 1"):
        archived(store, tmp_path / "a")
    assert everything(tmp_path / "a") == before


def test_an_archive_of_a_later_layout_is_refused(tmp_path, store, monkeypatch):
    monkeypatch.setattr(archive_place, "_LAYOUT", "2")
    archived(store, tmp_path / "a")
    monkeypatch.undo()
    for act in (archived, lambda _, archive: restored(archive, tmp_path / "back")):
        with pytest.raises(ArchiveError, match=r"layout \(rocketstore.archive\): expected 1, fou"):
            act(store, tmp_path / "a")


def test_both_tables_say_whose_they_are_and_one_without_a_word_is_known_by_its_columns(
    tmp_path, store
):
    archived(store, tmp_path / "a")
    said = {DeltaTable(tmp_path / "a" / one).metadata().configuration[IDENTITY] for one in KINDS}
    assert len(said) == 1
    for name, kind in KINDS.items():  # as releases before this property made them
        DeltaTable.create(str(tmp_path / "b" / name), kind.columns, partition_by=kind.days)
    assert archived(store, tmp_path / "b").records == 120
    assert_covers(tmp_path / "b", store)


@pytest.mark.parametrize("others", [["other"], []])
def test_of_two_that_make_an_archive_at_once_the_second_takes_the_first_one_s_identity(
    tmp_path, store, monkeypatch, others
):
    create, is_first = DeltaTable.create, [True]

    def slowly(*given, **named):
        is_due = is_first.pop() if is_first else False
        if is_due and not others:  # it has made its first table only
            create(*given, **named | {"configuration": {IDENTITY: "1 other"}})
        elif is_due:
            shutil.copytree(store, tmp_path / "other")
            assert archived(tmp_path / "other", tmp_path / "a").records == 120
        return create(*given, **named)

    monkeypatch.setattr(DeltaTable, "create", slowly)
    assert archived(store, tmp_path / "a").records == 120
    assert Archive.open(tmp_path / "a").brokers() == [*others, "store"]


# --- nothing stays ------------------------------------------------------------------------------


def fail_afterwards(*given):
    map_tasks(*given).toArrow()
    raise SparkJobError("the last task was lost")


def test_a_first_run_that_fails_leaves_nothing_not_even_the_directories_above(tmp_path, store):
    with pytest.raises(SparkJobError):
        archived(store, tmp_path / "new/deeper/a", run=fail_afterwards)
    assert sorted(tmp_path.iterdir()) == [store]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/note").write_text("x")
    with pytest.raises(SparkJobError):
        archived(store, tmp_path / "mine", run=fail_afterwards)
    assert everything(tmp_path / "mine") == {"note": b"x"}


def test_what_a_task_still_writes_as_a_first_run_fails_goes_with_the_tables(
    tmp_path, store, monkeypatch
):
    unlink = Path.unlink

    def unlink_too_early(path, **named):
        unlink(path, **named)
        path.with_name(f"late-{path.name}").touch()

    monkeypatch.setattr(Path, "unlink", unlink_too_early)
    with pytest.raises(SparkJobError):
        archived(store, tmp_path / "new/a", run=fail_afterwards)
    assert sorted(tmp_path.iterdir()) == [store]


def test_a_later_run_that_fails_leaves_no_file_and_touches_none(tmp_path, store):
    archived(store, tmp_path / "a")
    before, versions = everything(tmp_path / "a"), state(tmp_path / "a")
    clock = Clock(1_800_000_000_000)
    with open_store(store, clock) as opened:
        put_all(opened, messages(30, first=120), clock)
    with pytest.raises(SparkJobError):
        archived(store, tmp_path / "a", run=fail_afterwards)
    assert (everything(tmp_path / "a"), state(tmp_path / "a")) == (before, versions)
    assert archived(store, tmp_path / "a").records == 30
    assert_covers(tmp_path / "a", store)


def test_a_run_that_fails_leaves_what_another_one_wrote_meanwhile(tmp_path, store):
    shutil.copytree(store, tmp_path / "other")

    def other_is_quicker(*given):
        archived(tmp_path / "other", tmp_path / "a")
        fail_afterwards(*given)

    with pytest.raises(SparkJobError):
        archived(store, tmp_path / "a", run=other_is_quicker)
    assert_covers(tmp_path / "a", tmp_path / "other")


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_whatever_its_name_an_archive_is_where_it_was_asked_for(tmp_path, three_files, name):
    store = shutil.copytree(three_files, tmp_path / name / "store")
    target = tmp_path / name / name
    assert archived(store, target).records == 120
    clock = Clock(1_800_000_000_000)
    with open_store(store, clock) as opened:
        put_all(opened, messages(30, first=120), clock)
    assert archived(store, target).records == 30
    restored(target, tmp_path / name / f"back {name}")
    assert log_bytes(tmp_path / name / f"back {name}") == log_bytes(store)
    assert sorted(one.name for one in tmp_path.iterdir()) == [name]
    assert {one.name for one in (tmp_path / name).iterdir()} == {"store", name, f"back {name}"}
