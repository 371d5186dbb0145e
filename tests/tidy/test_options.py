"""An option either does something, or the page says that it does nothing."""

from __future__ import annotations

import ast
import functools

import pytest

from mutation.tool import load_mutations
from rocketstore.config import Group
from rocketstore.config.store_config import FIELDS
from support.repository import ROOT, files_with, module_ast

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


IN_LATER_WITH_EFFECT = {
    "message_delay_level",
    "enable_multi_dispatch",
    "enable_lmq",
    "broker_role",
}

READ_FOR_OTHERS_ONLY = {
    "mapped_file_size_consume_queue_ext": "no such file is written or read; its size is reported",
    "message_index_safe": "compatible recovery goes back further with it, as Java does",
}
"""Options that no list of mutations takes out."""


def test_of_every_option_with_an_effect_a_test_fails_when_its_use_is_taken_out():
    with_effect = {name for name, spec in FIELDS.items() if spec.option.group is not Group.LATER}
    with_effect |= IN_LATER_WITH_EFFECT
    taken_out = {
        mutation.breaks.removesuffix(" has no effect"): mutation for mutation in load_mutations()
    }
    wanted = with_effect - WITHOUT_EFFECT.keys() - READ_FOR_OTHERS_ONLY.keys()
    assert sorted(wanted - taken_out.keys()) == []
    unnamed = [
        name
        for name in wanted
        if not any(
            name in (ROOT / test.partition("::")[0]).read_text("utf-8")
            for test in taken_out[name].tests
        )
    ]
    assert sorted(unnamed) == []


@pytest.mark.parametrize(
    "field", [name for name, spec in FIELDS.items() if spec.option.group is not Group.LATER]
)
def test_an_option_is_read_somewhere(field):
    name = DECLARED_PROPERTIES.get(field, field)
    assert name in read_attributes() or field in WITHOUT_EFFECT
