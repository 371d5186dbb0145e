"""On several machines: Spark on three, the store on an S3 server on a fourth, no disk shared.

While a work runs an executor's host is cut off, a worker is stopped for a minute, longer than Spark
waits for it, or the driver's link is slow. What comes out is compared with what comes out here,
without Spark. A day's run has four works and one cut, ``ROCKETSTORE_FAULT_WALK=all`` every work
with every trouble.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from rocketstore.pipeline.jobs.report.report_job import Report
from support.archiving import archived, log_bytes, rows
from support.audit_runs import audited, proved
from support.fault_settings import WALKS_ALL
from support.golden_stores import golden_root
from support.machines import require_machines
from support.pipeline_tables import read_table
from support.rebuild_runs import rebuilt_here
from support.report_run import make_report, tables_of
from support.restoring import restored
from support.sink_parts import check_whole
from support.small_store import copy_store
from support.spark_machines import SparkMachines
from support.spark_session import require_java
from support.spark_works import NOW_MS, NUMBERS, PLACES, QUEUES
from support.store_files import overwrite_file
from support.trees import tree

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

ADDRESS_OF = {"cut_off": "10.77.0.3:", "stopped": "10.77.0.2:"}
"""Of the machine that Spark gives up: a slow one is not lost."""


class Case:
    """A work that is over: what the driver `said`, and where `out` is."""

    def __init__(self, machines: SparkMachines, said: Any, out: str, hurt: Path, tmp_path: Path):
        self.said, self.hurt, self.tmp_path = said, hurt, tmp_path
        self.shared = machines.shared / out
        self._machines, self._out = machines, out

    def objects(self) -> Path:
        return self._machines.objects(self._out, self.tmp_path / "objects")


def golden() -> Path:
    return golden_root("basic")


def places() -> list[dict[str, Any]]:
    return [{name: row[name] for name in PLACES} for row in read_table(golden())]


def check_read(case: Case) -> None:
    assert case.said == places()


def check_stream(case: Case) -> None:
    first, last = (sorted(rows, key=lambda row: row["physicalOffset"]) for rows in case.said)
    assert first + last == places()


def check_sink(case: Case) -> None:
    expected = [
        (number % QUEUES, number // QUEUES, str(number).encode()) for number in range(NUMBERS)
    ]
    assert messages_of(case.shared) == sorted(expected)
    check_whole(case.shared, None)


def check_stream_sink(case: Case) -> None:
    written = [(queue, body) for queue, _, body in messages_of(case.shared)]
    assert sorted(written) == sorted((row["queueId"], row["body"]) for row in read_table(golden()))
    check_whole(case.shared, None)


def messages_of(store: Path) -> list[tuple[int, int, bytes]]:
    found = read_table(store)
    return sorted((row["queueId"], row["queueOffset"], row["body"]) for row in found)


def check_audit(case: Case) -> None:
    expected = without_place(audited(case.hurt, now_ms=NOW_MS).to_dict())
    assert expected["findings"]
    assert without_place(case.said) == expected
    written = parquet.read_table(case.shared / "findings").to_pylist()
    assert sorted(map(str, written)) == sorted(map(str, case.said["findings"]))


def check_prove(case: Case) -> None:
    assert without_place(case.said) == without_place(proved(golden()).to_dict())


def check_archive(case: Case) -> None:
    here, there = case.tmp_path / "here", case.objects()
    assert case.said == archived(golden(), here).records
    assert rows(there) == rows(here)
    restored(there, case.tmp_path / "restored")
    assert log_bytes(case.tmp_path / "restored") == log_bytes(golden())


def check_restore(case: Case) -> None:
    there = case.objects()
    assert log_bytes(there) == log_bytes(golden())
    assert tree(there / "config") == tree(golden() / "config")
    check_rebuild(case)


def check_rebuild(case: Case) -> None:
    there, here = case.objects(), copy_store(golden(), case.tmp_path / "copy")
    assert case.said == rebuilt_here(here).record_count
    for name in ("consumequeue", "index"):
        assert tree(there / name) == tree(here / name)


def check_report(case: Case) -> None:
    made = make_report(case.hurt, case.tmp_path / "report", now_ms=NOW_MS)
    found = case.shared
    there = Report(found / "index.html", found / "tables", found / "report.json", {})
    assert case.said == made.summary["messages"]
    assert with_names(tables_of(there)) == with_names(tables_of(made))


def with_names(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of tables with files by their names alone: each store has its own place."""
    for row in itertools.chain.from_iterable(tables.values()):
        if "file" in row:
            row["file"] = Path(row["file"]).name
    return tables


def check_unshared(case: Case) -> None:
    for work in ("archive", "audit", "rebuild", "report", "restore"):
        assert "must see the place under one path" in case.said.pop(work)
    assert "the directory is not shared" in case.said.pop("sink")
    assert case.said == {}


def without_place(report: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps({name: report[name] for name in report if name != "store"}))


CHECKS: dict[str, Callable[[Case], None]] = {
    "read": check_read,
    "stream": check_stream,
    "sink": check_sink,
    "stream_sink": check_stream_sink,
    "archive": check_archive,
    "restore": check_restore,
    "rebuild": check_rebuild,
    "prove": check_prove,
    "report": check_report,
    "audit": check_audit,
}
DAILY = [("read", "none"), ("stream", "none"), ("sink", "none"), ("audit", "cut_off")]
ALL = [*itertools.product(CHECKS, ("cut_off", "stopped", "slow")), ("unshared", "none")]
CASES = ALL if WALKS_ALL else DAILY


@pytest.fixture(scope="module")
def hurt(tmp_path_factory):
    store = copy_store(golden(), tmp_path_factory.mktemp("hurt") / "hurt")
    overwrite_file(sorted((store / "commitlog").iterdir())[3], 20_000, b"\xee" * 100)
    return store


@pytest.fixture(scope="module")
def machines(tmp_path_factory, hurt):
    require_java()
    require_machines()
    archive = tmp_path_factory.mktemp("archive") / "archive"
    archived(golden(), archive)
    stores = {"store": golden(), "hurt": hurt, "archive": archive}
    with SparkMachines(tmp_path_factory.mktemp("machines"), stores) as machines:
        yield machines


@pytest.mark.parametrize(("work", "trouble"), CASES)
def test_what_befalls_a_machine_changes_no_outcome(machines, hurt, tmp_path, work, trouble):
    out = f"{work}-{trouble}"
    answer = machines.run(work, trouble, out)
    assert answer["amid"], "it was over before each worker had a task"
    if trouble in ADDRESS_OF:
        assert [one for one in answer["lost"] if one.startswith(ADDRESS_OF[trouble])]
    check = check_unshared if work == "unshared" else CHECKS[work]
    check(Case(machines, answer["outcome"], out, hurt, tmp_path))
