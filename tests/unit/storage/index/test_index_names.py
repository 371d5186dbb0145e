"""Names of index files follow a local time, which may go back: what is found does not."""

import time

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.format.index_file import LAST_ZONE, next_index_file_name

CONFIG = StoreConfig.small(max_hash_slot_num=5, max_index_num=20)
KEYS = [f"k{number}" for number in range(7)]
HOUR = 10_000_000
"""In a name: an hour of the clock."""


def put(store: MessageStore, first: int, stop: int) -> None:
    for number in range(first, stop):
        store.put(Message(topic="orders", body=b"%d" % number, keys=KEYS[number % len(KEYS)]))
    assert store.wait_dispatched(timeout_s=60)


def found(store: MessageStore) -> list[int]:
    return [int(one.body) for key in KEYS for one in store.find("orders", key)]


def expected(stop: int) -> list[int]:
    """Each once, a key's newest first."""
    return [one for key in range(len(KEYS)) for one in reversed(range(key, stop, len(KEYS)))]


def test_an_hour_that_comes_twice_loses_and_doubles_no_message(tmp_path):
    """4.9 names the file that it makes in the second one before the file of the first."""
    with MessageStore.open(tmp_path, CONFIG) as store:
        put(store, 0, 50)
    *_, before, last = sorted((tmp_path / "index").iterdir())
    last.rename(last.with_name(f"{int(before.name) - HOUR:017d}"))
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert sorted(found(reader)) == list(range(50))
    for stop in (60, 70):
        with MessageStore.open(tmp_path, CONFIG) as store:
            put(store, stop - 10, stop)
            assert found(store) == expected(stop)


@pytest.mark.parametrize("zones", [("UTC", "America/New_York"), ("Asia/Tokyo", "UTC")])
def test_a_process_in_a_zone_further_west_names_later_files_later(tmp_path, monkeypatch, zones):
    try:
        for number, zone in enumerate(zones):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            with MessageStore.open(tmp_path, CONFIG) as store:
                put(store, 40 * number, 40 * number + 40)
                assert found(store) == expected(40 * number + 40)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "America/New_York", "UTC", "Pacific/Kiritimati"])
def test_a_broker_of_any_zone_names_its_next_file_after_rebuilt_ones(monkeypatch, zone):
    try:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        rebuilt = next_index_file_name(1_700_000_000_000, LAST_ZONE, None)
        assert next_index_file_name(1_700_000_000_001, None, None) > rebuilt
    finally:
        monkeypatch.undo()
        time.tzset()
