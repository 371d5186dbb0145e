"""Small files replaced as a whole: the old or the new one survives, and a backup of the old."""

import errno

import pytest

from rocketstore.errors import FormatError
from rocketstore.storage.files.whole_file import backup_path, read_with_backup, write_atomically
from support.failing_disk import FailingDisk


def decode(content: bytes) -> str:
    if not content.startswith(b"good"):
        raise FormatError("no table", found=content)
    return content.decode()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "config" / "topics.json"


def test_the_directory_is_made_and_nothing_temporary_stays(path):
    write_atomically(path, b"good 1", disk=FailingDisk())
    assert [entry.name for entry in path.parent.iterdir()] == ["topics.json"]
    assert path.read_bytes() == b"good 1"


def test_the_former_content_is_kept_as_backup(path):
    for number in (1, 2, 3):
        write_atomically(path, b"good %d" % number, disk=FailingDisk())
    assert path.read_bytes() == b"good 3"
    assert backup_path(path).read_bytes() == b"good 2"


def test_bytes_are_synced_before_they_get_the_name_and_the_name_after(path, disk):
    write_atomically(path, b"good", disk=disk)
    assert disk.calls[-4:] == [
        ("write_at", "topics.json.tmp"),
        ("fdatasync", "topics.json.tmp"),
        ("replace", "topics.json"),
        ("fsync_directory", "config"),
    ]


def test_both_names_are_made_durable_by_one_sync(path, disk):
    write_atomically(path, b"good 1", disk=disk)
    disk.calls.clear()
    write_atomically(path, b"good 2", disk=disk)
    assert [call for call in disk.calls if "sync" in call[0] or call[0] == "replace"] == [
        ("fdatasync", "topics.json.bak.tmp"),
        ("replace", "topics.json.bak"),
        ("fdatasync", "topics.json.tmp"),
        ("replace", "topics.json"),
        ("fsync_directory", "config"),
    ]


def test_a_failed_sync_leaves_the_old_content(path, disk):
    write_atomically(path, b"good 1", disk=disk)
    disk.fails_sync = {"topics.json.tmp"}
    with pytest.raises(OSError, match="error") as caught:
        write_atomically(path, b"good 2", disk=disk)
    assert caught.value.errno == errno.EIO
    assert path.read_bytes() == b"good 1"


def test_a_broken_file_never_becomes_the_backup(path, disk):
    write_atomically(path, b"good 1", disk=disk)
    write_atomically(path, b"good 2", disk=disk)
    path.write_bytes(b"torn")
    write_atomically(path, b"good 3", disk=disk, decode=decode)
    assert backup_path(path).read_bytes() == b"good 1"
    path.write_bytes(b"")
    write_atomically(path, b"good 4", disk=disk)
    assert backup_path(path).read_bytes() == b"good 1"


def test_a_leftover_of_a_crash_is_written_over(path):
    path.parent.mkdir()
    path.with_name("topics.json.tmp").write_bytes(b"half of something much longer")
    write_atomically(path, b"good", disk=FailingDisk())
    assert path.read_bytes() == b"good"


@pytest.mark.parametrize("broken", [None, b"", b"torn"])
def test_reading_takes_the_backup_where_the_file_is_missing_empty_or_broken(path, broken):
    path.parent.mkdir()
    backup_path(path).write_bytes(b"good old")
    if broken is not None:
        path.write_bytes(broken)
    assert read_with_backup(path, decode) == "good old"


def test_reading_neither_is_nothing(path):
    assert read_with_backup(path, decode) is None


def test_a_broken_backup_is_an_error_when_there_is_nothing_else(path):
    path.parent.mkdir()
    path.write_bytes(b"good")
    backup_path(path).write_bytes(b"torn")
    assert read_with_backup(path, decode) == "good"
    path.write_bytes(b"torn as well")
    with pytest.raises(FormatError):
        read_with_backup(path, decode)
