"""markers: abort, lock, and the names below a store's root."""

import pytest

from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    KNOWN_ENDS_FILE_NAME,
    LOCK_CONTENT,
    LOCK_FILE_NAME,
    LOG_DIRECTORIES_FILE_NAME,
)
from rocketstore.metrics.damage_map import DAMAGE_MAP_FILE_NAME
from support.golden_stores import STORES, golden_store
from support.page_tables import table_with


@pytest.mark.parametrize("name", STORES)
def test_golden_markers_are_those_of_the_module(name):
    store, described = golden_store(name)
    assert (store / LOCK_FILE_NAME).read_bytes() == LOCK_CONTENT
    abort = store / ABORT_FILE_NAME
    assert abort.exists() == described["abortPresent"]
    assert not abort.exists() or not abort.read_bytes()
    assert (store / CHECKPOINT_FILE_NAME).is_file()
    assert (store / COMMIT_LOG_DIRECTORY).is_dir()


def test_page_lists_every_name_of_the_module():
    listed = {
        row["path"].strip("`").split("/")[0] for row in table_with("format/directory.md", "path")
    }
    assert listed == {
        ABORT_FILE_NAME,
        LOCK_FILE_NAME,
        CHECKPOINT_FILE_NAME,
        COMMIT_LOG_DIRECTORY,
        CONSUME_QUEUE_DIRECTORY,
        CONSUME_QUEUE_EXT_DIRECTORY,
        "batchconsumequeue",
        INDEX_DIRECTORY,
        CONFIG_DIRECTORY,
        KNOWN_ENDS_FILE_NAME,
        LOG_DIRECTORIES_FILE_NAME,
        DAMAGE_MAP_FILE_NAME,
    }
