"""A log of more files than a process may have open: those mapped longest ago are let go of."""

from typing import Any

from rocketstore import MessageStore
from rocketstore.storage.files import mapped_file
from support.clock import Clock
from support.inside import parts_of
from support.small_store import crashed, messages, open_store, put_all

DESCRIPTORS = 32


def mapped(store: MessageStore) -> int:
    return sum(file.is_mapped for file in parts_of(store).log.files.files)


def bodies(store: MessageStore) -> list[bytes]:
    return [
        one.body
        for topic in ("Topic0", "Topic1")
        for offset in range(store.max_offset(topic, 0))
        for one in store.get(topic, 0, offset, 1).messages
    ]


def test_a_log_of_many_files_keeps_a_quarter_of_the_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_file, "most_mapped_files", lambda: DESCRIPTORS)
    clock, wanted = Clock(), messages(150, body_size=4000)
    told: list[Any] = []
    with open_store(tmp_path, clock) as store:
        for message in wanted:
            put_all(store, [message], clock)
            assert mapped(store) <= DESCRIPTORS // 4
        files = parts_of(store).log.files.files
        assert len(files) > DESCRIPTORS
        views = store.get_views("Topic0", 0, 0, 1)
        first = bytes(views.records[0])
        told = bodies(store)
        assert sorted(told) == sorted(one.body for one in wanted)
        assert mapped(store) <= DESCRIPTORS // 4
        assert bytes(views.records[0]) == first  # a reader keeps what it reads
        del views
    crashed(tmp_path)
    (tmp_path / "checkpoint").unlink()
    with open_store(tmp_path, clock) as store:  # which reads the whole log
        assert mapped(store) <= DESCRIPTORS // 4
        assert bodies(store) == told
