"""EIO while reading is an error with file and offset on every way of reading, never "not there"."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.cli.application import run
from rocketstore.config import RecoveryPolicy
from rocketstore.errors import StoreError, SystemRefusedError
from rocketstore.places.files import LocalFiles
from rocketstore.storage.files.pread_files import OpenFiles
from rocketstore.storage.read_only import ReadOnlyStore
from support.configured_store import small_config
from support.failing_calls import FailingCalls, Fault, bad_sector
from support.trees import tree

CONFIG = small_config(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000)
ID = "7F00000100002A9F" + "0" * 16
LOG, QUEUE, INDEX = "commitlog", "consumequeue", "index"

BY_QUEUE: dict[str, Callable[[ReadOnlyStore], object]] = {
    "get": lambda store: store.get("t", 0, 0),
    "get by a tag": lambda store: store.get("t", 0, 0, tags="a"),
    "get_raw": lambda store: store.get_raw("t", 0, 0),
    "get_views": lambda store: store.get_views("t", 0, 0),
    "offset_at": lambda store: store.offset_at("t", 0, 1 << 60),
    "earliest_timestamp": lambda store: store.earliest_timestamp("t", 0),
    "store_timestamp": lambda store: store.store_timestamp("t", 0, 0),
    "max_offset": lambda store: store.max_offset("t", 0),
    "max_physical_offset": lambda store: store.max_physical_offset,
}
BY_LOG: dict[str, Callable[[ReadOnlyStore], object]] = {
    "by_id": lambda store: store.by_id(ID),
    "earliest_log_timestamp": lambda store: store.earliest_log_timestamp(),
    "find": lambda store: store.find("t", "k"),
}
WAYS = [
    *((LOG, name) for name in BY_QUEUE | BY_LOG),
    *((QUEUE, name) for name in BY_QUEUE),
    (QUEUE, "queue_entries"),
    (INDEX, "find"),
]
ASKED = BY_QUEUE | BY_LOG | {"queue_entries": lambda store: list(store.queue_entries("t", 0))}


@pytest.fixture
def root(tmp_path):
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        for _ in range(3):
            store.put(Message(topic="t", body=b"x", keys="k", tags="a"))
    return tmp_path


def fail_reads_of(room: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.pread

    def pread(descriptor: int, size: int, position: int) -> bytes:
        if room in Path(f"/proc/self/fd/{descriptor}").readlink().parts:
            raise OSError(code, os.strerror(code))
        return genuine(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)


@pytest.mark.parametrize(
    ("code", "hint"),
    [(errno.EIO, "truncate -r"), (errno.ESTALE, "mount its"), (errno.EUCLEAN, "fsck")],
)
@pytest.mark.parametrize(("room", "name"), WAYS)
def test_bytes_that_the_disk_cannot_read_are_an_error(root, room, name, code, hint, monkeypatch):
    with MessageStore.open(root, CONFIG, read_only=True) as store:
        assert ASKED[name](store)
    with MessageStore.open(root, CONFIG, read_only=True) as store:
        fail_reads_of(room, code, monkeypatch)
        with pytest.raises(
            SystemRefusedError, match=rf"cannot read .*{room}.* at offset \d+"
        ) as it:
            ASKED[name](store)
        assert it.value.errno == code
        assert hint in str(it.value)
        monkeypatch.undo()
        assert ASKED[name](store)  # nothing wrong is remembered


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", sorted((BY_QUEUE | BY_LOG).keys() - {"max_physical_offset"}))
def test_a_queue_that_cannot_be_read_takes_no_other_one_with_it(root, name, code, monkeypatch):
    with MessageStore.open(root, CONFIG, threads=False) as store:
        for topic in ("broken", "t", "broken"):
            last = store.put(Message(topic=topic, body=b"x")).physical_offset
    fail_reads_of("broken", code, monkeypatch)
    for is_live in (False, True):
        if is_live:
            (root / "abort").touch()
        with MessageStore.open(root, CONFIG, read_only=True) as store:
            assert ASKED[name](store)
            # The queue that cannot be read may know whether this one is to be seen.
            for call in (
                partial(store.get, "broken", 0, 0),
                partial(store.at_physical_offset, last),
            ):
                with pytest.raises(SystemRefusedError, match=r"cannot read .*broken.* at offset 0"):
                    call()


@pytest.mark.parametrize(
    ("command", "broken", "whole"),
    [
        ("queue list", ["broken", 0, None, None], ["t", 0, 0, 3]),
        ("queue lag", ["g", "broken", 0, 0, None, None], ["g", "t", 0, 1, 3, 2]),
        ("topic list", ["broken", 1, None], ["t", 1, 3]),
    ],
)
def test_a_list_says_which_queue_cannot_be_read(root, command, broken, whole, monkeypatch, capsys):
    with MessageStore.open(root, CONFIG, threads=False) as store:
        store.put(Message(topic="broken", body=b"x"))
    (root / "config").mkdir(exist_ok=True)
    table = '{"offsetTable":{"broken@g":{0:0},"t@g":{0:1}}}'
    (root / "config" / "consumerOffset.json").write_text(table)
    fail_reads_of("broken", errno.EIO, monkeypatch)
    assert run([*command.split(), str(root), "-o", "json"]) == 3
    found = [list(row.values()) for row in json.loads(capsys.readouterr().out)]
    assert re.search("cannot read .*broken.* at offset", found[0].pop())
    assert found == [broken, whole]


def opened(root: Path, policy: RecoveryPolicy) -> None:
    with MessageStore.open(root, CONFIG, policy=policy, threads=False) as store:
        list(store.queue_entries("t", 0))


WHOLE_STORE: dict[str, Callable[[Path], object]] = {
    "salvage": lambda root: opened(root, RecoveryPolicy.SALVAGE),
    "compatible": lambda root: opened(root, RecoveryPolicy.COMPATIBLE),
    "verify": lambda root: verify_store(root, CONFIG),
    "repair": lambda root: repair_store(root, config=CONFIG, now_ms=1),
}


@pytest.mark.parametrize("call", ["pread", "preadv"])
@pytest.mark.parametrize("way", WHOLE_STORE)
def test_no_read_of_a_damaged_store_fails_without_file_and_offset(
    root, tmp_path_factory, way, call
):
    (root / "abort").touch()
    log = root / LOG / f"{0:020}"
    log.write_bytes(log.read_bytes()[:150] + b"\xff" * 20 + log.read_bytes()[170:])
    number, is_hit = 0, True
    while is_hit:
        copy = tmp_path_factory.mktemp("copy") / "store"
        shutil.copytree(root, copy)
        with FailingCalls(copy, Fault(call, number, errno.EIO, lasting=False)) as calls:
            try:
                WHOLE_STORE[way](copy)
            except SystemRefusedError as error:
                assert re.search(rf"cannot read {copy}\S+ at offset \d+:", str(error))  # noqa: PT017 - a call that is not made is no fault
            else:  # verify reads again what it could not read, sector by sector
                assert not calls.hits or way == "verify"
        is_hit = bool(calls.hits)
        shutil.rmtree(copy)
        number += 1
    assert number > 3 or call == "preadv"


def test_verify_goes_on_past_a_bad_sector_of_the_log_and_repair_does_not(root, monkeypatch):
    with MessageStore.open(root, CONFIG, threads=False) as store:
        for _ in range(4):
            store.put(Message(topic="t", body=bytes(4096)))
    before = tree(root)
    bad_sector(root / LOG / f"{0:020}", monkeypatch)
    report = verify_store(root, CONFIG)
    (bad,) = [one for one in report.findings if one.reason.startswith("unreadable")]
    assert (bad.kind, bad.file, bad.offset, bad.size) == (
        "log-damage", f"{LOG}/{0:020}", 4096, 4096,
    )  # fmt: skip
    assert "ddrescue" in bad.action
    assert report.counts.message_count == 3 + 4 - 2
    for repair in (repair_store, partial(rebuild_store, what="queues")):
        with pytest.raises(SystemRefusedError, match=r"cannot read .* at offset 4096"):
            repair(root, config=CONFIG, now_ms=1)
    assert tree(root) == before


@pytest.mark.parametrize(
    ("room", "kind"),
    [(QUEUE, "queue-wrong"), (INDEX, "index-wrong"), ("batchconsumequeue", "queue-wrong")],
)
def test_verify_goes_on_past_a_bad_sector_of_queues_and_index_too(root, room, kind, monkeypatch):
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"b":{"topicName":"b","attributes":{"queue.type":"BatchCQ"}}}}'
    )
    with MessageStore.open(root, CONFIG, threads=False) as store:
        for number in range(300):
            store.put(Message(topic="t", body=b"x", keys=f"k-{number}"))
            store.put(Message(topic="b", body=b"x"))
    before = tree(root)
    path = next(one for one in sorted((root / room).rglob("*")) if one.is_file())
    bad_sector(path, monkeypatch)
    report = verify_store(root, CONFIG)
    (bad,) = [one for one in report.findings if one.reason.startswith("unreadable")]
    assert (bad.kind, bad.file, bad.offset) == (kind, str(path.relative_to(root)), 4096)
    assert 4000 < bad.size <= 4096  # as far as it was asked for
    assert "ddrescue" in bad.action
    assert report.exit_code == 4
    with pytest.raises(SystemRefusedError, match=r"cannot read .* at offset 4096") as refused:
        repair_store(root, config=CONFIG, now_ms=1)
    assert "run it again" not in refused.value.hint  # it changed nothing
    assert tree(root) == before
    monkeypatch.undo()
    assert not verify_store(root, CONFIG).has_warnings


WHOLE_FILES: dict[str, Callable[[Path, Path], object]] = {
    INDEX: lambda root, _: repair_store(root, CONFIG),
    QUEUE: lambda root, _: repair_store(root, CONFIG),
    LOG: lambda _, path: OpenFiles().read(path, 0, path.stat().st_size),
    "config": lambda _, path: LocalFiles().open(str(path)).read(0, path.stat().st_size),
}


@pytest.mark.parametrize("room", WHOLE_FILES)
def test_what_can_be_read_before_a_bad_sector_is_not_taken_for_all(root, room, monkeypatch):
    """Of a read that begins before it the system returns less than was asked for."""
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "large").write_bytes(bytes(8192))
    with MessageStore.open(root, CONFIG, threads=False) as store:
        for number in range(300):
            store.put(Message(topic="t", body=b"x", keys=f"k-{number}"))
    path = next(one for one in sorted((root / room).rglob("*")) if one.is_file())
    bad_sector(path, monkeypatch)
    with pytest.raises(StoreError, match=rf"(cannot read )?{path} (at offset 4096|cannot be read)"):
        WHOLE_FILES[room](root, path)


def test_the_end_of_a_short_log_file_that_the_disk_cannot_read_is_an_error(root, monkeypatch):
    log = root / LOG / f"{0:020}"
    os.truncate(log, 9_000)
    verify_store(root, CONFIG)
    genuine = os.pread

    def pread(descriptor: int, size: int, position: int) -> bytes:
        if os.fstat(descriptor).st_size == 9_000 and position + size == 9_000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return genuine(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(SystemRefusedError, match=rf"cannot read {log} at offset \d+"):
        verify_store(root, CONFIG)


@pytest.mark.parametrize("name", ["checkpoint", "known-ends", "config/topics.json"])
def test_a_small_file_that_the_disk_cannot_read_is_not_taken_for_absent(root, monkeypatch, name):
    if name == "config/topics.json":
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text('{"topicConfigTable":{}}')
    assert (root / name).is_file()
    genuine = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == root / name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return genuine(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(SystemRefusedError, match=rf"cannot read {root / name} from offset 0 on"):
        MessageStore.open(root, CONFIG, threads=False)
