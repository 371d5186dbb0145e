"""Files read with pread: what is found, what is reported, and what a live writer may do to them."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from rocketstore.errors import SystemRefusedError
from rocketstore.format.file_name import file_name
from rocketstore.rules.files import FileProblem
from rocketstore.storage.files.pread_files import OpenFiles, PreadFiles, ReadLogFile, listed_files
from rocketstore.units import ByteRange, MiB
from support.descriptors import open_descriptors

SIZE = 100


def make(directory: Path, *bases: int, size: int = SIZE) -> None:
    directory.mkdir(exist_ok=True)
    for base in bases:
        (directory / file_name(base)).write_bytes(bytes([base // SIZE % 251]) * size)


def problems(files: PreadFiles) -> dict[str, FileProblem]:
    return {finding.path.name: finding.problem for finding in files.findings}


def test_an_empty_file_tells_no_size_and_one_stray_file_no_place(tmp_path):
    make(tmp_path / "empty", 0, size=0)
    assert PreadFiles((tmp_path / "empty",)).file_size == 0
    make(tmp_path / "two", 30, 100)
    found = problems(PreadFiles((tmp_path / "two",), file_size=SIZE))
    assert found == {file_name(30): FileProblem.MISPLACED}


def test_bytes_come_from_the_file_that_holds_them(tmp_path):
    make(tmp_path, 0, 100, 200)
    files = PreadFiles([tmp_path])
    assert (files.min_offset, files.max_offset, files.file_size) == (0, 300, 100)
    assert files.read(99, 1) == b"\0"
    assert files.read(100, 100) == b"\1" * 100
    assert files.read(250, 50) == b"\2" * 50
    assert (files.findings, files.is_replaced) == ([], False)


def test_nothing_is_read_across_the_end_of_a_file(tmp_path):
    make(tmp_path, 0, 100)
    files = PreadFiles([tmp_path])
    assert files.read(90, 20) == b"\0" * 10
    assert files.read(-5, 5) is None
    assert files.read(500, 5) is None


def test_no_directory_is_no_files_and_no_error(tmp_path):
    files = PreadFiles([tmp_path / "absent"])
    assert (files.min_offset, files.max_offset) == (-1, 0)
    assert files.read(0, 1) is None


def test_a_missing_middle_file_is_a_hole_that_is_reported_and_not_read_over(tmp_path):
    make(tmp_path, 0, 300)
    files = PreadFiles([tmp_path])
    assert files.holes == [ByteRange(100, 300)]
    assert problems(files) == {file_name(100): FileProblem.MISSING}
    assert files.read(150, 10) is None
    assert files.read(300, 10) is not None


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("00000000000000000100.bak", b"x", FileProblem.WRONG_NAME),
        (".DS_Store", b"x", FileProblem.WRONG_NAME),
        ("100", b"x" * SIZE, FileProblem.WRONG_NAME),
        (file_name(100), b"", FileProblem.EMPTY),
        (file_name(100), b"x" * 40, FileProblem.WRONG_SIZE),
        (file_name(100), b"x" * 140, FileProblem.WRONG_SIZE),
        (file_name(150), b"x" * SIZE, FileProblem.MISPLACED),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_named(tmp_path, name, content, problem):
    make(tmp_path, 0, 200, 300)
    (tmp_path / name).write_bytes(content)
    files = PreadFiles([tmp_path])
    found = [finding for finding in files.findings if finding.path.name == name]
    assert problem in [finding.problem for finding in found]
    assert all(str(tmp_path / name) in str(finding) for finding in found)
    assert files.read(200, 100) == b"\2" * 100


def test_a_short_file_is_read_as_far_as_it_goes(tmp_path):
    make(tmp_path, 0, 200)
    make(tmp_path, 100, size=40)
    files = PreadFiles([tmp_path])
    assert files.read(100, 41) == b"\1" * 40
    assert files.holes == [ByteRange(140, 200)]


def test_of_two_files_with_one_name_the_first_directory_counts(tmp_path):
    make(tmp_path / "a", 0, 100)
    make(tmp_path / "b", 100, 200)
    files = PreadFiles([tmp_path / "a", tmp_path / "b"])
    assert [file.path.parent.name for file in files.files] == ["a", "a", "b"]
    assert [finding.problem for finding in files.findings] == [FileProblem.DUPLICATE]


def test_a_file_that_the_writer_adds_is_found_when_it_is_asked_for(tmp_path):
    make(tmp_path, 0)
    files = PreadFiles([tmp_path])
    assert files.read(100, 1) is None
    make(tmp_path, 100)
    assert files.read(100, 1) == b"\1"


def test_a_deleted_first_file_moves_the_minimum(tmp_path):
    make(tmp_path, 0, 100)
    files = PreadFiles([tmp_path])
    assert files.read(0, 1) == b"\0"
    (tmp_path / file_name(0)).unlink()
    assert files.min_offset == 100
    assert files.read(0, 1) is None


def test_a_file_cut_short_under_the_reader_gives_what_is_left_and_no_signal(tmp_path):
    make(tmp_path, 0, 100)
    files = PreadFiles([tmp_path])
    assert files.read(50, 50) is not None
    os.truncate(tmp_path / file_name(0), 60)
    assert files.read(50, 50) == b"\0" * 10


def test_a_file_created_again_is_not_read_through_the_old_descriptor(tmp_path):
    make(tmp_path, 0)
    files = PreadFiles([tmp_path])
    assert files.read(0, 1) == b"\0"
    replacement = tmp_path / "new"
    replacement.write_bytes(b"n" * SIZE)
    replacement.rename(tmp_path / file_name(0))
    assert files.min_offset == 0
    assert files.is_replaced
    assert files.read(0, 1) == b"n"


def test_few_descriptors_serve_many_files(tmp_path):
    make(tmp_path, *range(0, 3000, 100))
    files = PreadFiles([tmp_path], open_files=OpenFiles(limit=4))
    for base in range(0, 3000, 100):
        assert files.read(base, 1) == bytes([base // SIZE])
    assert 1 <= open_descriptors(tmp_path) <= 4
    del files
    assert open_descriptors(tmp_path) == 0


@pytest.mark.parametrize(
    ("call", "code", "place"),
    [("open", errno.EACCES, ".*"), ("pread", errno.EIO, " at offset 7: "),
     ("pread", errno.ESTALE, " at offset 7: ")],
)  # fmt: skip
def test_what_the_system_refuses_is_an_error_that_names_the_file_and_the_place_of_bytes(
    tmp_path, monkeypatch, call, code, place
):
    make(tmp_path, 0)
    files = PreadFiles([tmp_path])

    def refuse(*_: object) -> object:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(SystemRefusedError, match=file_name(0) + place + os.strerror(code)):
        files.read(7, 1)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_descriptor_that_another_machine_lost_is_asked_for_again_by_its_name(
    tmp_path, monkeypatch, *, is_there
):
    """A file system of another machine: the file was deleted there, or put back from a copy."""
    make(tmp_path, 0)
    path = tmp_path / file_name(0)
    files = PreadFiles([tmp_path])
    first = files.read(7, 1)
    path.rename(tmp_path / "elsewhere")
    if is_there:
        shutil.copy(tmp_path / "elsewhere", path)
    lost, genuine = (tmp_path / "elsewhere").stat().st_ino, os.pread

    def pread(descriptor: int, size: int, position: int) -> bytes:
        if os.fstat(descriptor).st_ino == lost:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return genuine(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    assert first is not None
    assert files.read(7, 1) == (first if is_there else None)


def test_a_file_that_one_listing_missed_is_no_hole(tmp_path, monkeypatch):
    """A directory that a writer adds to is not listed at one moment."""
    make(tmp_path, 0, 100, 200)
    list_all, listings = os.listdir, []

    def list_some(path: Path) -> list[str]:
        listings.append(path)
        return [name for name in list_all(path) if len(listings) > 1 or not name.endswith("100")]

    monkeypatch.setattr(os, "listdir", list_some)
    files = PreadFiles([tmp_path])
    assert (files.holes, files.findings, len(listings)) == ([], [], 2)
    (tmp_path / file_name(100)).unlink()
    files.refresh()
    assert files.holes == [ByteRange(100, 200)]
    assert problems(files) == {file_name(100): FileProblem.MISSING}


def test_a_file_that_is_deleted_after_it_was_listed_has_no_bytes(tmp_path):
    path = tmp_path / file_name(0)
    path.write_bytes(b"x" * 100)
    [listed] = listed_files([tmp_path], [])
    file = ReadLogFile(listed, 4096)
    assert file.data_stop() == 100
    path.unlink()
    assert file.data_stop() == 0
    assert not file.array.any()


def test_zeros_that_the_file_system_knows_are_not_read(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("files")  # on a disk
    path = directory / file_name(0)
    path.write_bytes(b"x")
    os.truncate(path, 16 * MiB)
    (file,) = listed_files([directory], [])
    if file.data_stop() == 16 * MiB:
        pytest.skip("this file system does not tell where it has zeros")
    read, preadv = [], os.preadv

    def counted(descriptor: int, views: list[memoryview], position: int) -> int:
        read.append(len(views[0]))
        return preadv(descriptor, views, position)

    monkeypatch.setattr(os, "preadv", counted)
    array = ReadLogFile(file, file.size).array
    assert array.size == 16 * MiB
    assert array.tobytes().rstrip(b"\0") == b"x"
    assert 0 < sum(read) < MiB
