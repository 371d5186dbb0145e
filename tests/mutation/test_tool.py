"""The tool itself: what it calls killed is killed, and a survivor is reported."""

from dataclasses import replace

import pytest

from mutation.tool import Tree, load_mutations, survivors_of, useless_tests

BLIND = "tests/unit/format/test_host.py::test_known_hosts_are_stored_as_these_bytes"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def other_magic():
    (found,) = (m for m in load_mutations() if m.breaks == "a blank has another magic")
    return found


def test_a_wrong_product_is_noticed_and_mended_again(tree, other_magic):
    before = (tree.place / other_magic.path).read_bytes()
    assert survivors_of(tree, other_magic) == []
    assert (tree.place / other_magic.path).read_bytes() == before
    assert useless_tests(tree, [other_magic]) == []


def test_a_test_that_does_not_notice_is_named(tree, other_magic):
    with_a_blind_one = replace(other_magic, tests=(*other_magic.tests, BLIND))
    assert survivors_of(tree, with_a_blind_one) == [BLIND]


def test_a_test_that_fails_without_a_mutation_proves_nothing(tree, other_magic):
    with tree.broken_by(other_magic):
        (said,) = useless_tests(tree, [other_magic])
    assert said == f"{other_magic.tests[0]}: failed (plain code, nothing broken)"


def test_text_that_is_not_there_is_an_error(tree, other_magic):
    with pytest.raises(ValueError, match="has 0 of: no such text"):
        survivors_of(tree, replace(other_magic, old="no such text"))
