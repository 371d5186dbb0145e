"""One writer per store: the lock that Java takes, and who is said to hold it."""

import os
import sys
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore
from rocketstore.errors import StoreError, StoreLockedError
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.results import PutMessageStatus
from support.foreign_lock import held
from support.line_process import LineProcess
from support.patience import wait_until
from support.small_store import CONFIG

OTHER = """
import json, sys
from pathlib import Path
from rocketstore.errors import StoreLockedError
from rocketstore.storage.files.lock import StoreLock, writer_pid
held = []
for line in sys.stdin:
    asked = json.loads(line)
    path, finds = Path(asked["path"]), None
    if asked["cmd"] == "ask":
        finds = writer_pid(path)
    elif asked["cmd"] == "let go":
        held.pop().release()
    else:
        try:
            held.append(StoreLock(path).acquire())
            if asked["cmd"] == "try":
                held.pop().release()
        except StoreLockedError as error:
            finds = error.owner_pid
    print(json.dumps({"ok": True, "finds": finds}), flush=True)
"""


@pytest.fixture(scope="module")
def other():
    """Another process, which takes locks, holds them, and says whose they are."""
    with LineProcess([sys.executable, "-c", OTHER]) as process:
        yield process


def found_by(other: LineProcess, path: Path, what: str = "try") -> int | None:
    """Return the holder that another process finds, None if it gets the lock."""
    return other.ask(what, path=str(path))["finds"]


def test_the_file_holds_the_text_lock_and_stays_and_what_stands_after_it_is_not_cut(tmp_path):
    path = tmp_path / "lock"
    StoreLock(path).acquire().release()
    assert path.read_bytes() == b"lock"
    path.write_bytes(b"lock and more")
    StoreLock(path).acquire().release()
    assert path.read_bytes() == b"lock and more"


def test_another_process_is_refused_and_learns_our_pid(tmp_path, other):
    path = tmp_path / "lock"
    lock = StoreLock(path).acquire()
    try:
        assert found_by(other, path) == os.getpid()
    finally:
        lock.release()
    assert found_by(other, path) is None


def test_we_learn_the_pid_of_another_holder(tmp_path, other):
    path = tmp_path / "lock"
    assert found_by(other, path, "hold") is None
    with pytest.raises(StoreLockedError, match=f"process {other.pid}") as caught:
        StoreLock(path).acquire()
    assert caught.value.owner_pid == other.pid
    assert caught.value.exit_code == 5
    found_by(other, path, "let go")
    StoreLock(path).acquire().release()


def test_a_second_open_in_this_process_is_refused_and_does_not_drop_the_lock(tmp_path, other):
    path = tmp_path / "lock"
    lock = StoreLock(path).acquire()
    with pytest.raises(StoreLockedError, match="this process") as caught:
        StoreLock(path).acquire()
    assert caught.value.owner_pid == os.getpid()
    assert found_by(other, path) == os.getpid()
    lock.release()


def test_a_lock_that_the_program_dropped_as_it_copied_the_store_is_taken_again(tmp_path, other):
    with MessageStore.open(tmp_path, CONFIG) as store:
        (tmp_path / "lock").read_bytes()
        wait_until(lambda: found_by(other, tmp_path / "lock", "ask") == os.getpid())
        assert store.put(Message(topic="orders", body=b"")).is_stored


def test_a_lock_that_another_process_took_meanwhile_ends_the_puts(tmp_path):
    with MessageStore.open(tmp_path, CONFIG) as store:
        (tmp_path / "lock").read_bytes()
        with held(tmp_path):
            wait_until(lambda: store.running_flags.reasons)
        result = store.put(Message(topic="orders", body=b""))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "a process in another container or on another host holds" in result.detail


def test_another_name_of_the_same_file_is_refused_too(tmp_path):
    lock = StoreLock(tmp_path / "lock").acquire()
    (tmp_path / "other").symlink_to(tmp_path)
    with pytest.raises(StoreLockedError):
        StoreLock(tmp_path / "other" / "lock").acquire()
    lock.release()


def test_released_twice_is_released_once(tmp_path, other):
    lock = StoreLock(tmp_path / "lock").acquire()
    lock.release()
    again = StoreLock(tmp_path / "lock").acquire()
    lock.release()
    assert found_by(other, tmp_path / "lock") == os.getpid()
    again.release()


def test_a_child_does_not_believe_that_it_holds_its_parents_lock(tmp_path):
    path = tmp_path / "lock"
    lock = StoreLock(path).acquire()
    child = os.fork()
    if child == 0:
        try:
            StoreLock(path).acquire()
        except StoreLockedError as error:
            os._exit(0 if error.owner_pid == os.getppid() else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()


def test_a_file_that_cannot_be_made_is_an_error_of_the_store(tmp_path):
    with pytest.raises(StoreError, match="cannot open"):
        StoreLock(tmp_path / "missing" / "lock").acquire()
