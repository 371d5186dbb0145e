"""How often the services act: intervals of 4.9, from the settings (spec B1, B9.4, B17)."""

from __future__ import annotations

import threading
from datetime import UTC

import pytest

from rocketstore import StoreConfig
from rocketstore.storage.periodic import Periodic
from rocketstore.storage.queues.queue_flush import QueueFlusher
from rocketstore.storage.retention import HOUR_MS, Retention, StorePlaces
from rocketstore.storage.retention_service import RetentionService
from rocketstore.storage.running_flags import RunningFlags
from support.configured_store import open_small
from support.dispatch_parts import DispatchParts, SettableClock

TURNS = 3


class Waits:
    """Stands for the event a service waits on: notes each wait, then stops the service."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) > TURNS

    def is_set(self) -> bool:
        return len(self.seconds) > TURNS

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Counted:
    """A retention that only counts."""

    def __init__(self) -> None:
        self.rounds = 0
        self.checks = 0

    def run_once(self) -> list[object]:
        self.rounds += 1
        return []

    def check_disk(self) -> None:
        self.checks += 1


def run_jobs(service: RetentionService) -> dict[str, list[float]]:
    """Run each job of the service on this thread; return how long it waited before each turn."""
    waited = {}
    for job, first_s, interval_s in jobs_of(service):
        service._stopping = waits = Waits()
        service._run(job, first_s, interval_s)
        waited[job.__name__] = waits.seconds
    return waited


def jobs_of(service):
    started = []

    def start(run, _name):
        started.append(run.args)
        return threading.Thread()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rocketstore.storage.retention_service.started", start)
        service.start()
    service._threads.clear()
    return started


def test_files_are_cleaned_after_a_minute_and_then_every_ten_seconds():
    retention = Counted()
    interval_s = StoreConfig().clean_resource_interval / 1000
    waited = run_jobs(RetentionService(retention, interval_s=interval_s))
    assert waited["_clean"] == [60.0, 10.0, 10.0, 10.0]
    assert retention.rounds == TURNS


def test_files_are_cleaned_as_often_as_the_setting_says(tmp_path):
    with open_small(tmp_path / "store", clean_resource_interval=250) as store:
        waited = run_jobs(store._services._retention)
    assert waited["_clean"] == [60.0, 0.25, 0.25, 0.25]


def test_the_disk_is_looked_at_after_a_second_and_then_every_ten():
    retention = Counted()
    waited = run_jobs(RetentionService(retention, interval_s=1.0))
    assert waited["_check_disk"] == [1.0, 10.0, 10.0, 10.0]
    assert retention.checks == TURNS


@pytest.mark.parametrize(("setting_ms", "seconds"), [(None, 1.0), (250, 0.25)])
def test_queues_are_flushed_every_second_unless_the_setting_says_otherwise(
    tmp_path, setting_ms, seconds
):
    settings = {} if setting_ms is None else {"flush_interval_consume_queue": setting_ms}
    with open_small(tmp_path / "store", **settings) as store:
        flusher: QueueFlusher = store._services.queue_flusher
        flusher._stopping = waits = Waits()
        flusher._run()
    assert waits.seconds == [seconds] * (TURNS + 1)


def test_a_turn_that_fails_is_not_the_last():
    turns = []

    def fail():
        turns.append(None)
        raise RuntimeError

    periodic = Periodic("test", fail, 1.0)
    periodic._stopping = Waits()
    periodic._run()
    assert len(turns) == TURNS


def test_pauses_between_deletions_are_those_of_the_settings(tmp_path):
    old_ms = SettableClock().now_ms - 100 * HOUR_MS
    parts = DispatchParts(tmp_path)
    for topic in (b"One", b"Two"):
        parts.append(22, topic=topic, body=b"x" * 290, store_timestamp=old_ms)
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
        places=StorePlaces([tmp_path], tmp_path),
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
