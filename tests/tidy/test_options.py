"""An option either does something, or the page says that it does nothing."""

from __future__ import annotations

import ast
import functools

import pytest

from rocketstore.config import Group
from rocketstore.config.store_config import FIELDS
from support.repository import files_with, module_ast

WITHOUT_EFFECT = {
    "use_reentrant_lock_when_put_message": "its meaning says so: there is one kind of lock",
    "store_path_root_dir": "the directory that is opened wins; read for storePathCommitLog only",
}

DECLARATIONS = {"store_config.py", "later.py"}


@functools.cache
def read_attributes() -> set[str]:
    """Return every attribute name that some module reads, besides the declarations."""
    return {
        node.attr
        for path in files_with(".py", under=("src",))
        if path.name not in DECLARATIONS
        for node in ast.walk(module_ast(path))
        if isinstance(node, ast.Attribute)
    }


DECLARED_PROPERTIES = {
    "flush_disk_type": "is_sync_flush",
    "disk_max_used_space_ratio": "disk_max_used_space_percent",
}
"""Options read through a property of `StoreConfig`."""


@pytest.mark.parametrize(
    "field", [name for name, spec in FIELDS.items() if spec.option.group is not Group.LATER]
)
def test_an_option_is_read_somewhere(field):
    name = DECLARED_PROPERTIES.get(field, field)
    assert name in read_attributes() or field in WITHOUT_EFFECT
