"""An option either does something, or the page says that it does nothing."""

import ast

from mutation.tool import load_mutations
from rocketstore.config.store_config import FIELDS
from support.repository import ROOT, files_with, module_nodes

WITHOUT_EFFECT = {
    "enable_d_ledger_commit_log": "true is refused",
    "store_path_root_dir": "the directory that is opened wins; read for storePathCommitLog only",
}

DECLARATIONS = {"store_config.py", "store_options.py", "service_options.py"}
"""What is read there says nothing."""


DECLARED_PROPERTIES = {
    "flush_disk_type": "is_sync_flush",
    "transient_store_pool_enable": "has_transient_pool",
    "disk_max_used_space_ratio": "disk_max_used_space_percent",
}
"""Options read through a property of `StoreConfig`."""


def test_of_every_option_with_an_effect_a_test_fails_when_its_use_is_taken_out():
    taken_out = {
        mutation.breaks.removesuffix(" has no effect"): mutation for mutation in load_mutations()
    }
    wanted = FIELDS.keys() - WITHOUT_EFFECT.keys()
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


def test_an_option_is_read_somewhere():
    read = {
        node.attr
        for path in files_with(".py", under=("src",))
        if path.name not in DECLARATIONS
        for node in module_nodes(path)
        if isinstance(node, ast.Attribute)
    }
    unread = {field for field in FIELDS if DECLARED_PROPERTIES.get(field, field) not in read}
    assert unread - WITHOUT_EFFECT.keys() == set()
