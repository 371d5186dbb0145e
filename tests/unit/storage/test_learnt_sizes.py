"""Sizes that nobody set are learnt from the files, and can be read from the store's settings."""

import shutil
from pathlib import Path

import pytest

from rocketstore import ConfigError, MessageStore, StoreConfig
from support.golden import golden_case


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
