"""An index of more files than a process may have open or mapped: the last few stay mapped."""

import msgspec

from rocketstore import Message, MessageStore
from rocketstore.storage.index import index_service
from support.descriptors import open_descriptors
from support.inside import parts_of
from support.small_store import CONFIG, crashed

MOST = 64
COUNT = 200
SMALL = msgspec.structs.replace(CONFIG, max_hash_slot_num=5, max_index_num=8)


def mapped(store: MessageStore) -> int:
    return sum(file.file.is_mapped for file in parts_of(store).index.files)


def test_an_index_of_many_files_keeps_an_eighth_of_the_maps_and_finds_every_key(
    tmp_path, monkeypatch, clock
):
    monkeypatch.setattr(index_service, "most_mapped_files", lambda: MOST)

    def check(store: MessageStore) -> None:
        for number in range(COUNT):
            [found] = store.find("orders", f"k{number}")
            assert found.body == str(number).encode()
        assert 0 < mapped(store) <= MOST // 8
        assert open_descriptors(tmp_path / "index") <= MOST // 8 + 1  # dispatch has the newest

    with MessageStore.open(tmp_path, SMALL, clock=clock, threads=False) as store:
        for number in range(COUNT):
            clock.now_ms += 1000
            store.put(Message(topic="orders", body=str(number).encode(), keys=f"k{number}"))
            store.wait_dispatched()
            assert mapped(store) <= MOST // 8
        assert len(parts_of(store).index.files) > COUNT // 8
        store.flush()
        check(store)
    crashed(tmp_path)
    (tmp_path / "checkpoint").unlink()
    with MessageStore.open(tmp_path, SMALL, clock=clock, threads=False) as store:
        assert mapped(store) <= MOST // 8
        check(store)
