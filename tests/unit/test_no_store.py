"""What is no store is said in one sentence by every door that makes none, and nothing is made."""

import pytest

from rocketstore import repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.cli.log_scan import log_files_of
from rocketstore.config import StoreConfig
from rocketstore.errors import NotAStoreError
from rocketstore.storage.read_only import ReadOnlyStore
from support.archiving import archived
from support.audit_runs import audited
from support.pipeline_tables import read_table
from support.rebuild_runs import rebuilt_here
from support.report_run import make_report

NO_LOG, ABSENT = "is not a store: it has no commitlog directory", "is not a store: it is not there"
DOORS = {
    "read-only": (ReadOnlyStore.open, NO_LOG, ABSENT),
    "scan, scrub": (lambda place: log_files_of(place, StoreConfig()), NO_LOG, ABSENT),
    "verify": (verify_store, NO_LOG, ABSENT),
    "repair": (repair_store, NO_LOG, ABSENT),
    "dry run": (lambda place: repair_store(place, dry_run=True), NO_LOG, ABSENT),
    "rebuild": (lambda place: rebuild_store(place, StoreConfig(), what="index"), NO_LOG, ABSENT),
    "rebuild on Spark": (rebuilt_here, NO_LOG, ABSENT),
    "audit": (audited, NO_LOG, ABSENT),
    "archive": (lambda place: archived(place, place.with_name("made")), "is not a", "is not a"),
    "report": (lambda place: make_report(place, place.with_name("made")), "is not a", "is not a"),
    "table": (read_table, "is not a store", "is not a store"),
}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_store_is_refused_by_every_door_and_left_as_it_was(tmp_path, door, is_there):
    place = tmp_path / "place"
    if is_there:
        place.mkdir()
    use, of_empty, of_absent = DOORS[door]
    with pytest.raises(NotAStoreError, match=f"{place} {of_empty if is_there else of_absent}"):
        use(place)
    assert [*tmp_path.rglob("*")] == [place] * is_there


@pytest.mark.parametrize("is_linked", [True, False])
@pytest.mark.parametrize("door", [ReadOnlyStore.open, verify_store, log_files_of])
def test_a_log_that_is_not_where_it_should_be_is_named_with_that_place(tmp_path, door, is_linked):
    away = tmp_path / "away"
    where = None if is_linked else str(away)
    if is_linked:
        (tmp_path / "commitlog").symlink_to(away)
        said = f"{tmp_path}/commitlog is a link to {away}, which is not there"
    else:
        (tmp_path / "commitlog").mkdir()
        said = f"the directory of its log, {away}, is not there"
    with pytest.raises(NotAStoreError, match=f"{tmp_path} is not a store: {said}; give the"):
        door(tmp_path, StoreConfig(store_path_commit_log=where))
