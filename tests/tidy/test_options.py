"""An option either does something, or the page says that it does nothing."""

from __future__ import annotations

import ast
import functools

import pytest

from mutation.tool import load_mutations
from rocketstore.config.store_config import FIELDS
from support.repository import ROOT, files_with, module_nodes

WITHOUT_EFFECT = {
    "enable_d_ledger_commit_log": "true is refused",
    "store_path_root_dir": "the directory that is opened wins; read for storePathCommitLog only",
}

DECLARATIONS = {"store_config.py", "store_options.py", "service_options.py"}


@functools.cache
def read_attributes() -> set[str]:
    """Return every attribute name that some module reads, besides the declarations."""
    return {
        node.attr
        for path in files_with(".py", under=("src",))
        if path.name not in DECLARATIONS
        for node in module_nodes(path)
        if isinstance(node, ast.Attribute)
    }


DECLARED_PROPERTIES = {
    "flush_disk_type": "is_sync_flush",
    "transient_store_pool_enable": "has_transient_pool",
    "disk_max_used_space_ratio": "disk_max_used_space_percent",
}
"""Options read through a property of `StoreConfig`."""


READ_FOR_OTHERS_ONLY = {
    "message_index_safe": "compatible recovery goes back further with it, as Java does",
}
"""Options that no list of mutations takes out."""


def test_of_every_option_with_an_effect_a_test_fails_when_its_use_is_taken_out():
    taken_out = {
        mutation.breaks.removesuffix(" has no effect"): mutation for mutation in load_mutations()
    }
    wanted = FIELDS.keys() - WITHOUT_EFFECT.keys() - READ_FOR_OTHERS_ONLY.keys()
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


@pytest.mark.parametrize("field", FIELDS)
def test_an_option_is_read_somewhere(field):
    name = DECLARED_PROPERTIES.get(field, field)
    assert name in read_attributes() or field in WITHOUT_EFFECT
