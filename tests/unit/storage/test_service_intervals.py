"""How often the services act: intervals of 4.9, from the settings (spec B1, B9.4, B17)."""

import errno
from datetime import UTC

import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.errors import StoreFullError
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.retention import HOUR_MS, Retention
from rocketstore.storage.running_flags import RunningFlags
from rocketstore.storage.threads import Periodic, StopSign
from support.clock import Clock
from support.configured_store import open_small
from support.dispatch_parts import DispatchParts
from support.inside import workers_of
from support.said import capture_logs

TURNS = 3


class Waits(StopSign):
    """Notes each wait, then stops the service."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, seconds: float | None = None) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) > TURNS


def waits_of(store: MessageStore, name: str) -> list[float]:
    """Run a service's turns on this thread; return how long it waited before each."""
    workers = workers_of(store)
    (service,) = (one for one in (workers._queue_flush, *workers._watchers) if one.name == name)
    service.stopping = waits = Waits()
    service._do_turns()
    return waits.seconds


@pytest.mark.parametrize(("setting_ms", "seconds"), [(None, 10.0), (250, 0.25)])
def test_files_are_cleaned_after_a_minute_and_then_every_ten_seconds_or_as_is_set(
    tmp_path, monkeypatch, setting_ms, seconds
):
    rounds = []
    monkeypatch.setattr(Retention, "run_once", lambda _: rounds.append(None))
    settings = {} if setting_ms is None else {"clean_resource_interval": setting_ms}
    with open_small(tmp_path / "store", retention=True, **settings) as store:
        assert waits_of(store, "rocketstore-retention") == [60.0, *[seconds] * TURNS]
    assert len(rounds) == TURNS


def test_the_disk_is_looked_at_after_a_second_and_then_every_ten(tmp_path, monkeypatch):
    checks, deletions = [], []
    monkeypatch.setattr(Retention, "check_disk", lambda _: checks.append(None))
    monkeypatch.setattr(Retention, "run_once", lambda _: deletions.append(None))
    with open_small(tmp_path / "store", retention=True) as store:
        assert waits_of(store, "rocketstore-disk-check") == [1.0, 10.0, 10.0, 10.0]
    assert len(checks) == TURNS
    assert not deletions, "a slow deletion would delay the next look"


@pytest.mark.parametrize(("setting_ms", "seconds"), [(None, 1.0), (250, 0.25)])
def test_queues_are_flushed_every_second_unless_the_setting_says_otherwise(
    tmp_path, setting_ms, seconds
):
    settings = {} if setting_ms is None else {"flush_interval_consume_queue": setting_ms}
    with open_small(tmp_path / "store", **settings) as store:
        assert waits_of(store, "rocketstore-queue-flush") == [seconds] * (TURNS + 1)


@pytest.mark.parametrize(
    ("error", "is_traced"),
    [
        (RuntimeError("why?"), True),
        (OSError(errno.ENOSPC, "No space left on device", "checkpoint"), False),
        (StoreFullError("no room", hint="make some"), False),
    ],
)
def test_a_turn_that_fails_is_not_the_last(error, is_traced, caplog):
    """What the system refuses is one line: a traceback a second would fill a full disk's log."""
    turns = []

    def fail():
        turns.append(None)
        raise error

    periodic = Periodic("test", fail, 1.0)
    periodic.stopping = Waits()
    periodic._do_turns()
    assert len(turns) == TURNS
    (record,) = caplog.records
    assert str(error) in record.getMessage()
    assert (record.exc_info is not None) is is_traced


def test_pauses_between_deletions_are_those_of_the_settings(tmp_path):
    old_ms = Clock().now_ms - 100 * HOUR_MS
    parts = DispatchParts(tmp_path)
    for topic in (b"One", b"Two"):
        parts.append(22, topic=topic, body=b"x" * 290, store_timestamp_ms=old_ms)
    parts.run()
    pauses: list[float] = []
    retention = Retention(
        parts.log,
        parts.table,
        parts.index,
        config=StoreConfig(
            retention=True,
            delete_commit_log_files_interval=30,
            delete_consume_queue_files_interval=70,
            delete_when=";".join(f"{hour:02d}" for hour in range(24)),
        ),
        layout=StoreLayout.of(tmp_path),
        used_ratio=lambda _path: 0.1,
        flags=RunningFlags(),
        dispatched_offset=lambda: parts.dispatcher.dispatched_offset,
        clock=parts.clock,
        tz=UTC,
        pause=pauses.append,
    )
    deleted = [path.parent.parent.name for path, _ in retention.run_once()]
    log_files = deleted.count(tmp_path.name)
    assert log_files == 4
    assert {"One", "Two"} <= set(deleted)
    # One pause between two log files, one after each queue that lost files.
    assert pauses == [0.03] * (log_files - 1) + [0.07] * 2
    assert retention.run_once() == []
    assert len(pauses) == log_files + 1


def test_a_job_that_fails_again_and_again_says_so_seldom():
    failures = iter(["full", "full", "full", "broken", "", "broken"])

    def job() -> None:
        if why := next(failures):
            raise StoreFullError(why)

    service = Periodic("rocketstore-job", job, 1.0)
    service.stopping = waits = Waits()
    with capture_logs() as logs:
        for _ in range(2):
            waits.seconds.clear()
            service._do_turns()
    said = [log["error"] for log in logs if log["event"] == "service.failed"]
    assert said == ["full", "broken", "broken"]
