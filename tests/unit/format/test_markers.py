"""markers: abort, lock, and the names below a store's root."""

import pytest

from rocketstore.format import markers
from rocketstore.storage.known_ends import KNOWN_ENDS_FILE_NAME
from support.golden_stores import STORES, golden_store
from support.page_tables import table_with


@pytest.mark.parametrize("name", STORES)
def test_golden_markers_are_those_of_the_module(name):
    store, described = golden_store(name)
    assert (store / markers.LOCK_FILE_NAME).read_bytes() == markers.LOCK_CONTENT
    abort = store / markers.ABORT_FILE_NAME
    assert abort.exists() == described["abortPresent"]
    assert not abort.exists() or abort.read_bytes() == markers.ABORT_CONTENT
    assert (store / markers.CHECKPOINT_FILE_NAME).is_file()
    assert (store / markers.COMMIT_LOG_DIRECTORY).is_dir()


@pytest.mark.parametrize(
    ("content", "ours"), [(b"", True), (b"lock", True), (b"lockx", False), (b"x", False)]
)
def test_other_content_than_java_s_is_told(content, ours):
    assert markers.is_lock_content(content) is ours


def test_page_lists_every_name_of_the_module():
    listed = {
        row["path"].strip("`").split("/")[0] for row in table_with("format/directory.md", "path")
    }
    assert listed == {
        markers.ABORT_FILE_NAME,
        markers.LOCK_FILE_NAME,
        markers.CHECKPOINT_FILE_NAME,
        markers.COMMIT_LOG_DIRECTORY,
        markers.CONSUME_QUEUE_DIRECTORY,
        markers.CONSUME_QUEUE_EXT_DIRECTORY,
        markers.INDEX_DIRECTORY,
        markers.CONFIG_DIRECTORY,
        KNOWN_ENDS_FILE_NAME,
    }
