"""Sizes that nobody set are learnt from the files, and can be read from the store's settings."""

import os
import shutil
from pathlib import Path

import pytest

from rocketstore import (
    ConfigError,
    Message,
    MessageStore,
    StoreConfig,
    StoreDamagedError,
    repair_store,
    verify_store,
)
from rocketstore.format.file_name import file_name
from rocketstore.places.store_listing import list_store
from support.audit_runs import audited
from support.golden import golden_case
from support.small_store import CONFIG, LOG_FILE_BYTES
from support.trees import tree


@pytest.fixture
def basic(tmp_path):
    return Path(shutil.copytree(golden_case("basic") / "store", tmp_path / "store"))


@pytest.mark.parametrize("read_only", [False, True])
def test_the_settings_of_an_open_store_say_the_sizes_of_its_files(basic, *, read_only):
    with MessageStore.open(basic, read_only=read_only) as store:
        assert store.config.mapped_file_size_commit_log == 65536
        assert store.config.mapped_file_size_consume_queue == 2000


def test_a_writer_learns_the_layout_of_the_index(basic):
    with MessageStore.open(basic) as store:
        assert (store.config.max_hash_slot_num, store.config.max_index_num) == (500, 2000)


@pytest.mark.parametrize(
    ("setting", "size", "found"),
    [
        ("mapped_file_size_commit_log", 131072, 65536),
        ("mapped_file_size_consume_queue", 4000, 2000),
        ("max_hash_slot_num", 501, 42040),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_size_that_is_set_and_differs_names_both(basic, setting, size, found, *, read_only):
    config = StoreConfig(**{setting: size})
    with pytest.raises(ConfigError, match=rf"{size}\D.*\D{found}\D"):
        MessageStore.open(basic, config, read_only=read_only)


def cut_off(root: Path, count: int, size: int) -> None:
    with MessageStore.open(root, CONFIG, threads=False) as store:
        for _ in range(90):
            store.put(Message(topic="T", body=bytes(300)))
    for path in sorted((root / "commitlog").iterdir())[:count]:
        os.truncate(path, size)


@pytest.mark.parametrize(("count", "size"), [(2, 2000), (3, 2000), (3, 2)])
def test_the_names_of_log_files_tell_the_size_where_most_were_cut_off(tmp_path, count, size):
    """By the commonest length whole files were moved away, and the last one cut."""
    cut_off(tmp_path, count, size)
    found = {one.expected for one in verify_store(tmp_path).findings if "size" in one.kind}
    assert found == {f"{LOG_FILE_BYTES} bytes"}
    assert list_store(str(tmp_path), StoreConfig()).sizes.commit_log_file_bytes == LOG_FILE_BYTES
    if size > 2:
        with pytest.raises(StoreDamagedError, match="run rocketstore store repair"):
            MessageStore.open(tmp_path)
    repair_store(tmp_path)
    assert {one.stat().st_size for one in (tmp_path / "commitlog").iterdir()} == {LOG_FILE_BYTES}
    MessageStore.open(tmp_path).close()


def test_a_stray_file_a_little_after_the_only_log_file_tells_no_size(tmp_path):
    cut_off(tmp_path, 0, 0)
    for path in sorted((tmp_path / "commitlog").iterdir())[1:]:
        path.unlink()
    (tmp_path / "commitlog" / file_name(4096)).write_bytes(bytes(70))
    assert list_store(str(tmp_path), StoreConfig()).sizes.commit_log_file_bytes == LOG_FILE_BYTES


@pytest.mark.parametrize("door", [MessageStore.open, verify_store, repair_store, audited])
@pytest.mark.parametrize(
    ("part", "key"), [("commitlog", "CommitLog"), ("consume*", "ConsumeQueue")]
)
def test_a_file_that_tells_no_size_is_named_and_repaired_with_a_size_that_is_set(
    tmp_path, door, part, key
):
    cut_off(tmp_path, 0, 0)
    first, *others = sorted(tmp_path.glob(f"{part}/**/" + "?" * 20))
    for path in others:
        path.unlink()
    os.truncate(first, 2)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=rf"0{{20}} has 2 bytes, .* --set mappedFileSize{key}="):
        door(tmp_path, StoreConfig())
    assert tree(tmp_path) == before
    if part != "commitlog":  # to read messages it is not needed
        MessageStore.open(tmp_path, read_only=True).close()
    repair_store(tmp_path, CONFIG)  # as the error says
    MessageStore.open(tmp_path).close()
