"""Files are tested on the disk: what the system does to them differs from one in memory."""

import pytest


@pytest.fixture
def tmp_path(tmp_path_factory):
    return tmp_path_factory.mktemp("files")
