"""A row of files: loaded in order, judged by name and length, found by offset, cut and deleted."""

from pathlib import Path

import pytest

from rocketstore.errors import StoreDamagedError
from rocketstore.rules.files import FileProblem
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from support.failing_disk import FailingDisk
from support.mapped_bytes import append_bytes

SIZE = 4096


def queue(directory: Path, disk: FailingDisk, **options) -> MappedFileQueue:
    return MappedFileQueue(directory, SIZE, disk=disk, **options)


def make(directory: Path, *bases: int, length: int = SIZE) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for base in bases:
        (directory / f"{base:020d}").write_bytes(b"x" * length)


def test_a_missing_directory_is_an_empty_row(tmp_path, disk):
    files = queue(tmp_path / "none", disk)
    assert files.load() == []
    assert (files.min_offset, files.max_offset, files.flushed_offset) == (-1, 0, 0)
    assert files.last() is None
    assert files.find(0) is None


def test_files_are_loaded_in_the_order_of_their_offsets(tmp_path, disk):
    make(tmp_path, 2 * SIZE, SIZE, 3 * SIZE)
    files = queue(tmp_path, disk)
    assert files.load() == []
    assert [file.base for file in files.files] == [SIZE, 2 * SIZE, 3 * SIZE]
    assert (files.min_offset, files.max_offset) == (SIZE, 4 * SIZE)


def test_strange_entries_are_named_and_left_alone(tmp_path, disk):
    make(tmp_path, 0)
    (tmp_path / "notes.txt").write_bytes(b"mine")
    (tmp_path / f"{17:020d}").write_bytes(b"x" * SIZE)
    (tmp_path / f"{SIZE:020d}").mkdir()
    files = queue(tmp_path, disk)
    problems = {(problem.path.name, problem.problem) for problem in files.load()}
    assert problems == {
        ("notes.txt", FileProblem.WRONG_NAME),
        (f"{17:020d}", FileProblem.MISPLACED),
        (f"{SIZE:020d}", FileProblem.NOT_A_FILE),
    }
    assert len(files.files) == 1


def test_a_gap_is_named(tmp_path, disk):
    make(tmp_path, 0, 3 * SIZE)
    files = queue(tmp_path, disk)
    (problem,) = files.load()
    assert problem.problem is FileProblem.MISSING
    assert problem.path == tmp_path / f"{SIZE:020d}"
    assert problem.expected == f"a file before {3 * SIZE:020d}"
    assert files.find(SIZE) is None
    found = files.find(3 * SIZE + 5)
    assert found is not None
    assert found.base == 3 * SIZE


@pytest.mark.parametrize("length", [100, 0])
@pytest.mark.parametrize("base", [0, SIZE])
def test_a_short_last_file_gets_its_length_with_zeros(tmp_path, disk, length, base):
    make(tmp_path, *range(0, base, SIZE))
    make(tmp_path, base, length=length)
    files = queue(tmp_path, disk)
    (problem,) = files.load()
    assert problem.problem is (FileProblem.WRONG_SIZE if length else FileProblem.EMPTY)
    assert (tmp_path / f"{base:020d}").read_bytes() == b"x" * length + bytes(SIZE - length)
    assert files.files[-1].base == base


@pytest.mark.parametrize(("length", "base"), [(100, 0), (SIZE + 1, 0), (SIZE + 1, SIZE)])
def test_a_wrong_length_elsewhere_is_an_error_that_names_the_file(tmp_path, disk, length, base):
    for each in (0, SIZE):
        make(tmp_path, each, length=length if each == base else SIZE)
    named = rf"{base:020d} has a wrong length: expected 4096 bytes, found {length} bytes"
    with pytest.raises(StoreDamagedError, match=named):
        queue(tmp_path, disk).load()


def test_files_of_several_directories_are_one_row(tmp_path, disk):
    make(tmp_path / "a", 0, 2 * SIZE)
    make(tmp_path / "b", SIZE)
    files = queue([tmp_path / "a"], disk, read_only_directories=[tmp_path / "b"])
    assert files.load() == []
    assert [file.writable for file in files.files] == [True, False, True]


def test_the_same_offset_in_two_directories_is_named(tmp_path, disk):
    make(tmp_path / "a", 0)
    make(tmp_path / "b", 0)
    files = queue([tmp_path / "a", tmp_path / "b"], disk)
    (problem,) = files.load()
    assert problem.problem is FileProblem.DUPLICATE
    assert (problem.path.parent.name, problem.found) == ("b", str(files.files[0].path))
    assert [file.path.parent.name for file in files.files] == ["a"]
    assert problem.path.read_bytes() == b"x" * SIZE


def test_a_byte_is_found_in_the_file_that_covers_it(tmp_path, disk):
    files = queue(tmp_path / "q", disk)
    for base in (SIZE, 2 * SIZE, 5 * SIZE):
        files.create(base)
    starts = {SIZE: SIZE, 2 * SIZE - 1: SIZE, 2 * SIZE: 2 * SIZE, 6 * SIZE - 1: 5 * SIZE}
    for offset, base in starts.items():
        found = files.find(offset)
        assert found is not None
        assert found.base == base
    for offset in (-1, 0, SIZE - 1, 3 * SIZE, 5 * SIZE - 1, 6 * SIZE):
        assert files.find(offset) is None


def test_a_new_file_comes_after_all_others(tmp_path, disk):
    files = queue(tmp_path / "q", disk)
    made = [files.create(SIZE), files.create(2 * SIZE)]
    assert files.files == tuple(made)
    assert [file.path for file in made] == sorted((tmp_path / "q").iterdir())
    assert [file.path.stat().st_size for file in made] == [SIZE, SIZE]
    with pytest.raises(ValueError, match="does not come after"):
        files.create(0)
    assert files.files == tuple(made)


def test_truncating_sets_the_end_and_deletes_what_begins_after_it(tmp_path, disk):
    make(tmp_path, 0, SIZE, 2 * SIZE, 3 * SIZE)
    files = queue(tmp_path, disk)
    files.load()
    assert files.truncate_after(SIZE + 10, now_ms=0)
    assert (files.max_offset, files.flushed_offset) == (SIZE + 10, SIZE + 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}", f"{SIZE:020d}"]
    # What lies behind the end in the last file is the caller's business.
    assert (tmp_path / f"{SIZE:020d}").read_bytes() == b"x" * SIZE
    assert disk.count("fsync_directory") == 1


def test_truncating_at_a_file_boundary_keeps_the_full_file_only(tmp_path, disk):
    make(tmp_path, 0, SIZE)
    files = queue(tmp_path, disk)
    files.load()
    assert not files.truncate_after(SIZE, now_ms=0)
    assert files.max_offset == SIZE
    second = files.last()
    assert second is not None
    # The file that begins exactly there is kept, empty.
    assert (second.base, second.write_position) == (SIZE, 0)


def test_the_first_file_is_deleted_unless_a_reader_holds_it(tmp_path, disk):
    make(tmp_path, 0, SIZE)
    files = queue(tmp_path, disk)
    files.load()
    view = memoryview(files.files[0].mapping)
    assert files.remove_first(force_after_ms=10, now_ms=0) is None
    assert files.min_offset == SIZE
    del view
    assert files.remove_first(force_after_ms=10, now_ms=1) == tmp_path / f"{0:020d}"
    assert len(files.files) == 1
    assert disk.count("fsync_directory") == 1


def test_a_read_only_file_is_never_deleted(tmp_path, disk):
    make(tmp_path / "b", 0)
    files = queue(tmp_path / "a", disk, read_only_directories=[tmp_path / "b"])
    files.load()
    assert files.remove_first(force_after_ms=0, now_ms=0) is None
    assert (tmp_path / "b" / f"{0:020d}").exists()


def test_the_flushed_offset_is_that_of_the_first_file_that_is_not_all_on_the_disk(tmp_path, disk):
    files = queue(tmp_path / "q", disk)
    append_bytes(files.create(0), b"a" * SIZE)
    append_bytes(files.create(SIZE), b"b" * SIZE)
    append_bytes(files.create(2 * SIZE), b"c")
    flushed = [files.flushed_offset]
    for file in files.files:
        file.flush()
        flushed.append(files.flushed_offset)
    assert flushed == [0, SIZE, 2 * SIZE, 2 * SIZE + 1]
